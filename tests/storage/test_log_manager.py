import asyncio
import errno
import re
from uuid import UUID

import pytest

from penstock.base.errors import ErrorCode, Refused
from penstock.base.topic_config import TopicConfig
from penstock.base.types import Offset, TopicPartition
from penstock.storage.fs import PosixFileSystem
from penstock.storage.partition_metadata import read_topic_id

from .support import (
    NOW_MS,
    TOPIC_ID,
    TP,
    FailingFileSystem,
    Machine,
    TurnableClock,
    append,
    fail,
    manager,
    read_all,
    run,
    succeed,
    until,
    values_of,
)

CONFIG = TopicConfig()
OTHER = TopicPartition("other", 3)
OTHER_ID = UUID(int=8)
CHECKPOINTS = 2  # Files of a checkpoint, each of which is synced.


async def commit(logs, log):
    logs.commit.request(log)
    await logs.commit.finish(log)


def started(fs, tmp_path, clock=None, **options):
    logs = manager(fs, tmp_path / "data", clock, **options)
    logs.start()
    return logs


# Start and stop


def test_records_and_starts_survive_a_clean_stop(tmp_path):
    async def first():
        logs = started(PosixFileSystem(), tmp_path)
        log = logs.open(TP, TOPIC_ID, CONFIG)
        written = [append(log) for _ in range(3)]
        await commit(logs, log)
        log.advance_start(Offset(1))
        await logs.stop()
        return written

    async def second():
        logs = started(PosixFileSystem(), tmp_path)
        assert logs._marks.clean
        log = logs.open(TP, TOPIC_ID, CONFIG)
        assert (log.log_start, log.log_end, log.synced_end) == (1, 3, 3)
        assert read_all(log) == written[1:]
        await logs.stop()

    written = run(first())
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
    run(second())


def test_a_stop_is_clean_once(tmp_path):
    async def life():
        logs = started(PosixFileSystem(), tmp_path)
        logs.open(TP, TOPIC_ID, CONFIG)
        await logs.stop()
        crashed = started(PosixFileSystem(), tmp_path)
        assert crashed._marks.clean
        assert not started(PosixFileSystem(), tmp_path)._marks.clean

    run(life())


def test_a_directory_stays_clean_while_it_is_not_opened(tmp_path):
    async def life():
        fs = FailingFileSystem()
        logs = started(fs, tmp_path)
        log = logs.open(TP, TOPIC_ID, CONFIG)
        append(log)
        await logs.stop()
        for _ in range(2):
            logs = started(fs, tmp_path)
            logs.open(OTHER, OTHER_ID, CONFIG)
            await logs.stop()
        logs = started(fs, tmp_path)
        used = []
        fs.before = lambda operation, path: used.append((operation, path))
        log = logs.open(TP, TOPIC_ID, CONFIG)
        assert log.recovery_point == log.synced_end == log.log_end == 1
        assert {operation for operation, _ in used} == {"open"}  # Nothing is synced, trimmed or written.
        await logs.stop()

    run(life())


def test_a_directory_that_no_clean_stop_had_open_may_lack_a_name_though_its_records_are_synced(tmp_path):
    async def life():
        fs = FailingFileSystem()
        logs = started(fs, tmp_path)
        log = logs.open(TP, TOPIC_ID, CONFIG)
        append(log)
        await commit(logs, log)
        await logs.checkpoint()
        assert log.recovery_point == log.log_end
        log.roll()
        await started(fs, tmp_path).stop()  # It was killed, and the partition given to another broker.
        logs = started(fs, tmp_path)
        log = logs.open(TP, TOPIC_ID, CONFIG)
        synced = []
        fs.before = lambda operation, path: synced.append(path) if operation == "sync_dir" else None
        append(log)
        await commit(logs, log)
        assert synced == [log.directory]
        await logs.stop()

    run(life())


@pytest.mark.parametrize("mark", [b"", b'{"version":0,"brokerEpoch":7}', b"0\n2\ntopic-0\n", b"0\n1\ntopic-0", b"\xff"])
def test_a_mark_that_does_not_name_what_is_clean_is_of_no_directory(tmp_path, mark):
    async def life():
        logs = started(PosixFileSystem(), tmp_path)
        append(logs.open(TP, TOPIC_ID, CONFIG))
        await logs.stop()
        path = tmp_path / "data" / ".kafka_cleanshutdown"
        assert path.read_bytes() == b"0\n1\ntopic-0\n"
        path.write_bytes(mark)
        fs = FailingFileSystem()
        logs = started(fs, tmp_path)
        assert not path.exists()
        trimmed = []
        fs.before = lambda operation, path: trimmed.append(path) if operation == "trim" else None
        log = logs.open(TP, TOPIC_ID, CONFIG)
        assert (log.synced_end, log.log_end, log.failure) == (1, 1, None)
        assert trimmed == [log.active.path()]  # As after a crash.

    run(life())


def test_a_stop_is_not_clean_of_a_log_that_is_being_cut(tmp_path):
    async def life():
        logs = started(FailingFileSystem(), tmp_path)
        log, other = logs.open(TP, TOPIC_ID, CONFIG), logs.open(OTHER, OTHER_ID, CONFIG)
        for one in (log, log, other):
            append(one)
        go_on, store = asyncio.Event(), logs._checkpoints.store
        logs._checkpoints.store = go_on.wait
        cut = asyncio.create_task(logs.truncate(log, Offset(1)))
        await until(lambda: log.synced_end == 1)
        logs._checkpoints.store = store
        await logs.stop()
        assert started(FailingFileSystem(), tmp_path)._marks.clean == {"other-3"}
        cut.cancel()

    run(life())


def test_a_stop_is_not_clean_of_a_log_whose_cut_is_not_synced(tmp_path):
    async def life():
        logs = started(FailingFileSystem(), tmp_path)
        log, other = logs.open(TP, TOPIC_ID, CONFIG), logs.open(OTHER, OTHER_ID, CONFIG)
        for one in (log, log, other):
            append(one)
        checkpoint, truncate, never = logs.checkpoint, log.truncate, asyncio.Event()
        cuts = []

        def truncate_and_wait(offset):
            logs.commit.request, logs.commit.finish = (lambda _: None), (lambda _: never.wait())
            return truncate(offset)

        async def checkpoint_while_it_is_cut():
            await checkpoint()
            cuts.append(asyncio.create_task(logs.truncate(log, Offset(1))))
            await until(lambda: log.log_end == 1)

        log.truncate, logs.checkpoint = truncate_and_wait, checkpoint_while_it_is_cut
        await logs.stop()
        assert started(FailingFileSystem(), tmp_path)._marks.clean == {"other-3"}
        cuts[0].cancel()

    run(life())


def test_a_stop_on_a_full_disk_is_not_clean_and_loses_nothing(tmp_path):
    async def life():
        fs = FailingFileSystem()
        logs = started(fs, tmp_path)
        log = logs.open(TP, TOPIC_ID, CONFIG)
        written = append(log)
        await commit(logs, log)
        fs.before = fail("write", "create")
        await logs.stop()
        logs = started(FailingFileSystem(), tmp_path)
        assert not logs._marks.clean
        assert read_all(logs.open(TP, TOPIC_ID, CONFIG)) == [written]

    run(life())


def test_the_data_directory_is_made_with_its_parents(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for data_dir in ("plain", "a/b/c", f"{tmp_path}/x/y/"):
        fs = FailingFileSystem()
        synced = []
        fs.before = lambda operation, path, synced=synced: synced.append(path) if operation == "sync_dir" else None
        manager(fs, data_dir).start()
        assert len(synced) >= 2  # The new directory's parents, and itself.
        manager(PosixFileSystem(), data_dir).start()


def test_a_new_partition_gets_kafkas_files(tmp_path):
    async def life():
        logs = started(PosixFileSystem(), tmp_path)
        log = logs.open(OTHER, OTHER_ID, CONFIG)
        append(log)
        await logs.stop()

    run(life())
    names = sorted(path.name for path in (tmp_path / "data" / "other-3").iterdir())
    assert names == [f"{0:020d}.index", f"{0:020d}.log", f"{0:020d}.timeindex", "partition.metadata"]
    assert (tmp_path / "data" / "recovery-point-offset-checkpoint").read_text() == "0\n1\nother 3 1\n"


# Topics that come and go


def test_reliability_rule_22_data_of_another_topic_id_is_set_aside(tmp_path):
    async def life():
        logs = started(PosixFileSystem(), tmp_path)
        append(logs.open(TP, TOPIC_ID, CONFIG), [b"old"])
        await logs.stop()
        logs = started(PosixFileSystem(), tmp_path)
        log = logs.open(TP, OTHER_ID, CONFIG)
        assert (log.log_end, read_all(log)) == (0, [])
        append(log, [b"new"])
        await logs.stop()

    run(life())
    strays = [path for path in (tmp_path / "data").iterdir() if path.name.endswith("-stray")]
    assert len(strays) == 1
    assert (strays[0] / f"{0:020d}.log").stat().st_size > 0


@pytest.mark.parametrize("is_idle", [False, True])
def test_the_topic_id_of_a_log_is_on_disk_before_its_records_though_the_one_who_wrote_it_was_killed(is_idle):
    async def first(machine):
        logs = manager(machine.fs, "data")
        logs.start()
        logs.open(TP, TOPIC_ID, CONFIG)

    async def second(machine):
        logs = manager(machine.fs, "data")
        logs.start()
        log = logs.open(TP, TOPIC_ID, CONFIG)
        syncs = machine.disk.syncs
        await logs.checkpoint()
        await logs.commit.finish()
        assert not log.needs_flush  # An idle one costs no sync, be they thousands.
        assert machine.disk.syncs <= syncs + CHECKPOINTS
        if is_idle:
            await logs.stop()
        else:
            append(log, [b"old"])
            await commit(logs, log)

    async def third(machine):
        logs = manager(machine.fs, "data")
        logs.start()
        assert read_topic_id(machine.fs, "data/topic-0") == TOPIC_ID
        assert read_all(logs.open(TP, OTHER_ID, CONFIG)) == []

    for seed in range(20):
        Machine(seed).run_killed_then_cut(first, second, third)


def test_a_deleted_log_takes_nothing_and_its_files_go(tmp_path):
    async def life():
        logs = started(PosixFileSystem(), tmp_path)
        log = logs.open(TP, TOPIC_ID, CONFIG)
        append(log)
        logs.delete(TP)
        with pytest.raises(Refused):
            append(log)
        assert TP not in logs.logs
        assert not (tmp_path / "data" / "topic-0").exists()
        for _ in range(3000):
            await asyncio.sleep(0.01)
            if not any(path.name.endswith("-delete") for path in (tmp_path / "data").iterdir()):
                break
        else:
            pytest.fail("the directory is still there")
        await logs.stop()

    run(life())


def test_a_deletion_that_a_crash_interrupted_is_completed_at_the_next_start(tmp_path):
    (tmp_path / "data" / "00-0-delete").mkdir(parents=True)
    (tmp_path / "data" / "00-0-delete" / "x").touch()
    started(PosixFileSystem(), tmp_path)
    assert list((tmp_path / "data").iterdir()) == []


def test_a_topic_deleted_while_it_is_being_synced_takes_nothing_else_down(tmp_path):
    class Slow(FailingFileSystem):
        async def run(self, function):
            await go_on.wait()
            return await super().run(function)

    async def life():
        logs = started(fs, tmp_path)
        log, other = logs.open(TP, TOPIC_ID, CONFIG), logs.open(OTHER, OTHER_ID, CONFIG)
        append(log)
        logs.commit.request(log)  # A first sync: it has the directory to sync as well.
        await asyncio.sleep(0)
        descriptor_path = log.active.path()
        logs.delete(TP)
        go_on.set()
        for _ in range(3000):
            await asyncio.sleep(0.01)
            if not any(path.name.endswith("-delete") for path in (tmp_path / "data").iterdir()):
                break
        assert logs.offline is None
        assert log.synced_end == 0
        append(other)
        await commit(logs, other)
        assert other.synced_end == 1
        assert descriptor_path != log.active.path()
        await logs.stop()

    fs, go_on = Slow(), asyncio.Event()
    run(life())


def test_a_partition_that_comes_back_and_goes_again_while_its_files_are_being_removed(tmp_path):
    class Slow(FailingFileSystem):
        async def run(self, function):
            await go_on.wait()
            return await super().run(function)

    async def life():
        logs = started(Slow(), tmp_path)
        for _ in range(3):
            log = logs.open(TP, TOPIC_ID, CONFIG)
            assert (log.log_end, read_all(log)) == (0, [])
            append(log)
            logs.delete(TP)
            assert not (tmp_path / "data" / "topic-0").exists()
        names = [path.name for path in (tmp_path / "data").iterdir() if path.name.endswith("-delete")]
        assert len(names) == 3
        assert all(re.fullmatch(r"(\S+)-(\S+)\.(\S+)-delete", name) for name in names)  # Kafka knows no others.
        go_on.set()
        await asyncio.gather(*logs._tasks)
        assert not any(path.is_dir() for path in (tmp_path / "data").iterdir())
        await logs.stop()

    go_on = asyncio.Event()
    run(life())


def test_a_recreated_topic_inherits_no_checkpoint_even_after_a_crash(tmp_path):
    async def life():
        logs = started(FailingFileSystem(), tmp_path)
        log = logs.open(TP, TOPIC_ID, CONFIG)
        for _ in range(10):
            append(log)
        await commit(logs, log)
        log.advance_start(Offset(8))
        await logs.checkpoint()
        logs.delete(TP)
        log = logs.open(TP, OTHER_ID, CONFIG)
        written = [append(log, [b"new"]) for _ in range(3)]
        await commit(logs, log)
        await asyncio.gather(*logs._tasks)  # The old files are gone.
        # Killed here, before the next checkpoint.
        after = started(FailingFileSystem(), tmp_path)
        log = after.open(TP, OTHER_ID, CONFIG)
        assert log.failure is None
        assert (log.log_start, log.log_end) == (0, 3)
        assert read_all(log) == written
        await logs.stop()

    run(life())


def test_a_deleted_directory_that_cannot_be_moved_is_set_aside_later(tmp_path):
    async def life():
        fs = FailingFileSystem()
        logs = started(fs, tmp_path)
        append(logs.open(TP, TOPIC_ID, CONFIG), [b"old"])
        fs.before = fail("rename", suffix="topic-0", code=errno.EIO)
        logs.delete(TP)
        assert (TP in logs.logs, logs.offline) == (False, None)
        fs.before = succeed
        log = logs.open(TP, OTHER_ID, CONFIG)
        assert (log.log_end, read_all(log)) == (0, [])
        await logs.stop()

    run(life())


def test_a_new_directory_that_could_not_be_moved_away_has_its_name_on_disk_when_it_is_opened_again(tmp_path):
    async def life():
        fs = FailingFileSystem()
        logs = started(fs, tmp_path)
        append(logs.open(TP, TOPIC_ID, CONFIG))
        fs.before = fail("rename", suffix="topic-0", code=errno.EIO)
        logs.delete(TP)
        synced = []
        fs.before = lambda operation, path: synced.append(path) if operation == "sync_dir" else None
        log = logs.open(TP, TOPIC_ID, CONFIG)
        assert log.synced_end == log.log_end == 1
        assert {f"{tmp_path}/data", f"{tmp_path}/data/topic-0"} <= set(synced)
        await logs.stop()

    run(life())


def test_a_name_whose_sync_has_failed_is_not_taken_for_synced_by_the_next_try(tmp_path):
    async def life():
        fs = FailingFileSystem()
        logs = started(fs, tmp_path)
        append(logs.open(TP, TOPIC_ID, CONFIG))
        fs.before = fail("rename", suffix="topic-0", code=errno.EIO)
        logs.delete(TP)
        fs.before = fail("sync_dir", suffix="data", code=errno.EIO)
        with pytest.raises(OSError):
            logs.open(TP, TOPIC_ID, CONFIG)
        fs.before = succeed
        await logs.stop()
        assert (tmp_path / "data" / ".penstock_sync_failed").exists()
        assert not started(fs, tmp_path)._marks.clean

    run(life())


def test_a_cut_of_a_deleted_log_leaves_the_one_alone_that_is_in_its_directory_now(tmp_path):
    async def life():
        fs = FailingFileSystem()
        logs = started(fs, tmp_path)
        log = logs.open(TP, TOPIC_ID, CONFIG)
        written = [append(log) for _ in range(3)]
        go_on = asyncio.Event()
        logs._checkpoints.store = go_on.wait
        cut = asyncio.create_task(logs.truncate(log, Offset(1)))
        await until(lambda: log.synced_end == 1)
        del logs._checkpoints.store
        fs.before = fail("rename", suffix="topic-0", code=errno.EIO)
        logs.delete(TP)
        fs.before = succeed
        again = logs.open(TP, TOPIC_ID, CONFIG)
        go_on.set()
        with pytest.raises(Refused, match="deleted"):
            await cut
        assert (read_all(again), again.synced_end) == (written, 3)
        await logs.stop()

    run(life())


def test_damage_that_recovery_finds_is_kept_for_the_operator(tmp_path):
    async def life():
        logs = started(FailingFileSystem(), tmp_path)
        log = logs.open(TP, TOPIC_ID, CONFIG)
        append(log)
        append(log)
        await commit(logs, log)
        await logs.checkpoint()
        path = tmp_path / "data" / "topic-0" / f"{0:020d}.log"
        data = bytearray(path.read_bytes())
        data[65] ^= 1
        path.write_bytes(data)
        after = started(FailingFileSystem(), tmp_path)
        after.open(TP, TOPIC_ID, CONFIG)
        assert len(after.damaged[TP]) == 1
        after.delete(TP)
        assert after.damaged == {}
        await after.stop()

    run(life())


# Failing disks


def test_a_failed_sync_takes_the_whole_directory_offline(tmp_path):
    async def life():
        fs = FailingFileSystem()
        logs = started(fs, tmp_path)
        log, other = logs.open(TP, TOPIC_ID, CONFIG), logs.open(OTHER, OTHER_ID, CONFIG)
        written = append(other)
        await commit(logs, other)
        acked = []
        log.on_synced = other.on_synced = lambda: acked.append(True)
        append(log)
        append(other)
        fs.before = fail("sync", suffix=".log", code=errno.EIO)
        await commit(logs, log)
        fs.before = succeed
        fs.syncs.clear()
        for partition_log in (log, other, logs.open(TopicPartition("third", 0), UUID(int=9), CONFIG)):
            with pytest.raises(Refused) as refused:
                append(partition_log)
            assert refused.value.code == ErrorCode.kafka_storage_error
            logs.commit.request(partition_log)
        await logs.commit.finish()
        assert (acked, fs.syncs) == ([], [])
        assert logs.describe().error == ErrorCode.kafka_storage_error
        assert read_all(other)[0] == written  # Reads go on.
        await logs.stop()
        assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()

    run(life())


def test_after_a_failed_sync_the_next_start_writes_the_log_anew_until_a_stop_is_clean(tmp_path):
    async def life():
        fs = FailingFileSystem()
        logs = started(fs, tmp_path)
        log = logs.open(TP, TOPIC_ID, CONFIG)
        written = [append(log), append(log)]
        fs.before = fail("sync", suffix=".log", code=errno.EIO)
        await commit(logs, log)
        fs.before = succeed
        await logs.stop()
        marker = tmp_path / "data" / ".penstock_sync_failed"
        assert marker.exists()
        inode = (tmp_path / "data" / "topic-0" / f"{0:020d}.log").stat().st_ino
        logs = started(fs, tmp_path)
        log = logs.open(TP, TOPIC_ID, CONFIG)
        assert (tmp_path / "data" / "topic-0" / f"{0:020d}.log").stat().st_ino != inode
        written.append(append(log))
        assert read_all(log) == written
        await logs.stop()
        assert not marker.exists()
        logs = started(fs, tmp_path)
        assert logs._marks.clean
        assert read_all(logs.open(TP, TOPIC_ID, CONFIG)) == written

    run(life())


def test_a_failed_sync_is_remembered_until_a_clean_stop_has_seen_to_every_directory(tmp_path):
    async def life():
        fs = FailingFileSystem()
        logs = started(fs, tmp_path)
        log = logs.open(TP, TOPIC_ID, CONFIG)
        written = [append(log)]
        fs.before = fail("sync", suffix=".log", code=errno.EIO)
        await commit(logs, log)
        fs.before = succeed
        await logs.stop()
        for _ in range(2):  # The partition has been given to another broker.
            logs = started(fs, tmp_path)
            logs.open(OTHER, OTHER_ID, CONFIG)
            await logs.stop()
        inodes = {path: path.stat().st_ino for path in (tmp_path / "data").glob("*/*.log")}
        logs = started(fs, tmp_path)
        logs.open(OTHER, OTHER_ID, CONFIG)
        assert read_all(logs.open(TP, TOPIC_ID, CONFIG)) == written
        anew = [path.parent.name for path, inode in inodes.items() if path.stat().st_ino != inode]
        assert anew == ["topic-0"]
        await logs.stop()
        assert not (tmp_path / "data" / ".penstock_sync_failed").exists()

    run(life())


def test_a_directory_that_nobody_hosts_keeps_no_other_from_being_trusted_after_a_failed_sync(tmp_path):
    async def life():
        fs = FailingFileSystem()
        logs = started(fs, tmp_path)
        log, other = logs.open(TP, TOPIC_ID, CONFIG), logs.open(OTHER, OTHER_ID, CONFIG)
        append(log)
        await commit(logs, other)
        fs.before = fail("sync", suffix=".log", code=errno.EIO)
        await commit(logs, log)
        fs.before = succeed
        await logs.stop()
        logs = started(fs, tmp_path)
        logs.open(OTHER, OTHER_ID, CONFIG)
        await logs.stop()
        logs = started(fs, tmp_path)
        append(logs.open(OTHER, OTHER_ID, CONFIG))
        crashed = started(fs, tmp_path)
        inode = next((tmp_path / "data/other-3").glob("*.log")).stat().st_ino
        crashed.open(OTHER, OTHER_ID, CONFIG)
        assert next((tmp_path / "data/other-3").glob("*.log")).stat().st_ino == inode
        crashed.take_offline("a sync failed")  # Then nothing can be trusted again.
        crashed = started(fs, tmp_path)
        crashed.open(OTHER, OTHER_ID, CONFIG)
        assert next((tmp_path / "data/other-3").glob("*.log")).stat().st_ino != inode

    run(life())


def test_a_second_try_to_open_a_log_whose_sync_failed_writes_it_anew(tmp_path):
    async def life():
        fs = FailingFileSystem()
        logs = started(fs, tmp_path)
        written = [append(logs.open(TP, TOPIC_ID, CONFIG))]
        crashed = started(fs, tmp_path)
        fs.before = fail("sync", suffix=".log", code=errno.EIO)
        with pytest.raises(OSError, match="Input"):
            crashed.open(TP, TOPIC_ID, CONFIG)
        fs.before = succeed
        inode = (tmp_path / "data" / "topic-0" / f"{0:020d}.log").stat().st_ino
        log = crashed.open(TP, TOPIC_ID, CONFIG)
        assert read_all(log) == written
        assert (tmp_path / "data" / "topic-0" / f"{0:020d}.log").stat().st_ino != inode

    run(life())


def test_a_stop_is_not_clean_when_a_log_could_not_be_opened(tmp_path):
    async def life():
        fs = FailingFileSystem()
        logs = started(fs, tmp_path)
        append(logs.open(TP, TOPIC_ID, CONFIG))
        crashed = started(fs, tmp_path)
        fs.before = fail("sync", suffix=".log", code=errno.EIO)
        with pytest.raises(OSError, match="Input"):
            crashed.open(TP, TOPIC_ID, CONFIG)
        fs.before = succeed
        await crashed.stop()
        assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()
        assert (tmp_path / "data" / ".penstock_sync_failed").exists()

    run(life())


def test_a_topic_that_does_not_fit_on_the_disk_casts_no_doubt_on_the_others(tmp_path):
    async def life():
        fs = FailingFileSystem()
        logs = started(fs, tmp_path)
        written = append(logs.open(TP, TOPIC_ID, CONFIG))
        fs.before = fail("create")
        with pytest.raises(OSError, match="space"):
            logs.open(OTHER, OTHER_ID, CONFIG)
        fs.before = succeed
        await logs.stop()
        logs = started(fs, tmp_path)
        assert logs._marks.clean
        assert read_all(logs.open(TP, TOPIC_ID, CONFIG)) == [written]
        assert logs.open(OTHER, OTHER_ID, CONFIG).log_end == 0

    run(life())


def test_the_recovery_point_is_only_what_was_synced(tmp_path):
    async def life():
        fs = FailingFileSystem()
        logs = started(fs, tmp_path)
        log = logs.open(TP, TOPIC_ID, CONFIG)
        append(log)
        await commit(logs, log)
        append(log)
        await logs.checkpoint()
        path = tmp_path / "data" / "recovery-point-offset-checkpoint"
        assert path.read_text() == "0\n1\ntopic 0 1\n"
        fs.before = fail("sync", suffix=".log", code=errno.EIO)
        await commit(logs, log)
        fs.before = succeed
        await logs.stop()
        assert path.read_text() == "0\n1\ntopic 0 1\n"

    run(life())


@pytest.mark.parametrize("content", [b"", b"0\n3\ntopic 0 5\n", b"\xff\0garbage", b"0\n1\ntopic 0 9x\n"])
def test_a_damaged_checkpoint_is_recovered_from_the_segments(tmp_path, content):
    async def life():
        logs = started(FailingFileSystem(), tmp_path)
        log = logs.open(TP, TOPIC_ID, TopicConfig(segment_bytes=1024))
        written = [append(log, [b"x" * 300]) for _ in range(20)]
        await commit(logs, log)
        await logs.checkpoint()
        for name in ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "cleaner-offset-checkpoint"):
            (tmp_path / "data" / name).write_bytes(content)
        with open(log.active.path(), "ab") as file:  # noqa: PTH123, ASYNC230
            file.write(b"torn")
        after = started(FailingFileSystem(), tmp_path)
        log = after.open(TP, TOPIC_ID, TopicConfig(segment_bytes=1024))
        assert read_all(log) == written
        assert log.failure is None
        await after.stop()
        assert (tmp_path / "data" / "recovery-point-offset-checkpoint").read_text() == "0\n1\ntopic 0 20\n"

    run(life())


# Loops


def test_rolled_segments_are_synced_soon_even_when_nobody_waits(tmp_path):
    """penstock.durability=os: without this each closed segment would hold its descriptor for ever."""

    async def life():
        logs = started(FailingFileSystem(), tmp_path)
        log = logs.open(TP, TOPIC_ID, TopicConfig(segment_bytes=1024, durability="os"))
        await commit(logs, log)
        for _ in range(10):
            append(log, [b"x" * 600])
        assert sum(segment.is_dirty for segment in log.segments) == 10
        await logs.checkpoint()
        await logs.commit.finish()
        assert [segment.is_dirty for segment in log.segments] == [False] * 9 + [True]
        assert log.synced_end == log.active.base_offset
        await logs.stop()
        assert log.synced_end == log.log_end

    run(life())


def test_records_left_to_the_kernel_are_synced_now_and_then(tmp_path):
    """penstock.durability=os: not each second, and not on and on while they come; but recovery has a bound."""

    async def life():
        clock = TurnableClock()
        logs = started(FailingFileSystem(), tmp_path, clock)
        log = logs.open(TP, TOPIC_ID, TopicConfig(durability="os"))
        append(log)

        async def synced_end_after(seconds):
            clock.pass_ms(seconds * 1000)
            await logs.checkpoint()
            await asyncio.sleep(0)
            append(log)  # While the sync is under way: nobody has asked for this one.
            await logs.commit.finish()
            return log.synced_end

        assert log.has_side_files
        assert await synced_end_after(1) == 0
        assert not log.has_side_files
        assert await synced_end_after(58) == 0
        assert await synced_end_after(2) == 3
        assert await synced_end_after(30) == 3
        assert await synced_end_after(31) == 5
        await logs.stop()

    run(life())


def test_old_segments_are_deleted_and_their_files_removed(tmp_path):
    async def life():
        clock = TurnableClock()
        logs = started(FailingFileSystem(), tmp_path, clock)
        log = logs.open(TP, TOPIC_ID, TopicConfig(segment_bytes=1024, retention_ms=10_000, file_delete_delay_ms=10))
        for number in range(6):
            append(log, [b"x" * 600], timestamp=NOW_MS + number * 1000)
        await commit(logs, log)
        await logs.apply_retention()
        assert log.log_start == 0
        clock.pass_ms(13_500)
        await logs.apply_retention()
        assert (log.log_start, log.log_end) == (4, 6)
        await until(lambda: not any(name.endswith(".deleted") for name in FailingFileSystem().listdir(log.directory)))
        clock.pass_ms(60_000)
        await logs.apply_retention()
        assert (log.log_start, log.log_end) == (6, 6)
        assert values_of([append(log, [b"goes on"])]) == [b"goes on"]
        await logs.stop()

    run(life())


def test_reliability_rule_21_a_jump_of_the_clock_deletes_nothing_at_once(tmp_path):
    async def life():
        clock = TurnableClock()
        logs = started(FailingFileSystem(), tmp_path, clock)
        logs.start_loops()
        log = logs.open(TP, TOPIC_ID, TopicConfig(segment_bytes=1024, retention_ms=10_000))
        for _ in range(3):
            append(log, [b"x" * 600])
        await commit(logs, log)
        clock.wall_ms += 10 * 365 * 86_400_000  # In the very first pass after the start.
        await logs.apply_retention()
        assert log.log_start == 0
        await logs.stop()

    run(life())


@pytest.mark.parametrize("state", ["flush_in_flight", "is_cutting", "is_cleaning"])
def test_retention_waits_for_a_sync_a_cut_and_for_compaction(tmp_path, state):
    async def life():
        clock = TurnableClock()
        logs = started(FailingFileSystem(), tmp_path, clock)
        log = logs.open(TP, TOPIC_ID, TopicConfig(segment_bytes=1024, retention_ms=10_000))
        for _ in range(3):
            append(log, [b"x" * 600])
        await commit(logs, log)
        clock.pass_ms(20_000)
        setattr(log, state, True)
        await logs.apply_retention()
        assert log.log_start == 0
        setattr(log, state, False)
        await logs.apply_retention()
        assert log.log_start == 3
        await logs.stop()

    run(life())


def test_retention_of_a_log_that_is_synced_all_the_time_takes_what_has_been_synced(tmp_path):
    async def life():
        clock = TurnableClock()
        logs = started(FailingFileSystem(), tmp_path, clock)
        log = logs.open(TP, TOPIC_ID, TopicConfig(segment_bytes=1024, retention_ms=10_000))
        for _ in range(3):
            append(log, [b"x" * 600])
        await commit(logs, log)
        clock.pass_ms(20_000)
        for _ in range(2):
            append(log, [b"x" * 600], timestamp=NOW_MS + 20_000)
        log.flush_in_flight = True
        await logs.apply_retention()
        assert log.log_start == 3
        clock.pass_ms(20_000)
        await logs.apply_retention()
        assert (log.log_start, len(log.segments)) == (3, 2)  # The first of them is not synced yet.
        log.flush_in_flight = False
        await logs.stop()

    run(life())


def test_a_log_that_has_failed_keeps_no_other_from_the_checkpoint(tmp_path):
    """Its index is wanted by nobody, and perhaps cannot be written."""

    async def life():
        fs = FailingFileSystem()
        logs = started(fs, tmp_path)
        broken = logs.open(TP, TOPIC_ID, TopicConfig())
        sound = logs.open(TopicPartition("sound", 0), UUID(int=8), TopicConfig())
        for log in (broken, sound):
            append(log)
            await commit(logs, log)
        broken.fail("broken")
        fs.before = fail("create", "open", suffix=f"{broken.directory}/{0:020d}.index", code=errno.EIO)
        await logs.checkpoint()
        assert logs._checkpoints.recovery_points == {sound.topic_partition: 1}

    run(life())


def test_retention_never_takes_what_is_above_the_high_watermark(tmp_path):
    async def life():
        clock = TurnableClock()
        logs = started(FailingFileSystem(), tmp_path, clock)
        log = logs.open(TP, TOPIC_ID, TopicConfig(segment_bytes=1024, retention_ms=10_000))
        for _ in range(3):
            append(log, [b"x" * 600])
        clock.pass_ms(20_000)
        await logs.apply_retention()
        assert (log.log_start, log.synced_end) == (0, 0)
        await logs.stop()

    run(life())


def test_the_loops_run_and_stop(tmp_path, monkeypatch):
    async def life():
        monkeypatch.setattr("penstock.storage.log_manager.CHECKPOINT_INTERVAL_S", 0.01)
        logs = started(FailingFileSystem(), tmp_path, log_retention_check_interval_ms=10, log_cleaner_backoff_ms=10)
        logs.high_watermark_of = lambda tp: {}[tp]  # A bug elsewhere must not end the loops for good.
        logs.open(TP, TOPIC_ID, TopicConfig(cleanup_policy=("compact",)))
        logs.start_loops()
        assert {task.get_name() for task in logs._tasks} == {"checkpoint", "retention", "cleaner"}
        await asyncio.sleep(0.1)
        assert not any(task.done() for task in logs._tasks)
        await logs.stop()

    run(life())


def test_the_cleaner_runs_only_when_it_is_enabled(tmp_path):
    async def life():
        logs = started(FailingFileSystem(), tmp_path, log_cleaner_enable=False)
        logs.start_loops()
        assert {task.get_name() for task in logs._tasks} == {"checkpoint", "retention"}
        await logs.stop()

    run(life())
