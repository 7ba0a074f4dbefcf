import pytest

from penstock.base.types import NO_TIMESTAMP, Offset, TopicPartition
from penstock.storage.recovery import open_log
from penstock.wire.batch import HEADER_BYTES, read_header

from .support import (
    NOW_MS,
    FailingFileSystem,
    TurnableClock,
    append,
    batch,
    by_time,
    flush,
    new_log,
    opened,
    read_all,
    split,
    values_of,
)

DAY_MS = 86_400_000


@pytest.fixture
def fs():
    return FailingFileSystem()


@pytest.fixture
def directory(tmp_path):
    return str(tmp_path / "topic-0")


def bases(log):
    return [segment.base_offset for segment in log.segments]


# Reading


def test_what_was_appended_is_read_byte_for_byte(fs, directory):
    log = opened(fs, directory)
    written = [append(log, [b"value %d" % number] * 3) for number in range(5)]
    assert log.log_end == 15
    assert read_all(log) == written
    assert read_all(log, 7) == written[2:]  # From inside a batch: the whole batch.


def test_reads_go_on_across_segments(fs, directory):
    log = opened(fs, directory, segment_bytes=1024)
    written = [append(log, [b"x" * 300]) for _ in range(20)]
    assert len(log.segments) > 5
    assert read_all(log) == written
    for offset in range(20):
        assert read_all(log, offset, bytes_max=HEADER_BYTES) == written[offset:]


def test_a_reader_at_the_end_finds_what_comes_after_a_roll(fs, directory):
    log = opened(fs, directory)
    append(log)
    assert len(read_all(log)) == 1
    log.roll()
    assert log.read(Offset(1), 1000, log.log_end, at_least_one=True) == b""
    second = append(log, [b"second"])
    assert bytes(log.read(Offset(1), 1000, log.log_end, at_least_one=True)) == second


def test_bytes_max_bounds_a_read_to_whole_batches(fs, directory):
    log = opened(fs, directory)
    written = [append(log, [b"x" * 100]) for _ in range(3)]
    size = len(written[0])
    for bytes_max, count in ((size - 1, 0), (size, 1), (size * 2 - 1, 1), (size * 2, 2), (10_000, 3), (0, 0)):
        data = log.read(Offset(0), bytes_max, log.log_end, at_least_one=False)
        assert split(data) == written[:count]
    for bytes_max in (0, 1, HEADER_BYTES, size - 1):
        assert split(log.read(Offset(0), bytes_max, log.log_end, at_least_one=True)) == written[:1]


def test_nothing_is_read_from_the_end_offset_on(fs, directory):
    log = opened(fs, directory)
    written = [append(log, [b"x"] * 2) for _ in range(3)]
    for end, count in ((0, 0), (2, 1), (4, 2), (6, 3)):
        assert split(log.read(Offset(0), 10_000, Offset(end), at_least_one=True)) == written[:count]
    assert log.read(Offset(4), 10_000, Offset(4), at_least_one=True) == b""
    assert log.read(Offset(6), 10_000, Offset(6), at_least_one=True) == b""


def test_many_readers_in_sequence_do_not_disturb_each_other(fs, directory):
    log = opened(fs, directory, segment_bytes=1024)
    written = [append(log, [b"%d" % number] * 2) for number in range(200)]
    positions = dict.fromkeys(range(0, 400, 2), 0)
    for start in positions:
        assert split(log.read(Offset(start), 90, log.log_end, at_least_one=True)) == [written[start // 2]]
    assert read_all(log) == written


def test_segments_without_records_are_passed_over(fs, directory):
    log = opened(fs, directory)
    first = append(log)
    log.roll()
    second = append(log)
    log.roll()
    third = append(log)
    middle = log.segments[1]
    middle.truncate(0)
    log.set_segments(log.segments)
    assert read_all(log) == [first, third]
    assert read_all(log, 1) == [third]
    assert second not in read_all(log)


# Rolling


def test_a_segment_rolls_before_it_grows_beyond_its_size(fs, directory):
    log = opened(fs, directory, segment_bytes=1024)
    for _ in range(10):
        append(log, [b"x" * 300])
    assert all(segment.size <= 1024 for segment in log.segments)
    assert bases(log) == [0, 2, 4, 6, 8]


def test_a_batch_larger_than_a_segment_gets_one_of_its_own(fs, directory):
    log = opened(fs, directory, segment_bytes=1024)
    written = [append(log, [b"x" * size]) for size in (10, 5000, 10)]
    assert bases(log) == [0, 1, 2]
    assert read_all(log, bytes_max=10) == written


def test_a_segment_rolls_when_its_index_is_full(fs, directory):
    log = opened(fs, directory, index_interval_bytes=0, segment_index_bytes=24)
    for _ in range(9):
        append(log)
    assert bases(log) == [0, 4, 8]


def test_a_segment_rolls_by_the_time_of_its_records(fs, directory):
    log = opened(fs, directory, segment_ms=1000)
    append(log, timestamp=NOW_MS)
    append(log, timestamp=NOW_MS + 1000)
    append(log, timestamp=NOW_MS + 1001)
    assert bases(log) == [0, 2]


def test_a_segment_without_timestamps_rolls_by_its_age(fs, directory):
    clock = TurnableClock()
    log = opened(fs, directory, clock=clock, segment_ms=1000)
    append(log, timestamp=-1)
    clock.pass_ms(1000)
    append(log, timestamp=-1)
    clock.pass_ms(1)
    append(log, timestamp=-1)
    assert bases(log) == [0, 2]


def test_a_compacted_log_rolls_when_its_records_must_not_wait_longer(fs, directory):
    log = opened(fs, directory, cleanup_policy=("compact",), segment_ms=DAY_MS, max_compaction_lag_ms=1000)
    append(log, timestamp=NOW_MS)
    append(log, timestamp=NOW_MS + 1001)
    assert bases(log) == [0, 1]


def test_roll_times_of_partitions_spread_within_the_jitter(fs, tmp_path):
    jitters = set()
    for partition in range(20):
        log = new_log(fs, str(tmp_path), segment_ms=DAY_MS, segment_jitter_ms=1000)
        log.topic_partition = TopicPartition("topic", partition)
        jitters.add(DAY_MS - log._roll_after_ms())
    assert len(jitters) > 10
    assert all(0 <= jitter < 1000 for jitter in jitters)


def test_an_empty_segment_does_not_roll(fs, directory):
    log = opened(fs, directory)
    assert log.roll() is log.roll()
    assert bases(log) == [0]


# Times


def test_the_first_record_at_or_after_a_time_is_found(fs, directory):
    log = opened(fs, directory, segment_bytes=1024, index_interval_bytes=100)
    for number in range(50):
        append(log, [b"x" * 50], timestamp=NOW_MS + number * 10)
    for number in range(50):
        for late_ms in (0, 3, 9):
            found = by_time(log, NOW_MS + number * 10 - late_ms)
            assert found is not None
            assert (found.offset, found.timestamp) == (number, NOW_MS + number * 10)
    assert by_time(log, NOW_MS + 491) is None
    assert by_time(log, NOW_MS + 400, Offset(40)) is None


def test_times_out_of_order_are_found_in_order_of_offset(fs, directory):
    log = opened(fs, directory, segment_bytes=1024, index_interval_bytes=100)
    times = [5, 90, 3, 70, 1, 80, 2, 95, 4, 6] * 5
    for number, time in enumerate(times):
        append(log, [b"x" * 50], timestamp=NOW_MS + time, leader_epoch=number)
    log.close()
    for wanted in range(97):
        expected = next((number for number, time in enumerate(times) if time >= wanted), None)
        found = by_time(log, NOW_MS + wanted)
        assert (found.offset if found else None) == expected
        assert found is None or found.leader_epoch == expected


def test_records_below_the_start_are_not_found_by_time(fs, directory):
    log = opened(fs, directory)
    for number in range(4):
        append(log, timestamp=NOW_MS + number)
    log.advance_start(Offset(2))
    assert by_time(log, NOW_MS).offset == 2


def test_the_largest_timestamp_is_the_first_record_that_has_it(fs, directory):
    log = opened(fs, directory, segment_bytes=1024)
    assert log.max_timestamp == NO_TIMESTAMP
    for time in (1, 9, 3, 9, 2):
        append(log, [b"x" * 600], timestamp=NOW_MS + time)
    assert by_time(log, log.max_timestamp)[:2] == (NOW_MS + 9, 1)


# Shortening


def test_the_oldest_segments_leave_and_the_log_starts_later(fs, directory):
    log = opened(fs, directory, segment_bytes=1024)
    written = [append(log, [b"x" * 600]) for _ in range(5)]
    paths = log.delete_oldest(2)
    assert all(path.endswith(".deleted") and fs.exists(path) for path in paths)
    assert len(paths) == 6
    assert (log.log_start, log.log_end) == (2, 5)
    assert read_all(log) == written[2:]


def test_a_log_that_loses_all_segments_goes_on_at_its_end(fs, directory):
    log = opened(fs, directory)
    append(log, [b"x"] * 3)
    log.delete_oldest(1)
    assert (log.log_start, log.log_end) == (3, 3)
    again = append(log)
    assert read_header(again).base_offset == 3
    assert read_all(log) == [again]


def test_a_moved_log_is_read_where_it_went(fs, directory):
    """A deleted topic's readers must not end up in the files of a new topic of the same name."""
    log = opened(fs, directory)
    old = append(log, [b"old"])
    flush(log)
    log.close()
    log.move(directory + "-delete")
    new = opened(fs, directory)
    append(new, [b"new"])
    assert read_all(log) == [old]
    assert values_of(read_all(new)) == [b"new"]


# Side files and syncing


def test_a_side_file_is_replaced_and_synced_with_the_next_flush(fs, directory):
    log = opened(fs, directory)
    log.put_side_file("leader-epoch-checkpoint", b"one")
    log.put_side_file("leader-epoch-checkpoint", b"two")
    assert fs.read_all(f"{directory}/leader-epoch-checkpoint") == b"two"
    assert log.needs_flush
    flush(log)
    assert not log.needs_flush
    assert not fs.exists(f"{directory}/leader-epoch-checkpoint.tmp")


def test_a_flush_covers_what_was_appended_when_it_began(fs, directory):
    log = opened(fs, directory)
    append(log)
    begun = log.begin_flush()
    append(log)
    begun.run()
    log.on_flushed(begun)
    assert (log.synced_end, log.log_end) == (1, 2)
    assert log.needs_flush
    flush(log)
    assert log.synced_end == 2
    assert not log.needs_flush


def test_a_flush_covers_the_segments_that_were_closed_meanwhile(fs, directory):
    log = opened(fs, directory, segment_bytes=1024)
    for _ in range(5):
        append(log, [b"x" * 600])
    begun = log.begin_flush()
    assert len(begun.files) == 5
    begun.run()
    log.on_flushed(begun)
    append(log, [b"x" * 600])
    assert len(log.begin_flush().files) == 1


def test_a_new_log_may_start_anywhere(fs, directory):
    log = new_log(fs, directory)
    open_log(log, fs, recovery_point=Offset(0), log_start=Offset(40), clean=False)
    assert (log.log_start, log.log_end, log.synced_end) == (40, 40, 40)
    assert read_header(batch(40)).base_offset == 40
    append(log)
    assert bases(log) == [40]
