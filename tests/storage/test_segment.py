"""Index damage: whatever an index file holds, reads find the right batch."""

import struct
from random import Random

import pytest

from penstock.base.errors import ErrorCode, Refused
from penstock.storage.log import Log
from penstock.storage.segment import NotCached, Segment
from penstock.wire.batch import read_header

from .support import NOW_MS, FailingFileSystem, append, by_time, flush, opened, patient, read_all

BATCHES = 60


@pytest.fixture
def directory(tmp_path):
    """A log of one closed segment with some twenty index entries, and an empty active one."""
    log = opened(FailingFileSystem(), str(tmp_path), index_interval_bytes=200)
    for number in range(BATCHES):
        append(log, [b"v" * 20, b"w" * (number % 7)], timestamp=NOW_MS + number)
    log.roll()
    flush(log)
    log.close()
    return tmp_path


def reopen(directory) -> Log:
    return opened(FailingFileSystem(), str(directory), recovery_point=BATCHES * 2, clean=True, index_interval_bytes=200)


def check_reads(log: Log) -> None:
    for offset in range(BATCHES * 2):
        data = patient(lambda at=offset: log.read(at, 100, log.log_end, at_least_one=True))
        assert read_header(data).base_offset == offset - offset % 2
    for number in range(BATCHES):
        found = by_time(log, NOW_MS + number)
        assert found is not None
        assert (found.timestamp, found.offset) == (NOW_MS + number, number * 2)
    assert log.segments[0].max_timestamp == NOW_MS + BATCHES - 1
    assert by_time(log, patient(lambda: log.max_timestamp)).offset == (BATCHES - 1) * 2


def index_of(directory, kind: str):
    return directory / f"{0:020d}.{kind}"


@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_a_missing_index_is_rebuilt(directory, kind):
    index_of(directory, kind).unlink()
    check_reads(reopen(directory))
    assert index_of(directory, kind).stat().st_size > 0


@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_an_index_cut_anywhere_does_not_mislead(directory, kind):
    whole = index_of(directory, kind).read_bytes()
    for size in range(0, len(whole), 3):
        index_of(directory, kind).write_bytes(whole[:size])
        log = reopen(directory)
        assert log.segments[0].max_timestamp == NOW_MS + BATCHES - 1
        data = patient(lambda at=log: at.read(BATCHES, 100, at.log_end, at_least_one=True))
        assert read_header(data).base_offset == BATCHES
        log.close()
    index_of(directory, kind).write_bytes(b"")
    check_reads(reopen(directory))


@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_garbage_in_an_index_does_not_mislead(directory, kind):
    random = Random(kind)
    for size in (8, 12, 120, 4800):
        index_of(directory, kind).write_bytes(random.randbytes(size))
        check_reads(reopen(directory))
    index_of(directory, kind).write_bytes(bytes(240))
    check_reads(reopen(directory))


@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_no_single_flipped_bit_in_an_index_misleads(directory, kind):
    whole = index_of(directory, kind).read_bytes()
    other = "timeindex" if kind == "index" else "index"
    untouched = index_of(directory, other).read_bytes()
    for bit in Random(kind).sample(range(len(whole) * 8), 60):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        index_of(directory, kind).write_bytes(flipped)
        index_of(directory, other).write_bytes(untouched)
        log = reopen(directory)
        check_reads(log)
        log.close()


def test_an_index_that_increases_and_points_between_batches_does_not_mislead(directory):
    whole = index_of(directory, "index").read_bytes()
    for shift in (1, 7, 61, 85):
        entries = [(offset, position + shift) for offset, position in struct.iter_unpack(">II", whole)]
        index_of(directory, "index").write_bytes(b"".join(struct.pack(">II", *entry) for entry in entries))
        check_reads(reopen(directory))


def test_an_index_that_names_wrong_offsets_does_not_mislead(directory):
    whole = index_of(directory, "index").read_bytes()
    for shift in (-3, -1, 1, 3):
        entries = [(offset + shift, position) for offset, position in struct.iter_unpack(">II", whole)]
        index_of(directory, "index").write_bytes(b"".join(struct.pack(">II", *entry) for entry in entries))
        check_reads(reopen(directory))


def test_one_wrong_entry_in_the_middle_does_not_mislead(directory):
    """Both ends are right, so that nobody notices before it is used."""
    whole = list(struct.iter_unpack(">II", index_of(directory, "index").read_bytes()))
    middle = len(whole) // 2
    for shift in (-3, 3):
        entries = list(whole)
        entries[middle] = (whole[middle][0] + shift, whole[middle][1])
        assert entries == sorted(entries)
        index_of(directory, "index").write_bytes(b"".join(struct.pack(">II", *entry) for entry in entries))
        check_reads(reopen(directory))


def test_a_batch_inside_a_value_is_not_taken_for_a_batch(tmp_path):
    """Values may be batches themselves: topics that mirror raw segments. An index must not lead into one."""
    inner = opened(FailingFileSystem(), f"{tmp_path}/inner")
    trap = append(inner, [b"trap"])
    log = opened(FailingFileSystem(), f"{tmp_path}/outer", index_interval_bytes=0)
    batches = [append(log, [trap], timestamp=NOW_MS + number) for number in range(9)]
    log.roll()
    flush(log)
    positions = [sum(map(len, batches[:number])) + batches[number].index(trap) for number in range(1, 9)]
    index = index_of(tmp_path / "outer", "index")
    index.write_bytes(b"".join(struct.pack(">II", number + 1, at) for number, at in enumerate(positions)))
    log = opened(FailingFileSystem(), f"{tmp_path}/outer", recovery_point=9, clean=True)
    for offset in range(9):
        assert read_all(log, offset) == batches[offset:]


def test_a_damaged_log_is_refused_not_skipped(directory):
    log = directory / f"{0:020d}.log"
    data = bytearray(log.read_bytes())
    header = read_header(data)
    struct.pack_into(">i", data, header.size + 8, -5)
    log.write_bytes(data)
    reopened = reopen(directory)
    for offset in (2, 3, 50):
        for _ in range(2):
            with pytest.raises(Refused) as refused:
                patient(lambda at=offset: reopened.read(at, 1000, reopened.log_end, at_least_one=True))
            assert refused.value.code == ErrorCode.corrupt_message


def test_a_segment_never_makes_a_file_that_is_gone(directory):
    log = reopen(directory)
    (directory / f"{0:020d}.log").unlink()
    with pytest.raises(FileNotFoundError):
        log.read(0, 100, log.log_end, at_least_one=True)
    assert not (directory / f"{0:020d}.log").exists()


def test_bytes_that_are_not_cached_are_asked_for(directory, monkeypatch):
    log = reopen(directory)
    read_all(log, 0, 100)
    monkeypatch.setattr(log.segments[0].file, "read_cached", lambda position, size: None)
    with pytest.raises(NotCached) as miss:
        log.read(0, 100, log.log_end, at_least_one=True)
    miss.value.load()
    log.segments[0].close()
    miss.value.load()  # The file was closed meanwhile: no harm.


def test_truncation_cuts_the_indexes_too(directory):
    log = reopen(directory)
    segment: Segment = log.segments[0]
    position = segment.locate(BATCHES)
    segment.truncate(position)
    assert segment.size == segment.file.size() == position
    assert segment.max_timestamp == NOW_MS + BATCHES // 2 - 1
    assert segment.locate(BATCHES) == position
    assert segment.locate(BATCHES - 1) < position
