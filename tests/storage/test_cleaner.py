import asyncio
import errno
import threading
from functools import partial

import pytest

from penstock.base.topic_config import TopicConfig
from penstock.base.types import Offset, TopicPartition
from penstock.storage.fs import PosixFileSystem
from penstock.storage.swap import SOURCES_SUFFIX
from penstock.wire.batch import read_header

from .support import (
    NOW_MS,
    TOPIC_ID,
    TP,
    FailingFileSystem,
    TurnableClock,
    append,
    fail,
    latest_values,
    manager,
    read_all,
    run,
    split,
    succeed,
    until,
    values_of,
)

COMPACT = TopicConfig(
    cleanup_policy=("compact",), segment_bytes=2048, min_cleanable_dirty_ratio=0.1, file_delete_delay_ms=0
)


def started(fs, tmp_path, clock=None, **options):
    logs = manager(fs, tmp_path / "data", clock, **options)
    logs.start()
    return logs


def put(log, key, value, **options):
    append(log, [value], keys=[key], **options)


async def fill(logs, log, count=100, keys=7, **options):
    """Write over a few keys many times; gives the last value of each."""
    expected = {}
    for number in range(count):
        key, value = b"key-%d" % (number % keys), b"value-%d" % number + b"." * 50
        put(log, key, value, **options)
        expected[key] = value
    await commit(logs, log)
    return expected


async def commit(logs, log):
    logs.commit.request(log)
    await logs.commit.finish(log)


def closed_records(log, end=None):
    end = log.active.base_offset if end is None else end
    return sum(read_header(one).records_count for one in read_all(log) if read_header(one).base_offset < end)


def test_a_dirty_log_is_compacted_and_keeps_the_last_value_of_each_key(tmp_path):
    async def life():
        logs = started(PosixFileSystem(), tmp_path)
        log = logs.open(TP, TOPIC_ID, COMPACT)
        expected = await fill(logs, log)
        size, active_base, log_end = log.size, log.active.base_offset, log.log_end
        await logs.cleaner.clean_all()
        assert latest_values(log) == expected
        assert log.size < size / 2
        assert closed_records(log) == 7
        assert (log.log_end, log.active.base_offset) == (log_end, active_base)
        offsets = [read_header(one).base_offset for one in read_all(log)]
        assert offsets == sorted(set(offsets))
        path = tmp_path / "data" / "cleaner-offset-checkpoint"
        assert path.read_text() == f"0\n1\ntopic 0 {active_base}\n"
        names = partial(PosixFileSystem().listdir, log.directory)
        await until(lambda: not [name for name in names() if "0.log." in name or "swap" in name])
        more = await fill(logs, log, 50, keys=3)
        await logs.stop()
        return {**expected, **more}

    async def next_life():
        logs = started(PosixFileSystem(), tmp_path)
        log = logs.open(TP, TOPIC_ID, COMPACT)
        assert latest_values(log) == expected
        await logs.cleaner.clean_all()
        assert latest_values(log) == expected
        await logs.stop()

    expected = run(life())
    run(next_life())


def test_a_clean_log_is_left_alone(tmp_path):
    async def life():
        logs = started(FailingFileSystem(), tmp_path)
        log = logs.open(TP, TOPIC_ID, COMPACT)
        await fill(logs, log)
        await logs.cleaner.clean_all()
        segments = list(log.segments)
        await logs.cleaner.clean_all()
        assert log.segments == segments
        await logs.stop()

    run(life())


def test_logs_of_other_policies_are_left_alone(tmp_path):
    async def life():
        logs = started(FailingFileSystem(), tmp_path)
        log = logs.open(TP, TOPIC_ID, TopicConfig(segment_bytes=2048, min_cleanable_dirty_ratio=0.0))
        await fill(logs, log)
        segments = list(log.segments)
        await logs.cleaner.clean_all()
        assert log.segments == segments
        await logs.stop()

    run(life())


def test_the_dirtiest_log_comes_first(tmp_path):
    async def life():
        logs = started(FailingFileSystem(), tmp_path)
        opened = {}
        for name, count in (("a", 60), ("b", 200), ("c", 100)):
            log = opened[name] = logs.open(TopicPartition(name, 0), TOPIC_ID, COMPACT)
            await fill(logs, log, 100)
            logs.cleaner.cleaned_to[log.topic_partition] = log.segments[3].base_offset
            await fill(logs, log, count)
        order = []
        clean = logs.cleaner._clean

        async def noted(log, dirty):
            order.append(log.topic_partition.topic)
            await clean(log, dirty)

        logs.cleaner._clean = noted
        await logs.cleaner.clean_all()
        assert order == ["b", "c", "a"]
        await logs.stop()

    run(life())


def test_what_is_above_the_high_watermark_is_not_cleaned(tmp_path):
    async def life():
        logs = started(FailingFileSystem(), tmp_path)
        log = logs.open(TP, TOPIC_ID, COMPACT)
        await fill(logs, log)
        logs.high_watermark_of = lambda tp: log.segments[2].base_offset
        kept = log.segments[2:]
        await logs.cleaner.clean_all()
        assert log.segments[2:] == kept
        assert closed_records(log, kept[0].base_offset) == 7
        await logs.stop()

    run(life())


def test_records_wait_for_the_lag(tmp_path):
    async def life():
        clock = TurnableClock()
        logs = started(FailingFileSystem(), tmp_path, clock)
        config = TopicConfig(cleanup_policy=("compact",), segment_bytes=2048, min_compaction_lag_ms=60_000)
        log = logs.open(TP, TOPIC_ID, config)
        expected = await fill(logs, log)
        count = closed_records(log)
        await logs.cleaner.clean_all()
        assert closed_records(log) == count
        clock.pass_ms(60_001)
        await logs.cleaner.clean_all()
        assert closed_records(log) == 7
        assert latest_values(log) == expected
        await logs.stop()

    run(life())


def test_records_that_waited_for_too_long_are_cleaned_whatever_the_ratio(tmp_path):
    async def life():
        clock = TurnableClock()
        logs = started(FailingFileSystem(), tmp_path, clock)
        config = TopicConfig(
            cleanup_policy=("compact",), segment_bytes=2048, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=60_000
        )
        log = logs.open(TP, TOPIC_ID, config)
        await fill(logs, log)
        await logs.cleaner.clean_all()
        assert closed_records(log) > 7
        clock.pass_ms(60_001)
        log.close()
        await logs.cleaner.clean_all()
        assert closed_records(log) == 7
        await logs.stop()

    run(life())


def test_tombstones_go_once_everyone_had_time_to_see_them(tmp_path):
    async def life():
        clock = TurnableClock()
        logs = started(FailingFileSystem(), tmp_path, clock)
        config = TopicConfig(
            cleanup_policy=("compact",), segment_bytes=2048, min_cleanable_dirty_ratio=0.0, delete_retention_ms=1000
        )
        log = logs.open(TP, TOPIC_ID, config)
        put(log, b"gone", b"value")
        put(log, b"gone", None)
        await fill(logs, log)
        await logs.cleaner.clean_all()
        assert latest_values(log)[b"gone"] is None
        clock.pass_ms(999)
        await fill(logs, log)
        await logs.cleaner.clean_all()
        assert b"gone" in latest_values(log)
        clock.pass_ms(1)
        await fill(logs, log)
        await logs.cleaner.clean_all()
        assert b"gone" not in latest_values(log)
        await logs.stop()

    run(life())


def test_a_clock_that_jumps_takes_no_tombstone_early(tmp_path):
    async def life():
        clock = TurnableClock()
        logs = started(FailingFileSystem(), tmp_path, clock)
        log = logs.open(TP, TOPIC_ID, COMPACT)
        put(log, b"gone", None)
        await fill(logs, log)
        await logs.cleaner.clean_all()
        await fill(logs, log)
        clock.wall_ms += 10 * 365 * 86_400_000
        await logs.cleaner.clean_all()
        assert b"gone" in latest_values(log)
        await logs.stop()

    run(life())


def test_a_log_with_more_keys_than_memory_is_cleaned_in_rounds(tmp_path):
    async def life():
        logs = started(FailingFileSystem(), tmp_path)
        logs.cleaner._entries_max = 20
        log = logs.open(
            TP, TOPIC_ID, TopicConfig(cleanup_policy=("compact",), segment_bytes=2048, min_cleanable_dirty_ratio=0.0)
        )
        expected = await fill(logs, log, 300, keys=50)
        await logs.cleaner.clean_all()
        assert latest_values(log) == expected
        records = len(read_all(log)) - log.active.size // 100
        assert records < 150
        assert logs.cleaner.cleaned_to[TP] == log.active.base_offset
        await logs.stop()

    run(life())


def test_a_reader_goes_on_through_a_compaction(tmp_path):
    async def life():
        logs = started(FailingFileSystem(), tmp_path)
        log = logs.open(TP, TOPIC_ID, COMPACT)
        expected = await fill(logs, log)
        cleaning = asyncio.create_task(logs.cleaner.clean_all())
        seen, position = {}, Offset(0)
        while position < log.log_end:
            data = log.read(position, 300, log.log_end, at_least_one=True)
            header = read_header(data)
            assert header.next_offset > position
            for one in split(data):
                seen[read_header(one).base_offset] = values_of([one])
                position = Offset(read_header(one).next_offset)
            await asyncio.sleep(0.001)
        await cleaning
        last = {value for values in seen.values() for value in values}
        assert set(expected.values()) <= last
        await logs.stop()

    run(life())


def test_appends_and_rolls_go_on_during_a_compaction(tmp_path):
    async def life():
        logs = started(FailingFileSystem(), tmp_path)
        log = logs.open(TP, TOPIC_ID, COMPACT)
        expected = await fill(logs, log, 300)
        cleaning = asyncio.create_task(logs.cleaner.clean_all())
        for _ in range(20):
            expected.update(await fill(logs, log, 10, keys=5))
            await asyncio.sleep(0)
        await cleaning
        assert latest_values(log) == expected
        await logs.stop()
        after = started(FailingFileSystem(), tmp_path)
        assert latest_values(after.open(TP, TOPIC_ID, COMPACT)) == expected

    run(life())


@pytest.mark.parametrize("turns", range(0, 30, 2))
def test_a_topic_may_be_deleted_and_made_anew_during_its_compaction(tmp_path, turns):
    async def life():
        logs = started(FailingFileSystem(), tmp_path)
        log = logs.open(TP, TOPIC_ID, COMPACT)
        await fill(logs, log, 200)
        cleaning = asyncio.create_task(logs.cleaner.clean_all())
        for _ in range(turns):
            await asyncio.sleep(0)
        logs.delete(TP)
        again = logs.open(TP, TOPIC_ID, COMPACT)
        expected = await fill(logs, again, 50, keys=4)
        await cleaning
        assert logs.offline is None
        assert latest_values(again) == expected
        await logs.cleaner.clean_all()
        assert latest_values(again) == expected
        await logs.stop()
        after = started(FailingFileSystem(), tmp_path)
        assert latest_values(after.open(TP, TOPIC_ID, COMPACT)) == expected
        await after.stop()

    run(life())


def test_a_compaction_that_meets_the_files_of_a_topic_made_anew_says_nothing_of_that_topic(tmp_path):
    """Its files have the names that those of the topic before it had."""

    async def life():
        fs = FailingFileSystem()
        logs = started(fs, tmp_path)
        await fill(logs, logs.open(TP, TOPIC_ID, COMPACT), 200)
        at_file, go_on = threading.Event(), threading.Event()

        def hold(operation, path):
            if operation == "open" and threading.current_thread() is not threading.main_thread():
                at_file.set()
                go_on.wait()

        fs.before = hold
        cleaning = asyncio.create_task(logs.cleaner.clean_all())
        await asyncio.to_thread(at_file.wait)
        fs.before = succeed
        logs.delete(TP)
        again = logs.open(TP, TOPIC_ID, COMPACT)
        put(again, b"key-0", b"value")
        go_on.set()
        await cleaning
        assert logs.cleaner.uncleanable == {}
        expected = await fill(logs, again)
        await logs.cleaner.clean_all()
        assert closed_records(again) == 7
        assert latest_values(again) == expected
        await logs.stop()

    run(life())


def test_a_topic_made_anew_does_not_inherit_how_far_the_one_before_was_compacted(tmp_path):
    class AfterSwap(FailingFileSystem):
        """Somebody else has a turn of the loop when a swap is over."""

        async def run(self, function):
            removed = []
            self.before = lambda operation, path: removed.append(path) if operation == "remove" else None
            result = await super().run(function)
            if any(path.endswith(SOURCES_SUFFIX) for path in removed):
                made_anew()
            return result

    def made_anew():
        logs.delete(TP)
        logs.open(TP, TOPIC_ID, COMPACT)

    async def life():
        log = logs.open(TP, TOPIC_ID, COMPACT)
        await fill(logs, log, 25)
        assert len(log.segments) == 2, "one swap is the last"
        await logs.cleaner.clean_all()
        again = logs.logs[TP]
        assert again is not log
        assert logs.cleaner.cleaned_to == {}
        await logs.stop()

    logs = started(AfterSwap(), tmp_path)
    run(life())


@pytest.mark.parametrize("turns", range(0, 30, 3))
def test_a_stop_during_a_compaction_loses_nothing(tmp_path, turns):
    async def life():
        logs = started(PosixFileSystem(), tmp_path, log_cleaner_backoff_ms=0)
        log = logs.open(TP, TOPIC_ID, COMPACT)
        expected = await fill(logs, log, 200)
        logs.start_loops()
        for _ in range(turns):
            await asyncio.sleep(0)
        await logs.stop()
        after = started(PosixFileSystem(), tmp_path)
        assert latest_values(after.open(TP, TOPIC_ID, COMPACT)) == expected
        await after.stop()

    run(life())


def test_a_damaged_log_is_not_cleaned_again_and_again(tmp_path):
    async def life():
        logs = started(FailingFileSystem(), tmp_path)
        log = logs.open(TP, TOPIC_ID, COMPACT)
        await fill(logs, log)
        path = log.segments[1].path()
        data = bytearray(FailingFileSystem().read_all(path))
        data[100] ^= 1
        with open(path, "wb") as file:  # noqa: PTH123, ASYNC230
            file.write(data)
        segments = list(log.segments)
        await logs.cleaner.clean_all()
        assert TP in logs.cleaner.uncleanable
        assert log.segments == segments
        assert log.failure is None
        logs.delete(TP)
        assert TP not in logs.cleaner.uncleanable
        await logs.stop()

    run(life())


def test_a_full_disk_only_puts_compaction_off(tmp_path):
    async def life():
        fs = FailingFileSystem()
        logs = started(fs, tmp_path)
        log = logs.open(TP, TOPIC_ID, COMPACT)
        expected = await fill(logs, log)
        for operation in ("create", "write", "sync"):
            fs.before = fail(operation, suffix=".cleaned")
            await logs.cleaner.clean_all()
            assert latest_values(log) == expected
            assert closed_records(log) > 7
            assert (logs.offline, log.failure, log.is_cleaning) == (None, None, False)
        fs.before = succeed
        await logs.cleaner.clean_all()
        assert closed_records(log) == 7
        assert latest_values(log) == expected
        await logs.stop()

    run(life())


@pytest.mark.parametrize("suffix", [".log.swap", ".index.swap", ".timeindex.swap"])
def test_a_swap_that_fails_half_way_takes_the_directory_offline_and_is_completed_by_the_next_start(tmp_path, suffix):
    async def life():
        fs = FailingFileSystem()
        logs = started(fs, tmp_path)
        log = logs.open(TP, TOPIC_ID, COMPACT)
        expected = await fill(logs, log)
        fs.before = fail("rename", suffix=suffix, code=errno.EIO)
        await logs.cleaner.clean_all()
        assert logs.offline is not None
        await logs.stop()
        after = started(FailingFileSystem(), tmp_path)
        log = after.open(TP, TOPIC_ID, COMPACT)
        assert latest_values(log) == expected
        assert closed_records(log, log.segments[1].base_offset) == 0  # Everything there was written again later.
        await after.stop()

    run(life())


def test_records_are_synced_and_checkpointed_before_they_are_compacted(tmp_path):
    """Above the recovery point a gap counts as a loss; and sources must not be removed before they were safe."""

    async def life():
        logs = started(FailingFileSystem(), tmp_path)
        log = logs.open(TP, TOPIC_ID, TopicConfig(cleanup_policy=("compact",), segment_bytes=2048, durability="os"))
        for number in range(100):
            put(log, b"key", b"%d" % number + b"." * 50)
        logs.high_watermark_of = lambda tp: log.log_end
        assert log.synced_end == 0
        await logs.cleaner.clean_all()
        assert log.synced_end == 100
        checkpoint = (tmp_path / "data" / "recovery-point-offset-checkpoint").read_text()
        assert checkpoint == "0\n1\ntopic 0 100\n"
        assert closed_records(log) == 1
        await logs.stop()

    run(life())


def test_compact_and_delete_together_do_both(tmp_path):
    async def life():
        clock = TurnableClock()
        logs = started(FailingFileSystem(), tmp_path, clock)
        config = TopicConfig(cleanup_policy=("compact", "delete"), segment_bytes=2048, retention_ms=10_000)
        log = logs.open(TP, TOPIC_ID, config)
        await fill(logs, log, timestamp=NOW_MS)
        await logs.cleaner.clean_all()
        assert closed_records(log) == 7
        clock.pass_ms(20_000)
        expected = await fill(logs, log, timestamp=NOW_MS + 20_000)
        await logs.apply_retention()
        assert log.log_start > 0
        assert latest_values(log) == expected
        await logs.stop()

    run(life())
