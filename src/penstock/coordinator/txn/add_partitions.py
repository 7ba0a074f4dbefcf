"""AddPartitionsToTxn: what a transaction writes to, before it does; and asking whether it may (KIP-890)."""

from penstock.base.errors import ErrorCode, Refused
from penstock.base.types import TopicPartition
from penstock.coordinator.txn.commands import AddPartitions
from penstock.coordinator.txn.metadata import Producer, TransactionMetadata
from penstock.coordinator.txn.states import TxnState


def decide_add(found: TransactionMetadata | None, command: AddPartitions, now_ms: int) -> TransactionMetadata | None:
    """The transaction with the partitions; None when it has them already. Refused when it can have no more."""
    open_or_idle = _check_writer(found, command.producer)
    is_ongoing = open_or_idle.state is TxnState.ONGOING
    if is_ongoing and command.partitions <= open_or_idle.partitions:
        return None
    return open_or_idle._replace(
        state=TxnState.ONGOING,
        previous_producer_id=open_or_idle.producer_id,
        partitions=open_or_idle.partitions | command.partitions,
        start_ms=open_or_idle.start_ms if is_ongoing else now_ms,
        last_update_ms=now_ms,
        client_version=command.client_version,
    )


def verify(found: TransactionMetadata | None, command: AddPartitions) -> dict[TopicPartition, ErrorCode]:
    """Whether the transaction is open and has the partitions. One without is to be aborted by its producer."""
    partitions = _check_writer(found, command.producer).partitions
    return {
        partition: ErrorCode.none if partition in partitions else ErrorCode.transaction_abortable
        for partition in command.partitions
    }


def _check_writer(found: TransactionMetadata | None, producer: Producer) -> TransactionMetadata:
    if found is None or producer.producer_id not in (found.producer_id, found.holder.producer_id):
        raise Refused(ErrorCode.invalid_producer_id_mapping)
    if producer != found.holder:
        raise Refused(ErrorCode.producer_fenced)
    if found.state.is_completing:
        raise Refused(ErrorCode.concurrent_transactions)
    if found.is_kept:
        raise Refused(ErrorCode.invalid_txn_state, "the transaction was handed over and takes no more records")
    return found
