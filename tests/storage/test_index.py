import pytest

from penstock.base.types import Offset
from penstock.storage.index import BadIndex, OffsetIndex, TimeIndex
from penstock.storage.segment_indexes import SegmentIndexes


def offset_index(*entries):
    index = OffsetIndex()
    for entry in entries:
        index.append(*entry)
    return index


def time_index(*entries):
    index = TimeIndex()
    for entry in entries:
        index.maybe_append(*entry)
    return index


def test_an_offset_is_looked_for_from_the_entry_at_or_before_it():
    index = offset_index((9, 100), (19, 200))
    assert index.entry_before(8) is None
    assert index.entry_before(9) == (9, 100)
    assert index.entry_before(18) == (9, 100)
    assert index.entry_before(1000) == (19, 200)


def test_a_time_is_looked_for_behind_the_last_entry_before_it():
    index = time_index((1000, 9), (2000, 19))
    assert index.entry_before(1000) is None
    assert index.entry_before(1001) == (1000, 9)
    assert index.entry_before(5000) == (2000, 19)


def test_a_time_index_takes_only_newer_timestamps():
    index = time_index((1000, 9))
    assert not index.maybe_append(1000, 12)
    assert index.maybe_append(1001, 12)
    assert len(index) == 2


def test_indexes_are_kafkas_bytes():
    assert bytes(offset_index((9, 100)).data).hex() == "00000009" + "00000064"
    assert bytes(time_index((1000, 9)).data).hex() == "00000000000003e8" + "00000009"


def test_truncation_keeps_the_entries_below():
    offsets, times = offset_index((9, 100), (19, 200)), time_index((1000, 9), (2000, 19))
    offsets.truncate(200)
    times.truncate(19)
    assert (offsets.last(), times.last()) == ((9, 100), (1000, 9))
    offsets.truncate(0)
    times.truncate(0)
    assert (offsets.last(), times.last()) == (None, None)


@pytest.mark.parametrize("entries", [b"\0" * 7, b"\0" * 16, b"\0\0\0\1" * 2 + b"\0\0\0\2\0\0\0\1"])
def test_an_offset_index_that_does_not_increase_is_bad(entries):
    with pytest.raises(BadIndex):
        OffsetIndex(entries).check(1000)


def test_an_offset_index_that_points_outside_the_log_is_bad():
    offset_index((9, 99)).check(100)
    with pytest.raises(BadIndex):
        offset_index((9, 100)).check(100)


@pytest.mark.parametrize("entries", [b"\0" * 11, b"\0" * 24])
def test_a_time_index_that_does_not_increase_is_bad(entries):
    with pytest.raises(BadIndex):
        TimeIndex(entries).check()
    assert TimeIndex(entries[:5]).last() is None


def test_an_entry_is_made_once_enough_bytes_have_gone_by():
    indexes = SegmentIndexes(Offset(100))
    for number in range(5):
        indexes.note(number * 60, 60, 100 + number, 1000 + number, 100)
    assert [indexes.offsets.entry(number) for number in range(2)] == [(2, 120), (4, 240)]
    assert [indexes.times.entry(number) for number in range(2)] == [(1002, 2), (1004, 4)]


def test_the_largest_timestamp_is_known_with_and_without_entries():
    indexes = SegmentIndexes(Offset(100))
    assert indexes.max_timestamp == -1
    for number, timestamp in enumerate((5, 9, 9, 7)):
        indexes.note(number * 10, 10, 100 + number, timestamp, 4096)
    assert (indexes.max_timestamp, indexes.max_timestamp_offset) == (9, 101)
    assert len(indexes.times) == 0
    indexes.finish()
    indexes.finish()
    assert len(indexes.times) == 1
    assert SegmentIndexes(Offset(100), indexes.offsets, indexes.times).max_timestamp == 9


def test_indexes_of_an_empty_log_have_no_entries():
    indexes = SegmentIndexes(Offset(0))
    indexes.check(0)
    indexes.note(0, 10, 0, 5, 4096)
    indexes.finish()
    with pytest.raises(BadIndex):
        indexes.check(0)
