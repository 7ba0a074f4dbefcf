import pytest

from penstock.base.topic_config import TopicConfig
from penstock.base.types import Offset
from penstock.storage.compaction import PRODUCER_EXPIRY_MS, Compaction
from penstock.storage.compaction_plan import Closed
from penstock.storage.scan import BadBatch, scan_batches
from penstock.storage.segment_indexes import SegmentIndexes
from penstock.wire.batch import read_header, records_of

from .support import DECOMPRESSED_MAX, NOW_MS, FailingFileSystem, append, fail, flush, opened, succeed


@pytest.fixture
def fs():
    return FailingFileSystem()


@pytest.fixture
def log(fs, tmp_path):
    return opened(fs, str(tmp_path), cleanup_policy=("compact",), index_interval_bytes=0)


def put(log, *pairs, **options):
    append(log, [value for _, value in pairs], keys=[key for key, _ in pairs], **options)


def closed_segments(log):
    return [
        Closed(segment.base_offset, following.base_offset, segment.size, -1, -1)
        for segment, following in zip(log.segments, log.segments[1:], strict=False)
    ]


def finish(work):
    """What a generator returns."""
    while True:
        try:
            next(work)
        except StopIteration as stop:
            return stop.value


def compaction(fs, log, **options):
    log.roll()
    flush(log)
    segments = closed_segments(log)
    defaults = {"first_dirty": Offset(0), "end": segments[-1].end_offset, "now_ms": NOW_MS}
    return Compaction(
        fs=fs,
        directory=log.directory,
        segments=segments,
        config=log.config,
        decompressed_bytes_max=DECOMPRESSED_MAX,
        **{**defaults, **options},
    )


def cleaned_batches(fs, log, base=0):
    data = fs.read_all(f"{log.directory}/{base:020d}.log.cleaned")
    return [bytes(found.view) for found in scan_batches(lambda at, size: data[at : at + size], 0, len(data), 0)]


def cleaned_records(fs, log, base=0):
    return [
        (record.offset, record.key, record.value)
        for one in cleaned_batches(fs, log, base)
        for record in records_of(one, decompressed_bytes_max=DECOMPRESSED_MAX)
    ]


def test_the_last_value_of_each_key_stays_under_its_offset(fs, log):
    put(log, (b"a", b"1"), (b"b", b"1"))
    put(log, (b"a", b"2"))
    log.roll()
    put(log, (b"c", b"1"), (b"a", b"3"))
    work = compaction(fs, log)
    finish(work.learn())
    assert work.end == 5
    cleaned = finish(work.write(closed_segments(log)))
    assert cleaned_records(fs, log) == [(1, b"b", b"1"), (3, b"c", b"1"), (4, b"a", b"3")]
    assert cleaned.size == fs.size(f"{log.directory}/{0:020d}.log.cleaned")


def test_the_new_segment_has_indexes_that_fit(fs, log):
    for number in range(30):
        put(log, (b"%d" % (number % 20), b"x" * 50), timestamp=NOW_MS + number)
    work = compaction(fs, log)
    finish(work.learn())
    cleaned = finish(work.write(closed_segments(log)))
    expected = SegmentIndexes(Offset(0))
    position = 0
    for one in cleaned_batches(fs, log):
        header = read_header(one)
        expected.note(position, header.size, header.last_offset, header.max_timestamp, 0)
        position += header.size
    expected.finish()
    assert position == cleaned.size
    assert fs.read_all(f"{log.directory}/{0:020d}.index.cleaned") == expected.offsets.data
    assert fs.read_all(f"{log.directory}/{0:020d}.timeindex.cleaned") == expected.times.data


def test_only_the_dirty_part_is_learnt_and_all_of_it_is_cleaned(fs, log):
    put(log, (b"a", b"1"), (b"b", b"1"))
    log.roll()
    put(log, (b"a", b"2"))
    work = compaction(fs, log, first_dirty=Offset(2))
    finish(work.learn())
    finish(work.write(closed_segments(log)))
    assert cleaned_records(fs, log) == [(1, b"b", b"1"), (2, b"a", b"2")]


def test_a_full_map_ends_the_pass_early_and_loses_nothing(fs, log):
    for number in range(10):
        put(log, (b"%d" % number, b"old"), (b"same", b"%d" % number))
    work = compaction(fs, log, entries_max=6)
    finish(work.learn())
    assert work.end == 8  # Four batches: four keys of their own and the one they share; two more might not fit.
    finish(work.write(closed_segments(log)))
    records = cleaned_records(fs, log)
    assert [value for _, key, value in records if key == b"same"] == [b"3", b"4", b"5", b"6", b"7", b"8", b"9"]
    assert len([key for _, key, _ in records if key != b"same"]) == 10


def test_the_last_batch_of_a_pass_stays_so_that_the_log_does_not_seem_to_end_earlier(fs, log):
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    put(log, (None, b"no key"))
    work = compaction(fs, log)
    finish(work.learn())
    finish(work.write(closed_segments(log)))
    headers = [read_header(one) for one in cleaned_batches(fs, log)]
    assert [(header.base_offset, header.records_count) for header in headers] == [(1, 1), (2, 0)]


def test_the_last_batch_of_each_live_producer_stays(fs, log):
    """Its sequence numbers tell a duplicate from a new batch."""
    long_ago = NOW_MS - PRODUCER_EXPIRY_MS
    for producer_id, timestamp in ((1, NOW_MS), (1, NOW_MS), (2, long_ago), (3, NOW_MS)):
        put(log, (b"a", b"x"), producer_id=producer_id, base_sequence=5, producer_epoch=0, timestamp=timestamp)
    log.roll()
    put(log, (b"a", b"last"), producer_id=3, base_sequence=6, producer_epoch=0)
    for first_dirty in (0, 4):
        work = compaction(fs, log, first_dirty=Offset(first_dirty))
        finish(work.learn())
        finish(work.write(closed_segments(log)))
        headers = [read_header(one) for one in cleaned_batches(fs, log)]
        assert [(header.base_offset, header.records_count) for header in headers] == [(1, 0), (4, 1)]
        assert headers[0].base_sequence == 5


@pytest.mark.parametrize("position", [65, 70, 75, 90, 130])
def test_a_damaged_source_ends_the_work(fs, log, position):
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    work = compaction(fs, log)
    path = f"{log.directory}/{0:020d}.log"
    data = bytearray(fs.read_all(path))
    data[position] ^= 1
    with open(path, "wb") as file:  # noqa: PTH123
        file.write(data)
    with pytest.raises(BadBatch):
        finish(work.learn())
    with pytest.raises(BadBatch):
        finish(work.write(closed_segments(log)))
    assert not any("cleaned" in name for name in fs.listdir(log.directory))


@pytest.mark.parametrize("operation", ["write", "sync", "create"])
def test_a_full_disk_leaves_nothing_behind(fs, log, operation):
    put(log, (b"a", b"1"))
    work = compaction(fs, log)
    finish(work.learn())
    fs.before, fs.write_bytes_max = fail(operation, suffix=".cleaned"), 10
    with pytest.raises(OSError, match="space"):
        finish(work.write(closed_segments(log)))
    assert not any("cleaned" in name for name in fs.listdir(log.directory))
    fs.before = succeed
    finish(work.write(closed_segments(log)))
    assert cleaned_records(fs, log) == [(0, b"a", b"1")]


def test_work_that_is_given_up_leaves_nothing_behind(fs, log):
    put(log, (b"a", b"1"))
    put(log, (b"b", b"1"))
    work = compaction(fs, log)
    finish(work.learn())
    writing = work.write(closed_segments(log))
    next(writing)
    writing.close()
    assert not any("cleaned" in name for name in fs.listdir(log.directory))


def test_the_config_of_the_topic_decides_about_tombstones(fs, tmp_path):
    log = opened(fs, str(tmp_path), cleanup_policy=("compact",), delete_retention_ms=500)
    put(log, (b"a", None), (b"b", b"1"))
    work = compaction(fs, log)
    finish(work.learn())
    finish(work.write(closed_segments(log)))
    assert read_header(cleaned_batches(fs, log)[0]).base_timestamp == NOW_MS + 500
    assert TopicConfig().delete_retention_ms == 86_400_000
