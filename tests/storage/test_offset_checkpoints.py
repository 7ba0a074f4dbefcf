import asyncio
import threading

from penstock.base.types import Offset, TopicPartition
from penstock.storage.fs import PosixFileSystem
from penstock.storage.offset_checkpoints import OffsetCheckpoints

from .support import FailingFileSystem, run

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def loaded(fs, tmp_path) -> OffsetCheckpoints:
    checkpoints = OffsetCheckpoints(fs=fs, data_dir=str(tmp_path))
    checkpoints.load()
    return checkpoints


def test_what_was_stored_is_there_after_a_restart(tmp_path):
    fs = PosixFileSystem()
    checkpoints = loaded(fs, tmp_path)
    assert (checkpoints.recovery_point(A), checkpoints.log_start(A)) == (0, 0)
    checkpoints.recovery_points[A] = Offset(9)
    checkpoints.log_starts[A] = Offset(3)
    run(checkpoints.store())
    again = loaded(fs, tmp_path)
    assert (again.recovery_point(A), again.log_start(A)) == (9, 3)
    assert (again.recovery_point(B), again.log_start(B)) == (0, 0)


def test_damaged_recovery_points_are_unknown_not_zero(tmp_path):
    (tmp_path / "recovery-point-offset-checkpoint").write_bytes(b"0\n2\na 0 9\n")
    (tmp_path / "log-start-offset-checkpoint").write_bytes(b"garbage")
    checkpoints = loaded(PosixFileSystem(), tmp_path)
    assert checkpoints.recovery_point(A) is None
    assert checkpoints.log_start(A) == 0


def test_nothing_is_written_when_nothing_has_changed(tmp_path):
    fs = FailingFileSystem()
    checkpoints = loaded(fs, tmp_path)
    checkpoints.recovery_points[A] = Offset(9)
    run(checkpoints.store())
    fs.syncs.clear()
    run(checkpoints.store())
    assert fs.syncs == []


def test_a_new_partition_inherits_nothing_from_a_deleted_one(tmp_path):
    fs = PosixFileSystem()
    checkpoints = loaded(fs, tmp_path)
    checkpoints.recovery_points.update({A: Offset(9), B: Offset(1)})
    checkpoints.log_starts[A] = Offset(3)
    run(checkpoints.store())
    checkpoints.remove(A)
    checkpoints.begin(A)  # A crash right after this must not find the old offsets.
    again = loaded(fs, tmp_path)
    assert (again.recovery_point(A), again.log_start(A)) == (0, 0)
    assert again.recovery_point(B) == 1


def test_a_write_on_its_way_does_not_overtake_a_later_one(tmp_path):
    class Held(PosixFileSystem):
        async def run(self, function):
            await go_on.wait()
            return await super().run(function)

    async def scenario():
        checkpoints = loaded(fs, tmp_path)
        checkpoints.recovery_points[A] = Offset(9)
        writing = asyncio.create_task(checkpoints.store())
        await asyncio.sleep(0)
        checkpoints.remove(A)
        checkpoints.begin(A)
        go_on.set()
        await writing

    fs = Held()
    go_on = asyncio.Event()
    run(scenario())
    assert loaded(fs, tmp_path).recovery_points == {}


def test_concurrent_stores_leave_a_whole_file(tmp_path):
    async def scenario():
        checkpoints = loaded(fs, tmp_path)
        stores = []
        for number in range(50):
            checkpoints.recovery_points[TopicPartition("t", number)] = Offset(number)
            stores.append(checkpoints.store())
            if number % 10 == 0:
                await asyncio.sleep(0)
        await asyncio.gather(*stores)

    fs = PosixFileSystem()
    run(scenario())
    assert len(loaded(fs, tmp_path).recovery_points) == 50
    assert threading.active_count() < 50
