"""Has this batch been stored before? What one partition remembers of each idempotent producer (KIP-98).

In: the header of a batch. Out: append it, the place where its first copy lies, or Refused. No I/O, no clock.
`check` decides and changes nothing of that; `apply` holds every change and refuses nothing: the leader applies what it
appends, a follower what it copies, a start what it replays. The same batches in the same order give the same state.
Whoever truncates the log takes the newest snapshot that is still in range, or calls `clear`, and replays the rest.

Sequence numbers count records, per producer and epoch, and run in a ring: after 2^31 - 1 comes 0.

    … older, offsets forgotten … | batch | batch | batch | batch | batch |  next_sequence
    '------------------- stored_count, when there was no gap ------------'
                                 '--- batches: what a retry is found in -'
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.base.errors import ErrorCode, Refused
from penstock.base.types import Offset
from penstock.partition.transactions import Transactions
from penstock.partition.verification_guards import VerificationGuards
from penstock.wire.batch import CONTROL_MASK, TIMESTAMP_TYPE_MASK, TRANSACTIONAL_MASK, BatchHeader
from penstock.wire.txn_marker import EndTxnMarker

SEQUENCE_MASK = 2**31 - 1  # The ring has 2^31 numbers; `&` brings any sum or difference back into it.
BATCHES_MAX = 5  # Kafka's: what a client may have in flight (max.in.flight.requests.per.connection) and so may retry.
# Half the ring. A batch this far behind the end cannot be told from one that is far ahead, so nobody looks further.
STORED_COUNT_MAX = 2**30
EXPIRATION_MS = 86_400_000  # Kafka's default for producer.id.expiration.ms.
# 1.5 KB each, so 15 MB for a partition at worst. A client that starts anew for every message reaches it, nobody else.
PRODUCERS_MAX = 10_000
EVICTED_SHARE = 10  # One pass over all producers makes room for a tenth of them, not for one.

_UNUSUAL_MASK = CONTROL_MASK | TRANSACTIONAL_MASK | TIMESTAMP_TYPE_MASK
_DATA_MASK = CONTROL_MASK | TRANSACTIONAL_MASK
_new_tuple = tuple.__new__  # Half the time of calling the class.


class StoredBatch(NamedTuple):
    """A batch in the log. As the answer to a retry: what the first attempt was, or would have been, answered."""

    first_sequence: int
    last_sequence: int  # Smaller than the first when the batch spans the end of the ring.
    base_offset: int
    last_offset: int
    timestamp: int  # When it was appended; for topics with log-append time that is the records' time too.


@dataclass(slots=True)
class Producer:
    """One producer id, as far as one partition knows it."""

    epoch: int
    next_sequence: int  # After the last batch's; 0 when this epoch has none yet.
    stored_count: int  # How many sequence numbers below `next_sequence` are in the log, without a gap.
    timestamp: int  # Of the last batch or marker; what expiry counts from.
    batches: list[StoredBatch] = field(default_factory=list)  # The last ones of this epoch, oldest first.
    coordinator_epoch: int = -1  # Of the last transaction marker.
    txn_first_offset: Offset | None = None  # Where the open transaction began. Such a producer is never forgotten.

    def begin_epoch(self, epoch: int) -> None:
        """Forget the sequences: those of another epoch say nothing about this one's."""
        self.epoch = epoch
        self.next_sequence = self.stored_count = 0
        self.batches.clear()

    @property
    def window_count(self) -> int:
        """How many sequence numbers lie from the oldest remembered batch to the end."""
        return (self.next_sequence - self.batches[0].first_sequence) & SEQUENCE_MASK if self.batches else 0

    @property
    def last_sequence(self) -> int:
        """Of its last batch; -1 when this epoch has none yet."""
        return self.batches[-1].last_sequence if self.batches else -1

    @property
    def end_offset(self) -> int:
        """After its last batch: the smaller, the longer it has been silent, by the log's own order."""
        return self.batches[-1].last_offset + 1 if self.batches else 0

    def is_due(self, header: BatchHeader) -> bool:
        """Whether the batch follows on what is stored."""
        if header.producer_epoch == self.epoch:
            return header.base_sequence == self.next_sequence
        return header.producer_epoch > self.epoch and header.base_sequence == 0

    def has_forgotten(self, first_sequence: int, count: int) -> bool:
        """Whether these sequences are in the log for certain, and older than every remembered batch."""
        behind = (self.next_sequence - first_sequence) & SEQUENCE_MASK
        return self.window_count + count <= behind <= min(self.stored_count, STORED_COUNT_MAX)


@dataclass(slots=True)
class RefusedBatch:
    """A batch that was due, could not be stored, and will be sent again."""

    epoch: int
    first_sequence: int
    code: ErrorCode  # What its producer was told.
    behind_left: int = BATCHES_MAX - 1  # How many others can have been in flight behind it.


class ProducerState:
    def __init__(self, *, producers_max: int = PRODUCERS_MAX) -> None:
        self.producers: dict[int, Producer] = {}
        self.evicted_count = 0  # Since the start: more than 0 means retries that could not be recognised.
        # By producer id. Not kept over a restart: whoever lost its connection sends again in order.
        self._refused: dict[int, RefusedBatch] = {}
        self._producers_max = producers_max
        self.transactions = Transactions()  # As `txn_first_offset` of the producers, and those that have just ended.
        self.guards = VerificationGuards()  # Not kept over a restart: whoever waits for an answer asks again.

    # Deciding

    def check(self, header: BatchHeader) -> StoredBatch | None:
        """None when the batch is to be appended, its first copy when it is there already; Refused otherwise.

        A first copy may not be committed yet: its answer waits for `last_offset` like any other.
        """
        producer = self.producers.get(header.producer_id)
        if (
            producer is not None
            and producer.next_sequence == header.base_sequence
            and producer.epoch == header.producer_epoch
            and (producer.txn_first_offset is None or header.attributes & TRANSACTIONAL_MASK)
        ):
            return None
        return self._check_unusual(header, producer)

    def _check_unusual(self, header: BatchHeader, producer: Producer | None) -> StoredBatch | None:
        epoch, first = header.producer_epoch, header.base_sequence
        if header.producer_id < 0 or first < 0:
            raise Refused(ErrorCode.invalid_record, f"{_name(header)}: sequence {first} is none")
        if epoch < 0:
            raise Refused(ErrorCode.invalid_producer_epoch, f"{_name(header)}: there is no such epoch")
        if producer is None:
            # Any sequence, as in Kafka: a producer that was silent for a day, or whose records were deleted, goes on
            # where it was. Who never wrote here begins at 0 on its own account. But nothing overtakes a first batch
            # that will be sent again: it would then be refused for ever.
            refused = self._refused.get(header.producer_id)
            if refused is not None and refused.epoch == epoch and refused.first_sequence != first:
                raise self._out_of_order(header, refused.first_sequence)
            return None
        if epoch < producer.epoch:
            raise Refused(ErrorCode.invalid_producer_epoch, f"{_name(header)}: epoch {producer.epoch} has taken over")
        if epoch > producer.epoch:
            if first != 0:
                raise self._out_of_order(header, 0)
            _check_part_of_transaction(header, producer)
            return None
        last = (first + header.last_offset_delta) & SEQUENCE_MASK
        for batch in reversed(producer.batches):
            if batch.first_sequence == first and batch.last_sequence == last:
                return batch
        if producer.next_sequence == first:
            _check_part_of_transaction(header, producer)
            return None
        # Java's producer and librdkafka take 46 for success. So it is said of sequences that are known to be stored,
        # never of those that only look old: a first batch may have been refused before the second was accepted.
        if producer.has_forgotten(first, header.last_offset_delta + 1):
            raise Refused(
                ErrorCode.duplicate_sequence_number,
                f"{_name(header)}: {first} to {last} was stored, more than {len(producer.batches)} batches ago",
            )
        raise self._out_of_order(header, producer.next_sequence)

    def _out_of_order(self, header: BatchHeader, due: int) -> Refused:
        """What to say of a batch that is not the one with the sequence `due`.

        A client that is told OUT_OF_ORDER_SEQUENCE_NUMBER may begin a new epoch, in which librdkafka sends again what
        other partitions have stored and not yet answered (its issue 4953). So whoever has only sent on, behind a batch
        that was refused, is told the same as of that one, and sends both again.
        """
        first = header.base_sequence
        message = f"{_name(header)}: {first} where {due} is due"
        refused = self._refused.get(header.producer_id)
        if (
            refused is not None
            and refused.epoch == header.producer_epoch
            and refused.first_sequence == due
            and (first - due) & SEQUENCE_MASK < STORED_COUNT_MAX
            and refused.behind_left > 0
        ):
            refused.behind_left -= 1
            return Refused(refused.code, f"{message}, and was refused")
        return Refused(ErrorCode.out_of_order_sequence_number, message)

    # Changing

    def on_refused(self, header: BatchHeader, code: ErrorCode) -> None:
        """A batch could not be stored now, and its producer is told to try again. If it was due, others wait for it."""
        producer, before = self.producers.get(header.producer_id), self._refused.get(header.producer_id)
        epoch, first = header.producer_epoch, header.base_sequence
        if producer is not None:
            is_due = producer.is_due(header)
        else:
            is_due = before is None or epoch > before.epoch or (epoch, first) == (before.epoch, before.first_sequence)
        if is_due:
            self._refused[header.producer_id] = RefusedBatch(epoch, first, code)
            if len(self._refused) > self._producers_max:
                del self._refused[next(iter(self._refused))]

    def check_epoch(self, header: BatchHeader) -> None:
        """Refused when a higher epoch of the producer has taken over."""
        producer = self.producers.get(header.producer_id)
        if producer is not None and header.producer_epoch < producer.epoch:
            raise Refused(ErrorCode.invalid_producer_epoch, f"{_name(header)}: epoch {producer.epoch} has taken over")

    def check_marker(self, producer_id: int, epoch: int, coordinator_epoch: int, *, is_epoch_new: bool) -> bool:
        """Whether a marker is to be appended, False when it was already; Refused when another has taken over.

        `is_epoch_new`: its epoch has been raised for it (KIP-890), so that what a former owner sends late is known by
        its epoch, and the same marker, sent again, by finding nothing open in its own.
        """
        producer = self.producers.get(producer_id)
        if producer is None:
            return True
        if epoch < producer.epoch or (
            is_epoch_new and epoch == producer.epoch and producer.txn_first_offset is not None
        ):
            raise Refused(
                ErrorCode.invalid_producer_epoch,
                f"marker of producer {producer_id}, epoch {epoch}: epoch {producer.epoch} has taken over",
            )
        if coordinator_epoch < producer.coordinator_epoch:
            raise Refused(
                ErrorCode.transaction_coordinator_fenced,
                f"marker of coordinator epoch {coordinator_epoch}: {producer.coordinator_epoch} has taken over",
            )
        return not is_epoch_new or epoch > producer.epoch

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        producer = self.producers.get(producer_id)
        return producer is not None and producer.txn_first_offset is not None and producer.epoch == epoch

    def apply(self, header: BatchHeader, base_offset: int, now_ms: int, marker: EndTxnMarker | None = None) -> None:
        """Take note of a batch at `base_offset`. The log is right: whatever it holds is taken as it is.

        `marker` is what a control batch says, if it ends a transaction.

        `now_ms` is when it was appended, or the latest time when it can have been. Kafka counts expiry from the
        records' own timestamps instead, and forgets at once who loads records of last year.
        """
        producer = self.producers.get(header.producer_id)
        if producer is None:
            if header.producer_id < 0:
                return
            producer = self._begin(header)
        elif producer.epoch != header.producer_epoch:
            # Also downwards: the leader had forgotten the higher epoch when it took this batch.
            producer.begin_epoch(header.producer_epoch)
        if header.attributes & _UNUSUAL_MASK:
            now_ms = self._apply_unusual(producer, header, base_offset, now_ms, marker)
        producer.timestamp = now_ms
        first, delta = header.base_sequence, header.last_offset_delta
        if first == producer.next_sequence:
            producer.stored_count += delta + 1
        elif first >= 0:
            producer.stored_count = delta + 1
        else:  # A marker, or the offsets that a group coordinator writes for a transaction: they have no sequence.
            return
        if self._refused:
            self._refused.pop(header.producer_id, None)
        last = (first + delta) & SEQUENCE_MASK
        producer.next_sequence = (last + 1) & SEQUENCE_MASK
        batches = producer.batches
        if len(batches) == BATCHES_MAX:
            del batches[0]
        batches.append(_new_tuple(StoredBatch, (first, last, base_offset, base_offset + delta, now_ms)))

    def _apply_unusual(
        self, producer: Producer, header: BatchHeader, base_offset: int, now_ms: int, marker: EndTxnMarker | None
    ) -> int:
        """Follow the producer's transaction; gives when the batch was appended, which a batch may state itself."""
        if marker is not None:
            producer.coordinator_epoch = marker.coordinator_epoch
            producer.txn_first_offset = None
            self.transactions.end(header.producer_id, Offset(base_offset))
            self.guards.on_marker(header.producer_id, header.producer_epoch)
        elif header.attributes & _DATA_MASK == TRANSACTIONAL_MASK and producer.txn_first_offset is None:
            producer.txn_first_offset = Offset(base_offset)
            self.transactions.begin(header.producer_id, Offset(base_offset))
            self.guards.on_first_batch(header.producer_id)
        return header.max_timestamp if header.attributes & TIMESTAMP_TYPE_MASK else now_ms

    def _begin(self, header: BatchHeader) -> Producer:
        excess = len(self.producers) - self._producers_max
        if excess >= 0:
            self.evict(excess + max(1, self._producers_max // EVICTED_SHARE))
        producer = self.producers[header.producer_id] = Producer(header.producer_epoch, 0, 0, 0)
        self._refused.pop(header.producer_id, None)
        return producer

    # Forgetting

    def clear(self) -> None:
        """Forget everything, before a replay."""
        self.producers.clear()
        self._refused.clear()
        self.transactions = Transactions()
        self.guards = VerificationGuards()

    def expire(self, now_ms: int, expiration_ms: int = EXPIRATION_MS) -> int:
        """Forget who was silent for `expiration_ms`; gives how many."""
        expired = [
            producer_id
            for producer_id, producer in self.producers.items()
            if now_ms - producer.timestamp >= expiration_ms and producer.txn_first_offset is None
        ]
        for producer_id in expired:
            self._forget(producer_id)
        return len(expired)

    def evict(self, count: int) -> int:
        """Forget the `count` producers that were silent for longest; gives how many there were to forget.

        By offset, not by time: replicas that hold the same producers evict the same ones.
        """
        idle = [item for item in self.producers.items() if item[1].txn_first_offset is None]
        idle.sort(key=lambda item: item[1].end_offset)
        for producer_id, _ in idle[:count]:
            self._forget(producer_id)
        evicted_count = min(count, len(idle))
        self.evicted_count += evicted_count
        return evicted_count

    def _forget(self, producer_id: int) -> None:
        """What was refused, too: a producer that is not known may begin anywhere."""
        del self.producers[producer_id]
        self._refused.pop(producer_id, None)


def _name(header: BatchHeader) -> str:
    return f"producer {header.producer_id}, epoch {header.producer_epoch}"


def _check_part_of_transaction(header: BatchHeader, producer: Producer) -> None:
    if producer.txn_first_offset is not None and not header.is_transactional:
        raise Refused(ErrorCode.invalid_txn_state, f"{_name(header)}: a transaction is open, and this is no part of it")
