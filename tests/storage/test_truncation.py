"""A follower's log is cut back to where its history left its leader's: for good, whatever happens meanwhile."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.base.topic_config import TopicConfig
from penstock.base.types import Offset
from penstock.storage.fs import PosixFileSystem
from penstock.storage.log import Log
from penstock.storage.log_manager import LogManager

from .support import NOW_MS, TOPIC_ID, TP, Machine, append, batch, by_time, manager, read_all, run, until, values_of
from .test_crashes import commit, cut_at_every_operation, started

ROLLING = TopicConfig(segment_bytes=1024, index_interval_bytes=100, file_delete_delay_ms=0)
COMPACTED = TopicConfig(file_delete_delay_ms=0, cleanup_policy=frozenset({"compact"}))


def filled(logs: LogManager, count: int) -> Log:
    log = logs.open(TP, TOPIC_ID, ROLLING)
    for number in range(count):
        append(log, [b"old-%02d" % number + b"x" * 200], timestamp=NOW_MS + number)
    return log


@pytest.mark.parametrize("offset", range(13))
def test_a_log_ends_where_it_is_cut_and_goes_on_there(tmp_path: Path, offset: int) -> None:
    async def scenario() -> None:
        logs = manager(PosixFileSystem(), tmp_path)
        logs.start()
        log = filled(logs, 12)
        before = read_all(log)
        await logs.truncate(log, Offset(offset))
        assert (log.log_end, log.synced_end) == (offset, offset) or offset >= 12
        assert read_all(log) == before[:offset]
        for number in range(offset):
            assert read_all(log, start=number) == before[number:offset]
            assert by_time(log, NOW_MS + number) == (NOW_MS + number, number, 0)
        assert by_time(log, NOW_MS + 12) is None
        assert log.max_timestamp == (NOW_MS + offset - 1 if offset else -1) or offset >= 12
        new = [append(log, [b"new" + b"y" * 150], timestamp=NOW_MS + 100) for _ in range(9)]
        assert read_all(log) == before[:offset] + new
        await logs.stop()
        again = manager(PosixFileSystem(), tmp_path)
        again.start()
        log = again.open(TP, TOPIC_ID, ROLLING)
        assert log.failure is None
        assert read_all(log) == before[:offset] + new
        assert by_time(log, NOW_MS + 50) == (NOW_MS + 100, offset, 0)
        await asyncio.sleep(0.05)
        await again.stop()

    run(scenario())


def test_a_batch_that_is_cut_inside_goes_as_a_whole(tmp_path: Path) -> None:
    async def scenario() -> None:
        logs = manager(PosixFileSystem(), tmp_path)
        logs.start()
        log = logs.open(TP, TOPIC_ID, ROLLING)
        append(log, [b"a", b"b"])
        append(log, [b"c", b"d", b"e"])
        await logs.truncate(log, Offset(3))
        assert (values_of(read_all(log)), log.log_end) == ([b"a", b"b"], 3)
        append(log, [b"f"])
        assert values_of(read_all(log, start=2)) == [b"f"]
        await logs.stop()

    run(scenario())


def test_a_log_whose_torn_tail_was_cut_off_by_the_start_is_cut_back_further(tmp_path: Path) -> None:
    """All that is left is below the recovery point, so that the start had nothing to sync but the cut itself."""

    async def scenario() -> None:
        logs = manager(PosixFileSystem(), tmp_path)
        logs.start()
        log = logs.open(TP, TOPIC_ID, ROLLING)
        append(log, [b"a"])
        append(log, [b"b"])
        await commit(logs, log)
        await logs.checkpoint()
        log.segments[-1].file.write([b"torn"])
        again = manager(PosixFileSystem(), tmp_path)
        again.start()
        log = again.open(TP, TOPIC_ID, ROLLING)
        assert log.log_end == log.synced_end == 2
        await again.truncate(log, Offset(1))
        assert values_of(read_all(log)) == [b"a"]
        await again.stop()
        await logs.stop()

    run(scenario())


def test_compaction_waits_for_the_sync_of_a_torn_tail_that_was_cut_off(tmp_path: Path) -> None:
    """An append has closed the segment and failed: no new record asks for that sync."""

    async def scenario() -> None:
        logs = manager(PosixFileSystem(), tmp_path)
        logs.start()
        log = logs.open(TP, TOPIC_ID, COMPACTED)
        for _ in range(2):
            append(log, [b"a"], keys=[b"a"])
        await commit(logs, log)
        await logs.checkpoint()
        log.segments[-1].file.write([b"torn"])
        again = manager(PosixFileSystem(), tmp_path)
        again.start()
        log = again.open(TP, TOPIC_ID, replace(COMPACTED, min_cleanable_dirty_ratio=0.0))
        log.roll()
        assert (log.segments[0].is_dirty, log.filed_end) == (True, log.log_end)
        await again.cleaner.clean_all()
        assert len(read_all(log)) == 1
        await again.stop()
        await logs.stop()

    run(scenario())


async def write_cut_and_write(machine: Machine, known: dict) -> None:
    """Two histories: what was promised of the first, until it is cut; then that of the second."""
    known["old"] = [b"old-%02d" % number + b"x" * 200 for number in range(10)]
    known["new"] = known["old"][:4] + [b"new-%02d" % number + b"y" * 150 for number in range(9)]
    known["promised"] = 0
    logs = started(machine)
    log = logs.open(TP, TOPIC_ID, ROLLING)
    for number, value in enumerate(known["old"]):
        append(log, [value])
        if number % 3 == 2:
            await commit(logs, log)
            known["promised"] = log.synced_end
            await logs.checkpoint()
    known["promised"] = 4
    await logs.truncate(log, Offset(4))
    known["is_cut"] = True
    for number, value in enumerate(known["new"][4:]):
        append(log, [value])
        if number % 3 == 2:
            await commit(logs, log)
            known["promised"] = log.synced_end
            await logs.checkpoint()
    await logs.stop()


async def find_one_history(machine: Machine, known: dict) -> None:
    logs = started(machine)
    log = logs.open(TP, TOPIC_ID, ROLLING)
    assert log.failure is None, log.failure
    assert not logs.damaged
    values = values_of(read_all(log))
    assert len(values) >= known.get("promised", 0)
    is_new = values == known.get("new", [])[: len(values)]
    is_old = values == known.get("old", [])[: len(values)]
    assert is_new or (is_old and not known.get("is_cut")), (known.get("is_cut"), values)
    append(log, [b"after the crash"])
    await commit(logs, log)
    await logs.stop()


def test_a_power_cut_at_any_operation_leaves_one_history_and_never_the_old_one_after_the_cut() -> None:
    cut_at_every_operation(write_cut_and_write, find_one_history, seeds=range(4))


# What stays may end before the cut


def copied(log: Log, offset: int, value: bytes) -> None:
    """A batch of a leader's, whose compaction may have left out what came before it."""
    log.append(batch(offset, [value], keys=[value]), offset, NOW_MS)


async def write_gaps(machine: Machine, config: TopicConfig) -> tuple[LogManager, Log]:
    """Offsets 1, 5 and 7, synced in the log's own files, and noted so."""
    logs = started(machine)
    log = logs.open(TP, TOPIC_ID, config)
    for offset in (1, 5, 7):
        copied(log, offset, b"%d" % offset)
    logs.commit.request(log, is_filed=True)
    await logs.commit.finish(log)
    await logs.checkpoint()
    return logs, log


@pytest.mark.parametrize("segment_bytes", [100, 1024])
def test_a_power_cut_while_a_log_is_cut_where_a_gap_ends_does_no_damage(segment_bytes: int) -> None:
    config = replace(COMPACTED, segment_bytes=segment_bytes)

    async def life(machine: Machine, known: dict) -> None:
        logs, log = await write_gaps(machine, config)
        known["is_noted"] = True
        await logs.truncate(log, Offset(5))
        known["is_cut"] = True
        await logs.stop()

    async def check(machine: Machine, known: dict) -> None:
        logs = started(machine)
        log = logs.open(TP, TOPIC_ID, config)
        assert log.failure is None, log.failure
        assert not logs.damaged
        values = values_of(read_all(log))
        assert values[:1] == [b"1"] or "is_noted" not in known
        assert values == [b"1"] or "is_cut" not in known
        if "is_noted" in known:  # The follower asks again, and is cut where its leader says.
            await logs.truncate(log, Offset(5))
            copied(log, 5, b"new")
            assert values_of(read_all(log)) == [b"1", b"new"]
        await logs.stop()

    cut_at_every_operation(life, check, seeds=range(10))


@pytest.mark.parametrize("segment_bytes", [100, 1024])
def test_the_recovery_point_is_not_beyond_what_stays_until_the_cut_is_synced(segment_bytes: int) -> None:
    """Were the name of the segment that says where the log ends lost, a start would miss what is in the gap."""
    seen = []

    async def life(machine: Machine) -> None:
        logs, log = await write_gaps(machine, replace(COMPACTED, segment_bytes=segment_bytes))
        truncate = log.truncate

        def truncate_and_look(offset: Offset) -> list[str]:
            seen.append(logs._checkpoints.recovery_point(TP))
            paths = truncate(offset)
            seen.append(log.filed_end)  # What a checkpoint would note now.
            return paths

        log.truncate = truncate_and_look  # type: ignore[method-assign]
        await logs.truncate(log, Offset(5))
        seen.append(log.filed_end)
        await logs.stop()

    machine = Machine()
    machine.run(life(machine))
    assert seen == [2, 2, 5]


def test_a_power_cut_while_a_log_begins_anew_inside_a_batch_does_no_damage() -> None:
    """Its start is noted as 35 before it begins at 34, and again before the batch is synced that has this offset."""

    async def life(machine: Machine, known: dict) -> None:
        logs = started(machine)
        log = logs.open(TP, TOPIC_ID, ROLLING)
        await logs.start_over(log, Offset(35))
        await logs.checkpoint()
        await logs.truncate(log, Offset(34))
        append(log, [b"34", b"35", b"36"])
        log.advance_start(Offset(35))
        await logs.checkpoint()
        await commit(logs, log)
        known["is_synced"] = True
        await logs.checkpoint()
        known["is_noted"] = True
        await logs.stop()

    async def check(machine: Machine, known: dict) -> None:
        logs = started(machine)
        log = logs.open(TP, TOPIC_ID, ROLLING)
        assert log.failure is None, log.failure
        assert not logs.damaged
        assert log.log_start <= log.log_end in (0, 34, 35, 37)
        assert log.log_end == 37 or "is_synced" not in known
        assert log.log_start == 35 or "is_noted" not in known
        await logs.stop()

    cut_at_every_operation(life, check, seeds=range(10))


@pytest.mark.parametrize("offset", range(1, 8))
@pytest.mark.parametrize("journal_bytes", [0, 16 << 10])
def test_a_cut_that_a_kill_has_left_in_memory_does_not_come_back_behind_a_roll(offset: int, journal_bytes: int) -> None:
    """The first record after the start begins a segment of its own: nothing would sync the one that was cut."""

    def opened(machine: Machine) -> tuple[LogManager, Log]:
        logs = manager(machine.fs, "data", penstock_journal_bytes=journal_bytes)
        logs.start()
        log = logs.open(TP, TOPIC_ID, ROLLING)
        logs.end_replay(())
        return logs, log

    async def cut_and_be_killed(machine: Machine) -> None:
        logs, log = opened(machine)
        for number in range(8):
            append(log, [b"%d" % number])
        await commit(logs, log)
        task = asyncio.create_task(logs.truncate(log, Offset(offset)))
        await until(lambda: log.log_end == offset, 0.0001)
        assert not task.done()

    async def promise(machine: Machine) -> None:
        logs, log = opened(machine)
        append(log, [b"new" + b"x" * 1000])
        await commit(logs, log)
        assert log.synced_end == offset + 1

    async def look(machine: Machine) -> None:
        _, log = opened(machine)
        assert [value[:3] for value in values_of(read_all(log))] == [*(b"%d" % each for each in range(offset)), b"new"]

    for seed in range(20):
        Machine(seed).run_killed_then_cut(cut_and_be_killed, promise, look)
