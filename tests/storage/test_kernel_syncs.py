import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from penstock.base import kernel_queue
from penstock.base.kernel_queue import EVENT, KernelQueue
from penstock.storage.disk_threads import DiskThreads
from penstock.storage.fs import PosixFile, PosixFileSystem
from penstock.storage.group_commit import GroupCommit
from penstock.storage.kernel_syncs import IN_FLIGHT_MAX, KernelSyncs

from .support import append, flush, opened, run, until

Scenario = Callable[[KernelSyncs], Awaitable[None]]


def with_syncs(scenario: Scenario) -> None:
    async def main() -> None:
        with KernelSyncs() as syncs:
            await scenario(syncs)

    run(main())


def written(path: Path) -> PosixFile:
    file = PosixFileSystem().open(str(path), create=True)
    file.write([b"records"])
    return file


@pytest.fixture(autouse=True)
def _have_kernel_syncs() -> None:
    try:
        KernelQueue(1).close()
    except OSError as error:
        pytest.skip(f"NOT TESTED: this system syncs files by threads only: {error}")


def test_a_file_is_synced_and_its_waiter_told(tmp_path: Path) -> None:
    async def scenario(syncs: KernelSyncs) -> None:
        for number in range(3):
            done = syncs.begin(written(tmp_path / str(number)).descriptor)
            assert done is not None
            assert await done is None

    with_syncs(scenario)


def test_syncs_of_many_files_are_under_way_at_once(tmp_path: Path) -> None:
    async def scenario(syncs: KernelSyncs) -> None:
        files = [written(tmp_path / str(number)) for number in range(IN_FLIGHT_MAX)]
        for _ in range(5):
            begun = [syncs.begin(file.descriptor) for file in files]
            assert None not in begun
            assert syncs.begin(files[0].descriptor) is None  # One too many: a thread's work.
            await asyncio.gather(*(done for done in begun if done is not None))

    with_syncs(scenario)


def test_what_goes_wrong_is_told_to_who_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fails, as its answer would look."""
    events = KernelQueue.events

    def failed(queue: KernelQueue) -> bytes:
        answers = EVENT.iter_unpack(events(queue))
        return b"".join(EVENT.pack(number, 0, -errno.EIO, 0) for number, *_ in answers)

    async def scenario(syncs: KernelSyncs) -> None:
        done = syncs.begin(written(tmp_path / "file").descriptor)
        assert done is not None
        with pytest.raises(OSError, match="Input/output") as caught:
            await done
        assert caught.value.errno == errno.EIO

    monkeypatch.setattr(KernelQueue, "events", failed)
    with_syncs(scenario)


def test_a_log_commits_what_the_kernel_has_synced_and_fails_when_it_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = [0, -errno.EIO]
    events = KernelQueue.events

    def answers(queue: KernelQueue) -> bytes:
        found = list(EVENT.iter_unpack(events(queue)))
        return b"".join(EVENT.pack(number, 0, results.pop(0), 0) for number, *_ in found)

    async def scenario(syncs: KernelSyncs) -> None:
        failures: list[OSError] = []
        commit = GroupCommit(on_failure=lambda _, error: failures.append(error))
        log = opened(PosixFileSystem(None, syncs), str(tmp_path))
        append(log)
        flush(log)  # A new log has folders to sync as well, which is a thread's work.
        for end in (2, 2):
            append(log)
            begun = log.log_end
            commit.request(log)
            assert log.synced_end < begun
            await commit.finish()
            assert log.synced_end == end
        assert [error.errno for error in failures] == [errno.EIO]
        assert results == []

    monkeypatch.setattr(KernelQueue, "events", answers)
    with_syncs(scenario)


def test_who_no_longer_waits_is_not_told(tmp_path: Path) -> None:
    async def scenario(syncs: KernelSyncs) -> None:
        file = written(tmp_path / "file")
        done, other = syncs.begin(file.descriptor), syncs.begin(file.descriptor)
        assert done is not None
        assert other is not None
        done.cancel()
        await other
        await until(lambda: not syncs._waiting)

    with_syncs(scenario)


def test_a_file_may_be_closed_while_it_is_synced(tmp_path: Path) -> None:
    async def scenario(syncs: KernelSyncs) -> None:
        file = written(tmp_path / "file")
        done = syncs.begin(file.descriptor)
        file.close()
        assert done is not None
        await done

    with_syncs(scenario)


def test_what_cannot_be_synced_so_is_left_to_threads() -> None:
    async def scenario(syncs: KernelSyncs) -> None:
        reader, writer = os.pipe()
        assert syncs.begin(writer) is None
        os.close(reader)
        os.close(writer)
        assert syncs.begin(writer) is None

    with_syncs(scenario)


def test_too_many_open_files_are_no_failure_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def scenario(syncs: KernelSyncs) -> None:
        assert syncs.begin(written(tmp_path / "file").descriptor) is None

    monkeypatch.setattr(os, "eventfd", refused)
    with_syncs(scenario)


def test_nothing_is_left_open(tmp_path: Path) -> None:
    async def scenario(syncs: KernelSyncs) -> None:
        assert syncs.begin(file.descriptor) is not None  # Nobody waits for it.

    file = written(tmp_path / "file")
    with_syncs(scenario)  # The first loop of a process may open descriptors that stay.
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(10):
        with_syncs(scenario)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("is_available", [True, False])
def test_a_file_system_syncs_with_and_without_the_kernel_s_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_available: bool
) -> None:
    by_thread: list[str] = []
    sync = PosixFile.sync

    def counted(file: PosixFile) -> None:
        by_thread.append(file.path)
        sync(file)

    async def main() -> None:
        with DiskThreads(count_max=1) as threads, KernelSyncs() as syncs:
            fs = PosixFileSystem(threads, syncs)
            for _ in range(2):
                await fs.sync(written(tmp_path / "file"))

    monkeypatch.setattr(PosixFile, "sync", counted)
    if not is_available:
        monkeypatch.setattr(kernel_queue, "_CALL_NUMBERS", {})
        monkeypatch.delattr(os, "eventfd")  # As on a system that is not Linux.
    run(main())
    assert len(by_thread) == (0 if is_available else 2)
