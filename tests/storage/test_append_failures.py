"""A disk that does not take a batch: nothing of it stays, and the log goes on when the disk does."""

import errno

import pytest

from penstock.base.errors import ErrorCode, Refused

from .support import FailingFileSystem, append, fail, flush, opened, read_all, succeed


@pytest.fixture
def fs():
    return FailingFileSystem()


@pytest.fixture
def directory(tmp_path):
    return str(tmp_path / "topic-0")


def refused_append(log, values=(b"refused",)):
    with pytest.raises(Refused) as refused:
        append(log, values)
    assert refused.value.code == ErrorCode.kafka_storage_error


@pytest.mark.parametrize("written_bytes", [None, 1, 40, 61, 100])
def test_a_full_disk_leaves_nothing_half_written(fs, directory, written_bytes):
    log = opened(fs, directory)
    kept = [append(log) for _ in range(3)]
    size = fs.size(log.active.path())
    fs.before, fs.write_bytes_max = fail("write"), written_bytes
    for _ in range(3):
        refused_append(log, [b"x" * 200])
        assert fs.size(log.active.path()) == size
    assert log.log_end == 3
    assert read_all(log) == kept
    fs.before = succeed
    kept.append(append(log, [b"after space was freed"]))
    assert read_all(log) == kept
    flush(log)
    assert read_all(opened(FailingFileSystem(), directory)) == kept


def test_a_write_that_cannot_be_undone_ends_all_appends(fs, directory):
    log = opened(fs, directory)
    kept = append(log)
    failed = []
    log.on_failed = lambda: failed.append(True)
    fs.before, fs.write_bytes_max = fail("write", "truncate"), 50
    refused_append(log)
    assert failed == [True]
    fs.before = succeed
    refused_append(log)
    assert read_all(log) == [kept]
    assert read_all(opened(FailingFileSystem(), directory, recovery_point=0)) == [kept]


def test_a_disk_that_does_not_even_tell_a_size_ends_all_appends(fs, directory, monkeypatch):
    log = opened(fs, directory)
    append(log)

    def size() -> int:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(log.active.file, "size", size)
    fs.before = fail("write", code=errno.EIO)
    refused_append(log)
    assert log.failure is not None


@pytest.mark.parametrize(
    ("operation", "suffix"), [("create", ".index"), ("write", ".index"), ("write", ".timeindex"), ("create", ".log")]
)
def test_a_roll_that_fails_leaves_the_old_segment_in_use(fs, directory, operation, suffix):
    log = opened(fs, directory, segment_bytes=1024, index_interval_bytes=0)
    kept = [append(log, [b"x" * 300]) for _ in range(2)]
    fs.before, fs.write_bytes_max = fail(operation, suffix=suffix), 5
    for _ in range(3):
        refused_append(log, [b"x" * 600])
    assert len(log.segments) == 1
    assert log.failure is None
    assert len([name for name in fs.listdir(directory) if name.endswith(".log")]) == 1
    kept.append(append(log, [b"fits"]))
    fs.before = succeed
    kept.append(append(log, [b"x" * 600]))
    assert [segment.base_offset for segment in log.segments] == [0, 3]
    for offset in range(4):
        assert read_all(log, offset) == kept[offset:]
    flush(log)
    reopened = opened(FailingFileSystem(), directory, recovery_point=4, segment_bytes=1024)
    for offset in range(4):
        assert read_all(reopened, offset) == kept[offset:]


def test_a_side_file_that_cannot_be_written_leaves_the_old_one(fs, directory):
    log = opened(fs, directory)
    log.put_side_file("partition.metadata", b"old")
    for operation in ("create", "write", "rename"):
        fs.before = fail(operation, suffix=".tmp")
        with pytest.raises(OSError, match="space"):
            log.put_side_file("partition.metadata", b"new")
        fs.before = succeed
        assert fs.read_all(f"{directory}/partition.metadata") == b"old"
    log.put_side_file("partition.metadata", b"new")
    assert fs.read_all(f"{directory}/partition.metadata") == b"new"


def test_every_nth_write_may_fail_and_no_acked_batch_is_lost(fs, directory):
    log = opened(fs, directory, segment_bytes=1024, index_interval_bytes=0)
    kept = []
    count = 0

    def every_third_write_fails(operation, path):
        nonlocal count
        if operation in ("write", "create"):
            count += 1
            fail("write", "create")(operation, path) if count % 3 == 0 else None

    fs.before, fs.write_bytes_max = every_third_write_fails, 30
    for number in range(100):
        try:
            kept.append(append(log, [b"%d" % number * 100]))
        except Refused as refused:
            assert refused.code == ErrorCode.kafka_storage_error
    assert 30 < len(kept) < 100
    assert read_all(log) == kept
    fs.before = succeed
    assert read_all(opened(FailingFileSystem(), directory, segment_bytes=1024)) == kept
