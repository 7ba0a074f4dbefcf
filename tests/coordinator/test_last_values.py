"""What is read of a log leads to the same state as all of its records in their order."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.coordinator.last_values import LastValues
from penstock.coordinator.open_transactions import OpenTransactions
from penstock.wire.batch import (
    CONTROL_MASK,
    NO_PRODUCER_ID,
    TRANSACTIONAL_MASK,
    BatchHeader,
    Record,
    build_batch,
    read_header,
)
from penstock.wire.pairs import Pair

PRODUCERS = (1, 2, 3)

keys, producers = st.sampled_from([b"a", b"b"]), st.sampled_from(PRODUCERS)
plain_batches = st.tuples(st.just(NO_PRODUCER_ID), st.lists(st.tuples(keys, st.booleans()), min_size=1, max_size=2))
transactional_batches = st.tuples(producers, st.lists(st.tuples(keys, st.just(True)), min_size=1, max_size=2))
markers = st.tuples(producers, st.booleans())
logs = st.lists(st.one_of(plain_batches, transactional_batches, transactional_batches, markers), max_size=20)


class State:
    """As a shard: values that count, and what open transactions have written."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.open: OpenTransactions[bytes, bytes] = OpenTransactions()

    def apply(self, key: bytes, value: bytes | None, producer_id: int) -> None:
        if producer_id != NO_PRODUCER_ID:
            assert value is not None
            self.open.write(producer_id, key, value)
        elif value is None:
            self.values.pop(key, None)
            self.open.forget(key)
        else:
            self.values[key] = value
            self.open.overtake(key)

    def end(self, producer_id: int, is_commit: bool) -> None:
        self.values |= self.open.end(producer_id, is_commit=is_commit)[0]

    def seen(self) -> object:
        return self.values, {
            (*write, is_over) for is_over in (True, False) for write in self.open.writes(overtaken=is_over)
        }


def header_of(producer_id: int, attributes: int) -> BatchHeader:
    record = Record(0, 1, b"", b"")
    return read_header(build_batch([record], base_offset=0, attributes=attributes, producer_id=producer_id))


@given(logs, st.permutations([(producer_id, True) for producer_id in PRODUCERS]))
def test_the_same_state_and_the_same_future(log: list[tuple[int, object]], future: list[tuple[int, bool]]) -> None:
    whole, last = State(), LastValues()
    for number, (producer_id, batch) in enumerate(log):
        if isinstance(batch, bool):
            whole.end(producer_id, batch)
            last.note([(bytes((0, 0, 0, batch)), b"")], header_of(producer_id, TRANSACTIONAL_MASK | CONTROL_MASK))
            continue
        assert isinstance(batch, list)
        pairs: list[Pair] = [(key, b"%d" % number if is_value else None) for key, is_value in batch]
        for key, value in pairs:
            assert key is not None
            whole.apply(key, value, producer_id)
        is_plain = producer_id == NO_PRODUCER_ID
        last.note(pairs, None if is_plain else header_of(producer_id, TRANSACTIONAL_MASK))
    loaded = State()
    for record in last.records():
        loaded.apply(*record)
    assert loaded.seen() == whole.seen()
    for producer_id, is_commit in future:
        loaded.end(producer_id, is_commit)
        whole.end(producer_id, is_commit)
        assert loaded.seen() == whole.seen()
