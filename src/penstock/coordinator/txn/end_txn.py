"""EndTxn: commit or abort, decided once and for all; the same request again gets the same answer.

From v5 on (transaction.version 2, KIP-890) the end raises the producer's epoch, so that nothing that it has sent before
can become part of its next transaction. A retry is known by the epoch that it was sent under.
"""

from penstock.base.errors import ErrorCode, Refused
from penstock.coordinator.txn.commands import EndTxn
from penstock.coordinator.txn.decision import ProducerIdNeeded
from penstock.coordinator.txn.metadata import VERSION_WITH_BUMP, Producer, TransactionMetadata
from penstock.coordinator.txn.replies import ProducerReply
from penstock.coordinator.txn.states import TxnState

Decided = tuple[TransactionMetadata | None, ProducerReply]  # What is to be stored, if anything, and the answer.


def decide_end(found: TransactionMetadata | None, command: EndTxn, new_producer_id: int | None, now_ms: int) -> Decided:
    """Refused, or ProducerIdNeeded when that takes a `new_producer_id`."""
    if found is None:
        raise Refused(ErrorCode.invalid_producer_id_mapping)
    raises_epoch = command.client_version >= VERSION_WITH_BUMP
    is_retry = raises_epoch and found.is_retry(command.producer)
    if not is_retry:
        _check_holder(found, command.producer, raises_epoch)
    if found.state is TxnState.ONGOING:
        return _end(found, command, new_producer_id, now_ms)
    if found.state is TxnState.EMPTY or (raises_epoch and not is_retry):
        # Nothing was written. To abort that is fine from v5 on: the producer may not know whether anything was.
        if command.is_commit or not raises_epoch:
            raise Refused(ErrorCode.invalid_txn_state)
        return _end(found, command, new_producer_id, now_ms)
    was_commit = found.state in (TxnState.PREPARE_COMMIT, TxnState.COMPLETE_COMMIT)
    if command.is_commit != was_commit:
        raise Refused(ErrorCode.invalid_txn_state)
    if found.state.is_completing:
        raise Refused(ErrorCode.concurrent_transactions)
    return None, ProducerReply(producer=found.holder)


def _check_holder(found: TransactionMetadata, producer: Producer, raises_epoch: bool) -> None:
    if producer.producer_id != found.holder.producer_id:
        raise Refused(ErrorCode.invalid_producer_id_mapping)
    # While it ends, the epoch is the next transaction's already; only its own retry could ask for it now.
    if producer != found.holder or (raises_epoch and found.state.is_completing):
        raise Refused(ErrorCode.producer_fenced)


def _end(found: TransactionMetadata, command: EndTxn, new_producer_id: int | None, now_ms: int) -> Decided:
    following, last_epoch = found.holder, found.last_producer_epoch
    if command.client_version >= VERSION_WITH_BUMP:
        last_epoch = following.epoch
        if not following.is_exhausted:
            following = Producer(following.producer_id, following.epoch + 1)
        elif new_producer_id is None:
            raise ProducerIdNeeded
        else:
            following = Producer(new_producer_id, 0)
    ending = found.ended(
        is_commit=command.is_commit,
        following=following,
        last_epoch=last_epoch,
        client_version=command.client_version,
        now_ms=now_ms,
    )
    return ending, ProducerReply(producer=following)
