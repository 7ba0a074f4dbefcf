"""InitProducerId: a producer takes the transactional id over, and whoever had it is shut out.

An open transaction is aborted first, and the producer told to ask again. With `keep_prepared` (KIP-939) it is kept: the
producer gets an epoch of its own, under which it may end the transaction and nothing else.
"""

from penstock.base.errors import ErrorCode, Refused
from penstock.base.types import NO_TIMESTAMP
from penstock.coordinator.txn.commands import InitProducerId
from penstock.coordinator.txn.decision import ProducerIdNeeded
from penstock.coordinator.txn.metadata import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMEOUT_MS,
    Producer,
    TransactionMetadata,
)
from penstock.coordinator.txn.replies import NOBODY, ProducerReply
from penstock.coordinator.txn.states import TxnState
from penstock.coordinator.txn.txn_config import TxnConfig

ID_BYTES_MAX = 32_767  # The length in the record's key is an int16.

Decided = tuple[TransactionMetadata | None, ProducerReply]  # What is to be stored, if anything, and the answer.


def check_init(command: InitProducerId, config: TxnConfig) -> ErrorCode:
    if not 0 < len(command.transactional_id.encode()) <= ID_BYTES_MAX:
        return ErrorCode.invalid_request
    if command.enable_2pc:
        # Not one that says what is wrong: who may not use two-phase commit needs not know that others can.
        return ErrorCode.none if config.is_two_phase_allowed else ErrorCode.transactional_id_authorization_failed
    if not 0 < command.timeout_ms <= config.max_timeout_ms:
        return ErrorCode.invalid_transaction_timeout
    return ErrorCode.none


def decide_init(
    found: TransactionMetadata | None, command: InitProducerId, new_producer_id: int | None, now_ms: int
) -> Decided:
    """Refused, or ProducerIdNeeded when that takes a `new_producer_id`."""
    timeout_ms = NO_TIMEOUT_MS if command.enable_2pc else command.timeout_ms
    if found is None:
        taken = TransactionMetadata(
            transactional_id=command.transactional_id,
            producer_id=_needed(new_producer_id),
            producer_epoch=0,
            timeout_ms=timeout_ms,
            state=TxnState.EMPTY,
            last_update_ms=now_ms,
        )
        return taken, ProducerReply(producer=taken.holder)
    expected = command.expected
    if expected is not None and not _is_or_was(found, expected):
        raise Refused(ErrorCode.producer_fenced)
    if found.state.is_completing:
        raise Refused(ErrorCode.concurrent_transactions)
    if found.state is TxnState.ONGOING and not command.keep_prepared:
        # Kafka aborts whatever the expected epoch is; so does a producer that has lost its way.
        return found.fenced(now_ms), ProducerReply(error_code=ErrorCode.concurrent_transactions)
    ongoing = found.writer if found.state is TxnState.ONGOING else NOBODY
    if expected is not None and expected != found.holder:
        if expected.epoch != found.last_producer_epoch:
            raise Refused(ErrorCode.producer_fenced)
        return None, ProducerReply(producer=found.holder, ongoing=ongoing)  # It asks again: it has not heard of it.
    taker = _next_of(found.holder, new_producer_id)
    taken = found._replace(
        previous_producer_id=found.holder.producer_id,
        last_producer_epoch=NO_PRODUCER_EPOCH if expected is None else expected.epoch,
        timeout_ms=timeout_ms,
        last_update_ms=now_ms,
    )
    if found.state is TxnState.ONGOING:
        taken = taken._replace(next_producer_id=taker.producer_id, next_producer_epoch=taker.epoch)
    else:
        taken = taken._replace(
            state=TxnState.EMPTY,
            producer_id=taker.producer_id,
            producer_epoch=taker.epoch,
            next_producer_id=NO_PRODUCER_ID,
            next_producer_epoch=NO_PRODUCER_EPOCH,
            partitions=frozenset(),
            start_ms=NO_TIMESTAMP,
        )
    return taken, ProducerReply(producer=taker, ongoing=ongoing)


def _is_or_was(found: TransactionMetadata, expected: Producer) -> bool:
    """Whether the producer has the id that is in use, or had the one before and used it up."""
    return expected.producer_id == found.holder.producer_id or (
        expected.producer_id == found.previous_producer_id and expected.is_exhausted
    )


def _next_of(holder: Producer, new_producer_id: int | None) -> Producer:
    if holder.is_exhausted:
        return Producer(_needed(new_producer_id), 0)
    return Producer(holder.producer_id, holder.epoch + 1)


def _needed(new_producer_id: int | None) -> int:
    if new_producer_id is None:
        raise ProducerIdNeeded
    return new_producer_id
