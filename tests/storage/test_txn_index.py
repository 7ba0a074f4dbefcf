"""The index of aborted transactions: what a reader is told, and what cannot be one."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.storage.index import BadIndex
from penstock.storage.txn_index import AbortedTxn, TxnIndex


def index_of(*entries: AbortedTxn) -> TxnIndex:
    index = TxnIndex()
    for entry in entries:
        index.append(entry)
    return index


ENTRIES = (AbortedTxn(1, 0, 4, 2), AbortedTxn(2, 2, 9, 10), AbortedTxn(1, 12, 20, 21))


def test_an_entry_has_the_bytes_that_kafka_gives_it() -> None:
    assert bytes(index_of(AbortedTxn(1, 2, 3, 4)).data) == struct.pack(">hqqqq", 0, 1, 2, 3, 4)
    assert list(TxnIndex(index_of(*ENTRIES).data)) == list(ENTRIES)


def test_a_reader_is_told_of_what_overlaps_and_when_that_is_all() -> None:
    index = index_of(*ENTRIES)
    assert index.overlapping(0, 3) == (list(ENTRIES[:2]), True)
    assert index.overlapping(5, 9) == ([ENTRIES[1]], True)
    assert index.overlapping(10, 12) == ([], True)
    assert index.overlapping(10, 30) == ([ENTRIES[2]], False)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 10), st.integers(1, 5)), max_size=12), st.data())
def test_the_answer_is_that_of_looking_at_every_entry(steps: list[tuple[int, int, int]], data: st.DataObject) -> None:
    entries, last, stable = [], 0, 0
    for producer_id, length, gap in steps:
        last += gap
        stable = data.draw(st.integers(stable, last + 1))
        entries.append(AbortedTxn(producer_id, max(0, last - length), last, stable))
    index = index_of(*entries)
    index.check(0, last + 1) if all(entry.first_offset < entry.last_offset for entry in entries) else None
    start = data.draw(st.integers(0, last + 2))
    end = data.draw(st.integers(start, last + 3))
    found, is_all = index.overlapping(start, end)
    naive = [entry for entry in entries if entry.last_offset >= start and entry.first_offset < end]
    assert naive[: len(found)] == found
    if not is_all:
        assert found == naive
    cut = data.draw(st.integers(0, last + 2))
    index.truncate(cut)
    assert list(index) == [entry for entry in entries if entry.last_offset < cut]


def test_what_cannot_be_an_index_is_found_out() -> None:
    """Rule 19: an index is derived data, and looked at before it is believed."""
    good = bytes(index_of(*ENTRIES).data)
    TxnIndex(good).check(0, 21)
    for entries, start, end in (
        (good[:-1], 0, 21),  # Half an entry.
        (good, 5, 21),  # A marker of the segment before.
        (good, 0, 20),  # A marker of the next one.
        (good[34:68] + good[:34], 0, 21),  # Out of order.
        (b"\0\1" + good[2:], 0, 21),  # Another version.
        (bytes(index_of(AbortedTxn(-1, 0, 4, 2)).data), 0, 21),
        (bytes(index_of(AbortedTxn(1, 4, 4, 2)).data), 0, 21),
        (bytes(index_of(AbortedTxn(1, 0, 4, 6)).data), 0, 21),
    ):
        with pytest.raises(BadIndex):
            TxnIndex(entries).check(start, end)
