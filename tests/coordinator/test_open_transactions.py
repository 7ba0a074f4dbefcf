"""What counts of a log with transactions: the same as if only those had written that were committed."""

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from penstock.coordinator.open_transactions import OpenTransactions

KEYS = ("a", "b")
PRODUCERS = (1, 2, 3)


class Plain(NamedTuple):
    key: str


class Tombstone(NamedTuple):
    key: str


class Written(NamedTuple):
    producer_id: int
    key: str


class Marker(NamedTuple):
    producer_id: int
    is_commit: bool


Entry = Plain | Tombstone | Written | Marker
Log = list[tuple[int, Entry]]  # With offsets, which are the values too.

keys, producers = st.sampled_from(KEYS), st.sampled_from(PRODUCERS)
entries = st.one_of(
    st.builds(Plain, keys),
    st.builds(Tombstone, keys),
    st.builds(Written, producers, keys),
    st.builds(Written, producers, keys),
    st.builds(Marker, producers, st.booleans()),
)
logs = st.lists(entries, max_size=25).map(lambda entries: list(enumerate(entries)))


class Loaded:
    """Committed values and open transactions, kept as a coordinator keeps them."""

    def __init__(self, log: Log) -> None:
        self.committed: dict[str, int] = {}
        self.open: OpenTransactions[str, int] = OpenTransactions()
        for offset, entry in log:
            match entry:
                case Plain(key):
                    self.open.overtake(key)
                    self.committed[key] = offset
                case Tombstone(key):
                    self.open.forget(key)
                    self.committed.pop(key, None)
                case Written(producer_id, key):
                    self.open.write(producer_id, key, offset)
                case Marker(producer_id, is_commit):
                    self.committed |= self.open.end(producer_id, is_commit=is_commit)[0]

    def pending(self) -> set[tuple[int, str]]:
        return {
            (producer_id, key)
            for overtaken in (True, False)
            for producer_id, key, _ in self.open.writes(overtaken=overtaken)
        }


def outcome(log: Log, position: int) -> bool | None:
    """Whether the transaction of the record at `position` is committed; None while it is open."""
    written = log[position][1]
    assert isinstance(written, Written)
    for _, entry in log[position:]:
        if isinstance(entry, Marker) and entry.producer_id == written.producer_id:
            return entry.is_commit
    return None


def counts(log: Log, position: int) -> bool:
    entry = log[position][1]
    return isinstance(entry, Plain | Tombstone) or (isinstance(entry, Written) and outcome(log, position) is True)


def committed_by_hand(log: Log) -> dict[str, int]:
    """The last record of each key that counts; a tombstone takes away all that was written before it."""
    last: dict[str, int] = {}
    for position, (offset, entry) in enumerate(log):
        if not isinstance(entry, Marker) and counts(log, position):
            last.pop(entry.key, None)
            if not isinstance(entry, Tombstone):
                last[entry.key] = offset
    return last


def pending_by_hand(log: Log) -> set[tuple[int, str]]:
    pending = set()
    for position, (_, entry) in enumerate(log):
        if isinstance(entry, Tombstone):
            pending = {one for one in pending if one[1] != entry.key}
        elif isinstance(entry, Written) and outcome(log, position) is None:
            pending.add((entry.producer_id, entry.key))
    return pending


def compacted(log: Log) -> Log:
    """As a cleaner leaves it, up to the first open transaction: the last of what counts, markers and tombstones."""
    end = next(
        (n for n, (_, entry) in enumerate(log) if isinstance(entry, Written) and outcome(log, n) is None), len(log)
    )
    last: dict[str, int] = {}
    for position, (_, entry) in enumerate(log[:end]):
        if not isinstance(entry, Marker) and counts(log, position):
            last[entry.key] = position
    kept = [
        item
        for position, item in enumerate(log[:end])
        if isinstance(item[1], Marker) or last.get(item[1].key) == position
    ]
    return kept + log[end:]


@given(logs)
def test_what_counts_is_the_last_record_of_those_that_count(log: Log) -> None:
    loaded = Loaded(log)
    assert loaded.committed == committed_by_hand(log)
    assert loaded.pending() == pending_by_hand(log)


@given(logs)
def test_a_compacted_log_says_the_same(log: Log) -> None:
    assert Loaded(compacted(log)).committed == Loaded(log).committed
    assert Loaded(compacted(log)).pending() == Loaded(log).pending()


@given(logs, st.lists(st.builds(Marker, producers, st.booleans()), max_size=3))
def test_a_compacted_log_goes_on_as_the_whole_one(log: Log, markers: list[Marker]) -> None:
    more = list(enumerate(markers, start=len(log)))
    assert Loaded(compacted(log) + more).committed == Loaded(log + more).committed


@given(logs)
def test_nothing_is_left_when_all_have_ended(log: Log) -> None:
    opened = Loaded(log).open
    for producer_id in PRODUCERS:
        opened.end(producer_id, is_commit=True)
    assert len(opened) == 0
    assert opened._keys == {}
