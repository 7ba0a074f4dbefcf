"""A log that grows has disk space reserved ahead of it, in proportion, and gives back what it does not need."""

from pathlib import Path

import pytest

from penstock.base.errors import Refused
from penstock.storage.log import Log

from .support import FailingFileSystem, append, fail, flush, opened, read_all, succeed

MB = 1 << 20
VALUE = b"v" * (100 << 10)
SLACK_BYTES = 64 << 10  # What file systems round up by.


@pytest.fixture
def fs():
    return FailingFileSystem()


def grow(log: Log, size: int) -> None:
    while log.active.size < size:
        append(log, [VALUE])


def unused_bytes(directory: Path) -> int:
    """Disk space of the segments that holds no bytes of theirs."""
    stats = [path.stat() for path in directory.glob("*.log")]
    return sum(max(0, stat.st_blocks * 512 - stat.st_size) for stat in stats)


def test_small_partitions_reserve_nothing(tmp_path, fs):
    log = opened(fs, str(tmp_path))
    grow(log, MB - 2 * len(VALUE))
    assert fs.reserves == []


def test_small_writes_reserve_nothing(tmp_path, fs):
    log = opened(fs, str(tmp_path))
    while log.active.size < 2 * MB:
        append(log, [b"v" * 7000])
    assert fs.reserves == []


def test_what_is_reserved_is_in_proportion_and_bounded(tmp_path, fs):
    log = opened(fs, str(tmp_path))
    while log.active.size < 72 * MB:
        append(log, [VALUE])
        assert unused_bytes(tmp_path) <= min(log.active.size / 4, 16 * MB) + SLACK_BYTES
    sizes = [size for _, size in fs.reserves]
    assert sizes[0] < MB
    assert 16 * MB < sizes[-1] < 17 * MB
    assert len(sizes) < 30, "a call for each batch costs more than it saves"
    assert len(read_all(log, bytes_max=80 * MB)) == log.log_end


def test_a_batch_larger_than_any_reserve_is_taken(tmp_path, fs):
    log = opened(fs, str(tmp_path))
    append(log, [b"x" * (9 * MB)])
    append(log, [b"x" * (9 * MB)])
    assert unused_bytes(tmp_path) <= log.active.size / 4 + SLACK_BYTES


@pytest.mark.parametrize("end", [Log.roll, Log.close])
def test_a_segment_that_ends_gives_back_what_it_did_not_need(tmp_path, fs, end):
    log = opened(fs, str(tmp_path))
    grow(log, 5 * MB)
    end(log)
    assert fs.reserves
    assert unused_bytes(tmp_path) <= SLACK_BYTES


def test_a_file_that_is_closed_for_want_of_descriptors_keeps_its_reserve(tmp_path, fs):
    """To give it back and ask for it again at every turn of many partitions would cost more than it saves."""
    log = opened(fs, str(tmp_path))
    grow(log, 5 * MB)
    flush(log)
    count, unused = len(fs.reserves), unused_bytes(tmp_path)
    assert log.active.maybe_close_file()
    append(log, [VALUE])
    assert len(fs.reserves) == count
    flush(log)
    assert log.active.maybe_close_file()
    assert unused_bytes(tmp_path) == 0 or unused_bytes(tmp_path) > unused - 2 * len(VALUE)
    log.close()
    assert unused_bytes(tmp_path) <= SLACK_BYTES


def test_a_segment_without_its_file_is_closed_in_silence(tmp_path, fs):
    log = opened(fs, str(tmp_path))
    grow(log, 5 * MB)
    flush(log)
    assert log.active.maybe_close_file()
    fs.remove(log.active.path())
    log.close()
    assert list(tmp_path.glob("*.log")) == []


def test_a_broker_that_was_killed_leaves_nothing_reserved(tmp_path, fs):
    log = opened(fs, str(tmp_path))
    grow(log, 5 * MB)
    flush(log)
    left = unused_bytes(tmp_path)
    again = opened(FailingFileSystem(), str(tmp_path), recovery_point=log.log_end)
    assert left == 0 or left > SLACK_BYTES
    assert unused_bytes(tmp_path) <= SLACK_BYTES
    assert read_all(again, bytes_max=8 * MB) == read_all(log, bytes_max=8 * MB)


def test_a_full_disk_is_not_asked_for_space_with_every_batch(tmp_path, fs):
    """To ask makes the file system search, and commit its journal, while nobody else has a turn."""
    log = opened(fs, str(tmp_path))
    grow(log, 5 * MB)
    count = len(fs.reserves)
    fs.before = fail("write")
    for _ in range(10):
        with pytest.raises(Refused, match="No space left"):
            append(log, [VALUE])
    assert len(fs.reserves) <= count + 1
    fs.before = succeed
    grow(log, 6 * MB)
    assert len(fs.reserves) > count


def test_space_that_cannot_be_given_back_stops_nothing(tmp_path, fs):
    log = opened(fs, str(tmp_path))
    grow(log, 5 * MB)
    fs.before = fail("trim")
    log.roll()
    append(log, [VALUE])
    assert log.failure is None
    assert len(read_all(log, bytes_max=8 * MB)) == log.log_end
