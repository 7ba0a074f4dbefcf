import asyncio
import errno
from random import Random

import pytest

from penstock.sim.clock import SimClock, SimLoop
from penstock.sim.disk import SimDisk
from penstock.sim.file_system import RUN_SECONDS_MAX, RUN_SECONDS_MIN, SimFile, SimFileSystem
from penstock.sim.process import Killed, Process


class Machine:
    """A loop, a disk and a mounted file system."""

    def __init__(self, seed: int = 0, capacity_bytes: int | None = None) -> None:
        self.loop = SimLoop()
        self.disk = SimDisk(random=Random(seed), clock=SimClock(self.loop), capacity_bytes=capacity_bytes)
        self.mount()

    def mount(self) -> SimFileSystem:
        self.fs = SimFileSystem(self.disk)
        return self.fs

    def crash(self) -> SimFileSystem:
        self.disk.crash()
        return self.mount()

    def durable_file(self, path: str, data: bytes = b"") -> SimFile:
        file = self.fs.open(path, create=True)
        file.write([data])
        file.sync()
        self.fs.sync_dir("data")
        return file


def machine(seed: int = 0, capacity_bytes: int | None = None) -> Machine:
    made = Machine(seed, capacity_bytes)
    made.fs.mkdir("data")
    made.fs.sync_dir(".")
    return made


def test_files_read_what_was_written():
    fs = machine().fs
    file = fs.open("data/log", create=True)
    file.write([b"one", memoryview(b"two"), bytearray(b"three")])
    assert file.size() == fs.size("data/log") == 11
    assert file.read(3, 3) == b"two"
    assert file.read(6, 100) == b"three"
    assert file.read(100, 1) == b""
    assert fs.read_all("data/log") == b"onetwothree"
    assert fs.modified_ms("data/log") == SimClock(SimLoop()).now_ms()
    file.truncate(3)
    assert fs.open("data/log").read(0, 9) == b"one"
    file.close()
    with pytest.raises(OSError, match="descriptor"):
        file.read(0, 1)


def test_a_file_can_be_written_over():
    box = machine()
    box.durable_file("data/journal", b"0123456789")
    file = box.fs.open("data/journal", appends=False)
    operations = box.disk.operations
    file.write_at(3, memoryview(b"abc"))
    file.write_at(10, b"xyz")
    assert box.disk.operations == operations + 2
    assert file.read(0, 100) == b"012abc6789xyz"
    file.sync()
    assert box.crash().read_all("data/journal") == b"012abc6789xyz"


def test_a_file_is_appended_to_or_written_over():
    box = machine()
    appends = box.durable_file("data/log", b"0123456789")
    with pytest.raises(AssertionError, match="append"):
        appends.write_at(0, b"x")
    with pytest.raises(AssertionError, match="start"):
        box.fs.open("data/log", appends=False).write([b"x"])
    assert box.fs.read_all("data/log") == b"0123456789"


def test_the_cache_misses_sometimes():
    file = machine().fs.open("data/log", create=True)
    file.write([b"abc"])
    assert {file.read_cached(0, 3) for _ in range(200)} == {b"abc", None}


def test_errors_are_those_of_a_real_file_system():
    fs = machine().fs
    with pytest.raises(FileNotFoundError):
        fs.open("data/missing")
    with pytest.raises(FileNotFoundError):
        fs.open("nowhere/file", create=True)
    with pytest.raises(FileNotFoundError):
        fs.listdir("nowhere")
    with pytest.raises(FileNotFoundError):
        fs.remove("data/missing")
    with pytest.raises(FileNotFoundError):
        fs.rename("data/missing", "data/other")
    with pytest.raises(FileNotFoundError):
        fs.sync_dir("nowhere")
    with pytest.raises(IsADirectoryError):
        fs.read_all("data")
    fs.mkdir("data/full/inner")
    fs.mkdir("data/source")
    with pytest.raises(OSError, match="not empty"):
        fs.rename("data/source", "data/full")


def test_directories_list_rename_and_vanish():
    fs = machine().fs
    fs.mkdir("/var/log/t-0")
    fs.open("/var/log/t-0/2.log", create=True).write([b"x"])
    fs.open("/var/log/t-0/1.log", create=True)
    assert fs.listdir("/var/log/") == ["t-0"]
    assert fs.listdir("/var/log/t-0") == ["1.log", "2.log"]
    fs.rename("/var/log/t-0", "/var/log/t-0.deleted")
    assert not fs.exists("/var/log/t-0")
    assert fs.read_all("/var/log/t-0.deleted/2.log") == b"x"
    fs.remove_tree("/var/log/t-0.deleted")
    assert fs.listdir("/var/log") == []


def test_a_synced_file_vanishes_when_its_directory_was_not_synced():
    found = set()
    for seed in range(50):
        box = machine(seed)
        file = box.fs.open("data/log", create=True)
        file.write([b"safe?"])
        file.sync()
        fs = box.crash()
        found.add(fs.read_all("data/log") if fs.exists("data/log") else None)
    assert found == {b"safe?", None}


def test_a_synced_directory_keeps_its_names():
    for seed in range(50):
        box = machine(seed)
        box.durable_file("data/log", b"safe")
        assert box.crash().read_all("data/log") == b"safe"


def test_a_crash_keeps_a_first_part_of_the_directory_operations():
    found = set()
    for seed in range(200):
        box = machine(seed)
        box.durable_file("data/a")
        box.fs.rename("data/a", "data/b")
        box.fs.open("data/c", create=True)
        box.fs.remove("data/b")
        found.add(tuple(box.crash().listdir("data")))
    assert found == {("a",), ("b",), ("b", "c"), ("c",)}


def test_a_rename_can_outlive_the_content_that_was_not_synced():
    found = set()
    for seed in range(300):
        box = machine(seed)
        box.durable_file("data/checkpoint", b"old")
        file = box.fs.open("data/checkpoint.tmp", create=True)
        file.write([b"new"])
        box.fs.rename("data/checkpoint.tmp", "data/checkpoint")
        box.fs.sync_dir("data")
        found.add(box.crash().read_all("data/checkpoint"))
    assert {b"", b"new"} < found
    assert b"old" not in found


def test_a_full_disk_takes_a_prefix():
    box = machine(seed=3, capacity_bytes=100)
    file = box.fs.open("data/log", create=True)
    file.write([bytes(60)])
    assert box.fs.free_bytes("data") == (100, 40)
    with pytest.raises(OSError) as caught:
        file.write([bytes(60)])
    assert caught.value.errno == errno.ENOSPC
    assert 60 <= file.size() <= 100
    file.truncate(0)
    file.write([bytes(100)])


def test_a_full_disk_can_be_written_over():
    sizes = set()
    for seed in range(50):
        box = machine(seed, capacity_bytes=100)
        file = box.fs.open("data/journal", create=True, appends=False)
        file.write_at(0, bytes(95))
        with pytest.raises(OSError) as caught:
            file.write_at(90, b"x" * 20)
        assert caught.value.errno == errno.ENOSPC
        sizes.add(file.size())
        assert file.read(90, 100) == b"x" * (file.size() - 90)
        box.disk.fill(0)
        file.write_at(0, b"y" * 95)
        assert file.read(0, 95) == b"y" * 95
    assert sizes == set(range(95, 101))


def test_the_nth_sync_fails():
    box = machine()
    file = box.fs.open("data/log", create=True)
    box.disk.fail_syncs.add(box.disk.syncs + 2)
    file.sync()
    with pytest.raises(OSError) as caught:
        file.sync()
    assert caught.value.errno == errno.EIO
    file.sync()


def test_old_handles_are_dead_after_a_crash():
    box = machine()
    old_fs = box.fs
    file = box.durable_file("data/log")
    box.crash()
    with pytest.raises(Killed):
        file.write([b"from the grave"])
    with pytest.raises(Killed):
        file.read(0, 1)
    with pytest.raises(Killed):
        old_fs.listdir("data")
    assert box.fs.size("data/log") == 0


def test_run_takes_virtual_time_and_returns_or_raises():
    box = machine()

    async def main() -> None:
        started = box.loop.time()
        assert await box.fs.run(lambda: 7) == 7
        assert RUN_SECONDS_MIN <= box.loop.time() - started <= RUN_SECONDS_MAX
        with pytest.raises(FileNotFoundError):
            await box.fs.run(lambda: box.fs.read_all("data/missing"))

    box.loop.run(main())


def test_a_sync_that_runs_beside_the_loop_covers_only_what_was_written_before_it():
    found = set()
    for seed in range(100):
        box = machine(seed)
        file = box.durable_file("data/log")

        async def main(box: Machine = box, file: SimFile = file) -> None:
            file.write([b"before"])
            syncing = asyncio.ensure_future(box.fs.run(file.sync))
            await asyncio.sleep(0)
            file.write([b"meanwhile"])
            await syncing

        box.loop.run(main())
        found.add(box.crash().read_all("data/log"))
    assert all(content.startswith(b"before") for content in found)
    assert b"before" in found


def test_a_sync_that_runs_beside_the_loop_covers_only_what_was_written_over_before_it():
    found = set()
    for seed in range(100):
        box = machine(seed)
        box.durable_file("data/journal", b"....")
        file = box.fs.open("data/journal", appends=False)

        async def main(box: Machine = box, file: SimFile = file) -> None:
            file.write_at(0, b"ab")
            syncing = asyncio.ensure_future(box.fs.run(file.sync))
            await asyncio.sleep(0)
            file.write_at(1, b"cd")
            await syncing

        box.loop.run(main())
        found.add(box.crash().read_all("data/journal"))
    assert found == {b"ab..", b"acd."}


def test_work_in_run_covers_its_own_writes():
    for seed in range(50):
        box = machine(seed)

        def checkpoint(box: Machine = box) -> None:
            file = box.fs.open("data/checkpoint.tmp", create=True)
            file.write([b"new"])
            file.sync()
            box.fs.rename("data/checkpoint.tmp", "data/checkpoint")
            box.fs.sync_dir("data")

        box.loop.run(box.fs.run(checkpoint))
        assert box.crash().read_all("data/checkpoint") == b"new"


def test_work_goes_on_when_its_waiter_is_cancelled_and_stops_when_the_process_dies():
    for dies in (False, True):
        box = machine()
        process = Process(box.loop, "broker")
        done: list[bool] = []

        async def main(
            box: Machine = box, process: Process = process, done: list[bool] = done, dies: bool = dies
        ) -> None:
            task = process.spawn(box.fs.run(lambda: done.append(True)))
            await asyncio.sleep(RUN_SECONDS_MIN / 2)
            task.cancel()
            if dies:
                process.kill()
                box.disk.crash()
            await asyncio.sleep(1)

        box.loop.run(main())
        assert done == ([] if dies else [True])


def test_the_power_can_go_in_the_middle_of_blocking_work():
    box = machine()
    process = Process(box.loop, "broker")

    def cut() -> None:
        process.kill()
        box.disk.crash()

    def work() -> None:
        for name in "abc":
            box.fs.open(f"data/{name}", create=True)
            box.fs.sync_dir("data")

    async def main() -> None:
        box.disk.on_power_cut = cut
        box.disk.cut_power_at = box.disk.operations + 4  # The sync after the second file.
        with pytest.raises(Killed):
            await process.call(box.fs.run(work))

    box.loop.run(main())
    assert box.mount().listdir("data") in (["a"], ["a", "b"])
    assert not box.loop.failures
