"""All that is known of one transactional id. It is what the log stores, so state and record are the same thing."""

from typing import NamedTuple

from penstock.base.types import NO_TIMESTAMP, TopicPartition
from penstock.coordinator.txn.states import TxnState

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
EPOCH_MAX = 32_767  # Never a producer's: the coordinator can always raise an epoch once more, to fence it.
NO_TIMEOUT_MS = 2**31 - 1  # Of two-phase commit (KIP-939): only who knows the ids may end the transaction.
VERSION_WITH_BUMP = 2  # transaction.version from which on the end of a transaction raises the epoch (KIP-890).


class Producer(NamedTuple):
    producer_id: int
    epoch: int

    @property
    def is_exhausted(self) -> bool:
        """Whether the id has no more epochs to give to a producer."""
        return self.epoch >= EPOCH_MAX - 1


class TransactionMetadata(NamedTuple):
    transactional_id: str
    producer_id: int  # Under which the transaction's records and its markers are written.
    producer_epoch: int
    timeout_ms: int
    state: TxnState
    last_update_ms: int
    previous_producer_id: int = NO_PRODUCER_ID  # The one before the last change. With `last_producer_epoch` it tells
    last_producer_epoch: int = NO_PRODUCER_EPOCH  # a request that is sent again from one of somebody who was fenced.
    # Of an open transaction: it was handed over (KIP-939) and is kept for this producer. While it ends: the id and
    # epoch that come after the markers, when they are not those of the markers themselves.
    next_producer_id: int = NO_PRODUCER_ID
    next_producer_epoch: int = NO_PRODUCER_EPOCH
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NO_TIMESTAMP
    client_version: int = 0  # The transaction.version of the request that made it what it is.

    @property
    def holder(self) -> Producer:
        """Who may act under the transactional id."""
        if self.next_producer_id != NO_PRODUCER_ID:
            return Producer(self.next_producer_id, max(self.next_producer_epoch, 0))
        return Producer(self.producer_id, self.producer_epoch)

    @property
    def writer(self) -> Producer:
        """Whose records are in the partitions; the markers bear this id."""
        return Producer(self.producer_id, self.producer_epoch)

    @property
    def is_kept(self) -> bool:
        """Whether the transaction was handed over: it takes no more partitions and waits to be ended."""
        return self.state is TxnState.ONGOING and self.next_producer_id != NO_PRODUCER_ID

    @property
    def is_two_phase(self) -> bool:
        return self.timeout_ms == NO_TIMEOUT_MS

    def is_retry(self, producer: Producer) -> bool:
        """Whether EndTxn (v5) of `producer` is what made it so, or is on the way to: the epoch was raised by that."""
        return (
            self.client_version >= VERSION_WITH_BUMP
            and self.state not in (TxnState.EMPTY, TxnState.ONGOING)
            and producer.epoch != NO_PRODUCER_EPOCH
            and producer == Producer(self.previous_producer_id, self.last_producer_epoch)
        )

    def ended(
        self, *, is_commit: bool, following: Producer, last_epoch: int, client_version: int, now_ms: int
    ) -> "TransactionMetadata":
        """On the way to its end, after which `following` is the holder.

        The markers get an epoch above that of the records where the holder's is: late records are then refused.
        """
        holder = self.holder
        if following.producer_id == self.producer_id:
            marker_epoch, next_producer = following.epoch, Producer(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
        else:
            marker_epoch, next_producer = min(self.producer_epoch + 1, EPOCH_MAX), following
        return self._replace(
            state=TxnState.PREPARE_COMMIT if is_commit else TxnState.PREPARE_ABORT,
            producer_epoch=marker_epoch,
            previous_producer_id=holder.producer_id,
            last_producer_epoch=last_epoch,
            next_producer_id=next_producer.producer_id,
            next_producer_epoch=next_producer.epoch,
            start_ms=self.start_ms if self.state is TxnState.ONGOING else now_ms,
            last_update_ms=now_ms,
            client_version=client_version,
        )

    def fenced(self, now_ms: int) -> "TransactionMetadata":
        """Aborted by the coordinator, under an epoch that nobody is given: who wrote it is shut out."""
        holder = self.holder
        following = Producer(holder.producer_id, min(holder.epoch + 1, EPOCH_MAX))
        return self.ended(
            is_commit=False,
            following=following,
            last_epoch=NO_PRODUCER_EPOCH,
            client_version=VERSION_WITH_BUMP,
            now_ms=now_ms,
        )

    def completed(self, now_ms: int) -> "TransactionMetadata":
        """All markers are written."""
        assert self.state.is_completing, f"{self.transactional_id} is {self.state.title}"
        is_commit = self.state is TxnState.PREPARE_COMMIT
        holder = self.holder
        return self._replace(
            state=TxnState.COMPLETE_COMMIT if is_commit else TxnState.COMPLETE_ABORT,
            producer_id=holder.producer_id,
            producer_epoch=holder.epoch,
            next_producer_id=NO_PRODUCER_ID,
            next_producer_epoch=NO_PRODUCER_EPOCH,
            partitions=frozenset(),
            last_update_ms=now_ms,
        )


class TransactionDeleted(NamedTuple):
    transactional_id: str


TxnRecord = TransactionMetadata | TransactionDeleted
