"""What a partition remembers of its producers: S10, R13 and rules 13 and 14 of the reliability page."""

from collections.abc import Iterable
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.base.errors import ErrorCode, Refused
from penstock.partition.producer_snapshot import decode_snapshot, encode_snapshot
from penstock.partition.producer_state import (
    BATCHES_MAX,
    EXPIRATION_MS,
    SEQUENCE_MASK,
    STORED_COUNT_MAX,
    ProducerState,
    StoredBatch,
)
from penstock.wire.batch import CONTROL_MASK, TIMESTAMP_TYPE_MASK, TRANSACTIONAL_MASK, BatchHeader
from penstock.wire.txn_marker import EndTxnMarker

SEQUENCE_MAX = 2**31 - 1
PID = 4000
STORAGE_ERROR = ErrorCode.kafka_storage_error


def header(
    sequence: int,
    count: int = 1,
    *,
    epoch: int = 0,
    pid: int = PID,
    attributes: int = 0,
    max_timestamp: int = -1,
    base_offset: int = 0,
) -> BatchHeader:
    """What `check` and `apply` look at; the other fields are those of no batch in particular."""
    return BatchHeader(
        base_offset, 100, 0, 2, 0, attributes, count - 1, -1, max_timestamp, pid, epoch, sequence, count
    )  # fmt: skip


class Broker:
    """A state with the log it belongs to: appends what `check` lets through."""

    def __init__(self) -> None:
        self.state = ProducerState()
        self.log: list[tuple[BatchHeader, int]] = []  # With the time of the append.
        self.log_end = 0

    def produce(self, sent: BatchHeader, now_ms: int = 0) -> int | ErrorCode:
        """The base offset of the reply, or its error code."""
        try:
            first_copy = self.state.check(sent)
        except Refused as refused:
            return refused.code
        if first_copy is not None:
            return first_copy.base_offset
        base_offset = self.log_end
        self.state.apply(sent, base_offset, now_ms)
        self.log.append((sent._replace(base_offset=base_offset), now_ms))
        self.log_end += sent.last_offset_delta + 1
        return base_offset

    def send(self, *sequences: int, count: int = 1) -> list[int | ErrorCode]:
        return [self.produce(header(sequence, count)) for sequence in sequences]


def replayed(log: Iterable[tuple[BatchHeader, int]], state: ProducerState | None = None) -> ProducerState:
    state = ProducerState() if state is None else state
    for stored, now_ms in log:
        state.apply(stored, stored.base_offset, now_ms)
    return state


def refusal(state: ProducerState, sent: BatchHeader) -> ErrorCode:
    with pytest.raises(Refused) as refused:
        state.check(sent)
    return refused.value.code


# New batches and gaps


def test_batches_in_sequence_are_appended() -> None:
    broker = Broker()
    assert [broker.produce(header(sequence, 10)) for sequence in (0, 10, 20)] == [0, 10, 20]


def test_checking_changes_nothing() -> None:
    state = ProducerState()
    assert state.check(header(0)) is None
    assert state.producers == {}
    state.apply(header(0), 0, 0)
    assert state.check(header(1)) is None
    assert state.check(header(1)) is None


def test_a_gap_is_out_of_order() -> None:
    broker = Broker()
    assert broker.send(0, 2, 1, 2) == [0, ErrorCode.out_of_order_sequence_number, 1, 2]


def test_an_unknown_producer_may_begin_anywhere_because_its_state_may_have_expired() -> None:
    assert Broker().send(1234, 1235) == [0, 1]


@pytest.mark.parametrize("stored", [[], [header(0), header(1)]])
@pytest.mark.parametrize("epoch", [0, 1])
def test_nothing_overtakes_a_batch_that_could_not_be_stored(stored: list[BatchHeader], epoch: int) -> None:
    """And who is behind it hears the same: told that it is out of order, librdkafka begins a new epoch."""
    state = replayed([(before, 0) for before in stored])
    begin = len(stored) if epoch == 0 else 0
    first, second, third = (header(begin + n, epoch=epoch) for n in range(3))
    for _ in range(3):
        assert state.check(first) is None
        state.on_refused(first, STORAGE_ERROR)  # The next one is smaller and would fit.
        for sent in (second, third):
            assert refusal(state, sent) is STORAGE_ERROR
            state.on_refused(sent, STORAGE_ERROR)
    for sent in (first, second, third):
        assert state.check(sent) is None
        state.apply(sent, sent.base_sequence, 0)
    assert refusal(state, header(begin + 4, epoch=epoch)) is ErrorCode.out_of_order_sequence_number


def test_who_does_not_send_again_what_was_refused_is_out_of_order() -> None:
    state = replayed([(header(0), 0)])
    state.on_refused(header(1), STORAGE_ERROR)
    codes = [refusal(state, header(sequence)) for sequence in range(2, 7)]
    assert codes == [STORAGE_ERROR] * (BATCHES_MAX - 1) + [ErrorCode.out_of_order_sequence_number]


def test_only_what_was_sent_behind_a_refused_batch_hears_of_it() -> None:
    state = replayed([(header(10, 5), 0)])
    state.on_refused(header(15), STORAGE_ERROR)
    assert refusal(state, header(10, 2)) is ErrorCode.out_of_order_sequence_number
    assert refusal(state, header(16, epoch=1)) is ErrorCode.out_of_order_sequence_number


def test_what_was_refused_does_not_outlive_its_producer() -> None:
    """Who is not known may begin anywhere."""
    state = replayed([(header(0), 0)])
    state.on_refused(header(1), STORAGE_ERROR)
    state.expire(EXPIRATION_MS)
    assert state.check(header(7)) is None
    state = replayed([(header(0), 0)])
    state.on_refused(header(1), STORAGE_ERROR)
    state.evict(1)
    assert state.check(header(7)) is None


def test_a_new_epoch_does_not_wait_for_what_the_old_one_could_not_store() -> None:
    state = ProducerState()
    state.on_refused(header(sequence=0), STORAGE_ERROR)
    assert state.check(header(sequence=0, epoch=1)) is None
    state.on_refused(header(sequence=0, epoch=1), STORAGE_ERROR)
    with pytest.raises(Refused):
        state.check(header(sequence=1, epoch=1))


def test_what_is_remembered_of_refused_batches_is_bounded() -> None:
    state = ProducerState(producers_max=3)
    for pid in range(1, 6):
        state.on_refused(header(0, pid=pid), STORAGE_ERROR)
    assert state.check(header(1, pid=1)) is None
    with pytest.raises(Refused):
        state.check(header(1, pid=5))


def test_producers_do_not_see_each_other() -> None:
    broker = Broker()
    assert broker.produce(header(0, pid=1)) == 0
    assert broker.produce(header(0, pid=2)) == 1
    assert broker.produce(header(0, pid=1)) == 0


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (header(-1), ErrorCode.invalid_record),
        (header(0, pid=-1), ErrorCode.invalid_record),
        (header(0, pid=-2), ErrorCode.invalid_record),
        (header(0, epoch=-1), ErrorCode.invalid_producer_epoch),
    ],
)
def test_numbers_that_no_producer_has_are_refused(sent: BatchHeader, code: ErrorCode) -> None:
    broker = Broker()
    assert broker.produce(sent) == code
    broker.send(0)
    assert broker.produce(sent) == code


# Retries (S10)


def test_reliability_rule_13_a_retry_of_the_last_five_batches_is_answered_with_the_original_offset() -> None:
    broker = Broker()
    broker.send(0, 10, 20, 30, 40, 50, count=10)
    assert broker.send(50, 40, 30, 20, 10, count=10) == [50, 40, 30, 20, 10]
    assert broker.log_end == 60


def test_a_retry_from_six_batches_back_is_a_duplicate_whose_offset_is_forgotten() -> None:
    broker = Broker()
    broker.send(0, 10, 20, 30, 40, 50, count=10)
    assert broker.send(0, count=10) == [ErrorCode.duplicate_sequence_number]


def test_a_first_copy_says_where_it_ends_and_when_it_was_appended() -> None:
    state = ProducerState()
    state.apply(header(0, 10), 70, 1000)
    assert state.check(header(0, 10)) == StoredBatch(0, 9, 70, 79, 1000)


def test_sequences_in_other_portions_than_stored_are_no_retry() -> None:
    broker = Broker()
    broker.send(0, 10, count=10)
    assert broker.produce(header(0, 20)) == ErrorCode.out_of_order_sequence_number
    assert broker.produce(header(10, 5)) == ErrorCode.out_of_order_sequence_number
    assert broker.produce(header(15, 10)) == ErrorCode.out_of_order_sequence_number


def test_old_sequences_that_were_never_stored_are_not_called_duplicates() -> None:
    # Clients take a duplicate for success. The batch before the first that we know may have been refused.
    broker = Broker()
    broker.send(*range(100, 110))
    assert broker.send(99, 50, 104, 105) == [ErrorCode.out_of_order_sequence_number] * 2 + [
        ErrorCode.duplicate_sequence_number,
        5,
    ]
    assert broker.produce(header(99, 2)) == ErrorCode.out_of_order_sequence_number


def test_what_lies_before_a_gap_in_the_log_is_not_called_a_duplicate() -> None:
    # Compaction took the batch with sequence 1: nobody knows any more what was in it.
    state = replayed([(header(s, base_offset=s), 0) for s in (0, 2, 3, 4, 5, 6, 7, 8)])
    for sequence, code in (
        (0, ErrorCode.out_of_order_sequence_number),
        (1, ErrorCode.out_of_order_sequence_number),
        (2, ErrorCode.duplicate_sequence_number),
        (3, ErrorCode.duplicate_sequence_number),
    ):
        with pytest.raises(Refused) as refused:
            state.check(header(sequence))
        assert refused.value.code == code


def test_a_batch_far_ahead_is_a_gap_even_for_a_producer_that_filled_the_ring() -> None:
    state = ProducerState()
    for number in range(12):
        state.apply(header((number << 28) & SEQUENCE_MASK, 1 << 28), number << 28, 0)
    state.apply(header(3 << 30 & SEQUENCE_MASK), 3 << 30, 0)
    end = (3 << 30) + 1
    with pytest.raises(Refused, match="out_of_order"):
        state.check(header(end + 1000 & SEQUENCE_MASK))
    with pytest.raises(Refused, match="out_of_order"):
        state.check(header(end - STORED_COUNT_MAX - 1 & SEQUENCE_MASK))


# Epochs


def test_a_lower_epoch_is_fenced() -> None:
    broker = Broker()
    broker.produce(header(0, epoch=3))
    assert broker.produce(header(0, epoch=2)) == ErrorCode.invalid_producer_epoch
    assert broker.produce(header(1, epoch=2)) == ErrorCode.invalid_producer_epoch


def test_a_higher_epoch_begins_at_sequence_0() -> None:
    broker = Broker()
    broker.send(0, 1)
    assert broker.produce(header(2, epoch=1)) == ErrorCode.out_of_order_sequence_number
    assert broker.produce(header(1, epoch=1)) == ErrorCode.out_of_order_sequence_number
    assert broker.produce(header(0, epoch=1)) == 2


def test_a_new_epoch_forgets_the_batches_of_the_old_one() -> None:
    # Else the first batch of the new epoch would be taken for a retry, and lost.
    broker = Broker()
    broker.send(0, 1, 2)
    assert broker.produce(header(0, epoch=1)) == 3
    assert broker.produce(header(1, epoch=1)) == 4
    assert broker.produce(header(2, epoch=1)) == 5


def test_replay_follows_the_log_to_a_lower_epoch() -> None:
    # The leader had forgotten the producer when it took the second batch.
    state = replayed([(header(0, epoch=5), 0), (header(7, epoch=1, base_offset=1), 0)])
    assert state.check(header(8, epoch=1)) is None


# The end of the ring


def test_sequence_0_follows_the_largest() -> None:
    broker = Broker()
    assert broker.send(SEQUENCE_MAX - 1, SEQUENCE_MAX, 0, 1) == [0, 1, 2, 3]
    assert broker.send(SEQUENCE_MAX - 1, SEQUENCE_MAX, 0, 1) == [0, 1, 2, 3]
    assert broker.send(3, SEQUENCE_MAX - 2) == [ErrorCode.out_of_order_sequence_number] * 2


def test_a_batch_may_span_the_end_of_the_ring() -> None:
    broker = Broker()
    spanning = header(SEQUENCE_MAX - 3, 10)
    assert broker.produce(spanning) == 0
    assert broker.produce(spanning) == 0
    assert broker.state.producers[PID].batches == [StoredBatch(SEQUENCE_MAX - 3, 5, 0, 9, 0)]
    assert broker.produce(header(7)) == ErrorCode.out_of_order_sequence_number
    assert broker.produce(header(6)) == 10


def test_a_batch_may_end_with_the_ring() -> None:
    broker = Broker()
    assert broker.produce(header(SEQUENCE_MAX - 9, 10)) == 0
    assert broker.produce(header(0, 10)) == 10


def test_an_old_batch_is_known_as_a_duplicate_across_the_end_of_the_ring() -> None:
    broker = Broker()
    broker.send(*(sequence & SEQUENCE_MASK for sequence in range(SEQUENCE_MAX - 3, SEQUENCE_MAX + 9)))
    assert broker.send(SEQUENCE_MAX - 3, SEQUENCE_MAX, 0) == [ErrorCode.duplicate_sequence_number] * 3
    assert broker.send(SEQUENCE_MAX - 4) == [ErrorCode.out_of_order_sequence_number]


# Time and number


def test_a_producer_expires_after_a_day_without_batches() -> None:
    state = ProducerState()
    state.apply(header(0, pid=1), 0, 0)
    state.apply(header(0, pid=2), 1, 0)
    state.apply(header(1, pid=2), 2, 1)
    assert state.expire(EXPIRATION_MS - 1) == 0
    assert state.expire(EXPIRATION_MS) == 1
    assert list(state.producers) == [2]
    assert state.expire(EXPIRATION_MS - 1000, 500) == 1


def test_a_producer_of_old_records_does_not_expire_while_it_writes() -> None:
    state = ProducerState()
    state.apply(header(0, max_timestamp=1), 0, 10 * EXPIRATION_MS)
    assert state.expire(10 * EXPIRATION_MS + 1) == 0


def test_a_clock_that_goes_back_expires_nobody() -> None:
    state = ProducerState()
    state.apply(header(0), 0, 10 * EXPIRATION_MS)
    assert state.expire(0) == 0


def test_a_batch_with_log_append_time_says_itself_when_it_was_appended() -> None:
    state = ProducerState()
    state.apply(header(0, attributes=TIMESTAMP_TYPE_MASK, max_timestamp=5), 0, 99)
    assert state.producers[PID].timestamp == 5
    first_copy = state.check(header(0))
    assert first_copy is not None and first_copy.timestamp == 5


def test_a_producer_with_an_open_transaction_neither_expires_nor_is_evicted() -> None:
    state = ProducerState(producers_max=1)
    state.apply(header(0, attributes=TRANSACTIONAL_MASK), 7, 0)
    assert state.producers[PID].txn_first_offset == 7
    assert state.expire(10 * EXPIRATION_MS) == 0
    state.apply(header(0, pid=1), 8, 0)
    assert list(state.producers) == [PID, 1]
    state.apply(header(-1, attributes=TRANSACTIONAL_MASK | CONTROL_MASK), 9, 0, EndTxnMarker(True, 0))
    assert state.producers[PID].txn_first_offset is None
    assert state.expire(10 * EXPIRATION_MS) == 2


def test_a_transaction_begins_at_its_first_batch() -> None:
    state = replayed([(header(s, attributes=TRANSACTIONAL_MASK, base_offset=s), 0) for s in (0, 1)])
    assert state.producers[PID].txn_first_offset == 0


def test_a_marker_keeps_the_sequence_of_its_epoch_and_a_marker_of_a_new_epoch_ends_it() -> None:
    state = ProducerState()
    marker = TRANSACTIONAL_MASK | CONTROL_MASK
    state.apply(header(0), 0, 0)
    state.apply(header(-1, attributes=marker), 1, 0)
    assert state.check(header(1)) is None
    state.apply(header(-1, epoch=1, attributes=marker), 2, 0)
    with pytest.raises(Refused, match="invalid_producer_epoch"):
        state.check(header(1))
    with pytest.raises(Refused, match="out_of_order"):
        state.check(header(1, epoch=1))
    assert state.check(header(0, epoch=1)) is None


def test_batches_without_a_producer_leave_no_trace() -> None:
    state = ProducerState()
    state.apply(header(-1, pid=-1, epoch=-1), 0, 0)
    assert state.producers == {}


def test_beyond_the_limit_those_go_that_were_silent_for_longest() -> None:
    state = ProducerState(producers_max=20)
    for pid in range(20):
        state.apply(header(0, pid=pid), pid, 0)
    state.apply(header(1, pid=0), 20, 0)
    state.apply(header(0, pid=20), 21, 0)
    assert sorted(state.producers) == [0, *range(3, 21)]
    assert state.evicted_count == 2
    for pid in range(100, 1000):
        state.apply(header(0, pid=pid), pid, 0)
        assert len(state.producers) <= 20


def test_clearing_forgets_everyone() -> None:
    state = replayed([(header(0), 0)])
    state.clear()
    assert state.producers == {}


# Against a reference that keeps everything and knows no ring


class Sent(NamedTuple):
    pid: int
    epoch: int
    position: int  # Counts on where sequences start over.
    length: int


RING_END = 20  # The position whose sequence is 0.


def to_header(sent: Sent) -> BatchHeader:
    return header((sent.position - RING_END) & SEQUENCE_MASK, sent.length, epoch=sent.epoch, pid=sent.pid)


class Reference:
    def __init__(self) -> None:
        self.stored: dict[int, list[tuple[Sent, int]]] = {}  # Of the current epoch of each producer.
        self.log_end = 0

    def produce(self, sent: Sent) -> int | ErrorCode:
        known = self.stored.get(sent.pid)
        if known is not None:
            last = known[-1][0]
            if sent.epoch < last.epoch:
                return ErrorCode.invalid_producer_epoch
            if sent.epoch > last.epoch:
                if sent.position != RING_END:
                    return ErrorCode.out_of_order_sequence_number
                known = None
            elif sent.position != last.position + last.length:
                return self._old(sent, known)
        self.stored[sent.pid] = [*(known or []), (sent, self.log_end)]
        self.log_end += sent.length
        return self.log_end - sent.length

    def _old(self, sent: Sent, known: list[tuple[Sent, int]]) -> int | ErrorCode:
        for batch, offset in known[-BATCHES_MAX:]:
            if batch == sent:
                return offset
        forgotten = {batch.position + i for batch, _ in known[:-BATCHES_MAX] for i in range(batch.length)}
        if forgotten.issuperset(range(sent.position, sent.position + sent.length)):
            return ErrorCode.duplicate_sequence_number
        return ErrorCode.out_of_order_sequence_number


@st.composite
def conversations(draw: st.DrawFn) -> list[Sent]:
    """Mostly the next batch or one from before, sometimes anything."""
    history: list[Sent] = []
    for _ in range(draw(st.integers(1, 60))):
        kind = draw(st.sampled_from(["next", "next", "next", "again", "any", "epoch"]))
        pid = draw(st.integers(1, 2))
        mine = [sent for sent in history if sent.pid == pid]
        count = draw(st.integers(1, 4))
        if kind == "any" or not mine:
            sent = Sent(pid, draw(st.integers(0, 2)), draw(st.integers(0, 60)), count)
        elif kind == "next":
            sent = Sent(pid, mine[-1].epoch, mine[-1].position + mine[-1].length, count)
        elif kind == "epoch":
            sent = Sent(pid, mine[-1].epoch + 1, RING_END, count)
        else:
            sent = draw(st.sampled_from(mine))
        history.append(sent)
    return history


@given(conversations())
def test_every_answer_is_that_of_a_reference_which_keeps_everything(history: list[Sent]) -> None:
    broker, reference = Broker(), Reference()
    for sent in history:
        assert broker.produce(to_header(sent)) == reference.produce(sent), sent


@given(conversations())
def test_replaying_the_log_gives_the_state_that_grew_with_it(history: list[Sent]) -> None:
    broker = Broker()
    for now_ms, sent in enumerate(history):
        broker.produce(to_header(sent), now_ms)
    assert replayed(broker.log).producers == broker.state.producers


@given(conversations(), st.data())
def test_reliability_rule_14_a_snapshot_and_the_batches_behind_it_give_the_state_at_any_truncation(
    history: list[Sent], data: st.DataObject
) -> None:
    broker = Broker()
    snapshots = [(0, encode_snapshot(broker.state))]
    for now_ms, sent in enumerate(history):
        broker.produce(to_header(sent), now_ms)
        snapshots.append((broker.log_end, encode_snapshot(broker.state)))
    start, snapshot = data.draw(st.sampled_from(snapshots))
    end = data.draw(st.integers(start, broker.log_end))
    kept = [(stored, now_ms) for stored, now_ms in broker.log if stored.next_offset <= end]
    behind = [(stored, now_ms) for stored, now_ms in kept if stored.base_offset >= start]
    assert replayed(behind, decode_snapshot(snapshot)).producers == replayed(kept).producers


# A producer that retries until it is told (R13)


class Request(NamedTuple):
    number: int  # Counts the producer's batches of all epochs.
    header: BatchHeader


class LossyProduce(RuleBasedStateMachine):
    """One producer, one partition, and everything between them that gets lost.

    The producer keeps Kafka's rules: five batches in flight, retried as they were sent, until each is acknowledged.
    """

    def __init__(self) -> None:
        super().__init__()
        self.broker = Broker()
        self.epoch = 0
        self.next_sequence = 0
        self.sent_count = 0
        self.unacked: list[Request] = []
        self.zombies: list[Request] = []  # Sent under an older epoch, still somewhere on the network.
        self.acked: dict[int, tuple[BatchHeader, int]] = {}
        self.snapshot = (0, encode_snapshot(self.broker.state))
        self.now_ms = 0

    @precondition(lambda self: self.sent_count == 0)
    @rule(back=st.integers(1, 12))
    def begin_near_the_end_of_the_ring(self, back: int) -> None:
        self.next_sequence = SEQUENCE_MAX + 1 - back

    @precondition(lambda self: not self.unacked or self.sent_count - self.unacked[0].number < BATCHES_MAX)
    @rule(count=st.integers(1, 5))
    def batch_is_made(self, count: int) -> None:
        self.unacked.append(Request(self.sent_count, header(self.next_sequence, count, epoch=self.epoch)))
        self.sent_count += 1
        self.next_sequence = self.next_sequence + count & SEQUENCE_MASK

    @precondition(lambda self: self.unacked)
    @rule(data=st.data(), ack_arrives=st.booleans())
    def request_arrives(self, data: st.DataObject, ack_arrives: bool) -> None:
        # The first batch that the partition sees of a producer is the first that was sent: one connection, in order.
        is_known = PID in self.broker.state.producers
        self._deliver(data.draw(st.sampled_from(self.unacked if is_known else self.unacked[:1])), ack_arrives)

    @precondition(lambda self: self.unacked)
    @rule(acks=st.lists(st.booleans(), min_size=5, max_size=5))
    def connection_is_made_anew(self, acks: list[bool]) -> None:
        for request, ack_arrives in zip(list(self.unacked), acks, strict=False):
            self._deliver(request, ack_arrives)

    def _deliver(self, request: Request, ack_arrives: bool) -> None:
        self.now_ms += 1
        answer = self.broker.produce(request.header, self.now_ms)
        if isinstance(answer, ErrorCode):
            # Retried later. A batch ahead of its turn is the only thing that can happen to this producer.
            assert answer == ErrorCode.out_of_order_sequence_number, answer
            assert request is not self.unacked[0]
        elif ack_arrives:
            self.unacked.remove(request)
            self.acked[request.number] = (request.header, answer)

    @rule()
    def producer_starts_again_with_a_new_epoch(self) -> None:
        self.zombies += self.unacked
        self.unacked.clear()
        self.epoch += 1
        self.next_sequence = 0

    @precondition(lambda self: self.zombies)
    @rule(data=st.data())
    def request_of_an_old_epoch_arrives(self, data: st.DataObject) -> None:
        zombie = data.draw(st.sampled_from(self.zombies))
        producer = self.broker.state.producers.get(PID)
        if producer is None:
            return  # Nobody can tell it from a new one, as in Kafka.
        answer = self.broker.produce(zombie.header, self.now_ms)
        if producer.epoch == self.epoch:
            assert answer == ErrorCode.invalid_producer_epoch

    @precondition(lambda self: not self.unacked)
    @rule()
    def producer_is_silent_for_a_day(self) -> None:
        self.now_ms += EXPIRATION_MS
        self.broker.state.expire(self.now_ms)
        self.zombies.clear()
        assert self.broker.state.producers == {}

    @rule()
    def snapshot_is_taken(self) -> None:
        self.snapshot = (self.broker.log_end, encode_snapshot(self.broker.state))

    @rule()
    def broker_starts_again(self) -> None:
        start, snapshot = self.snapshot
        behind = [(stored, now_ms) for stored, now_ms in self.broker.log if stored.base_offset >= start]
        self.broker.state = replayed(behind, decode_snapshot(snapshot))
        self.broker.state.expire(self.now_ms)

    @rule()
    def another_replica_leads(self) -> None:
        self.broker.state = replayed(self.broker.log)
        self.broker.state.expire(self.now_ms)

    @invariant()
    def nothing_is_stored_twice(self) -> None:
        stored = [(batch.producer_epoch, batch.base_sequence) for batch, _ in self.broker.log]
        assert len(stored) == len(set(stored))

    @invariant()
    def batches_of_an_epoch_lie_in_sequence(self) -> None:
        ends: dict[int, int] = {}
        for batch, _ in self.broker.log:
            due = ends.get(batch.producer_epoch)
            assert due in (None, batch.base_sequence)
            ends[batch.producer_epoch] = batch.base_sequence + batch.records_count & SEQUENCE_MASK

    @invariant()
    def what_was_acknowledged_lies_where_it_was_said_to(self) -> None:
        by_offset = {batch.base_offset: batch for batch, _ in self.broker.log}
        for sent, offset in self.acked.values():
            assert by_offset[offset] == sent._replace(base_offset=offset)

    def teardown(self) -> None:
        for request in list(self.unacked):
            self._deliver(request, ack_arrives=True)
        assert not self.unacked
        self.what_was_acknowledged_lies_where_it_was_said_to()
        self.nothing_is_stored_twice()


TestLossyProduce = LossyProduce.TestCase
TestLossyProduce.settings = settings(max_examples=150, stateful_step_count=60)
