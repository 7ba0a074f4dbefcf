import asyncio
import errno
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from penstock.base.io_ring import IoRing
from penstock.storage.disk_threads import DiskThreads
from penstock.storage.fs import PosixFile, PosixFileSystem
from penstock.storage.group_commit import GroupCommit
from penstock.storage.kernel_syncs import IN_FLIGHT_MAX, WAYS, KernelSyncs, QueuedSyncs, Way

from .support import append, flush, opened, run, until

Scenario = Callable[[KernelSyncs], Awaitable[None]]
NewWay = Callable[[int], Way]
WithSyncs = Callable[[Scenario], None]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> type[IoRing | QueuedSyncs]:
    try:
        request.param(1).close()
    except OSError as error:
        pytest.skip(f"NOT TESTED: this system does not let us sync files by {request.param.__name__}: {error}")
    return request.param


@pytest.fixture
def with_syncs(way: NewWay) -> WithSyncs:
    def carry_out(scenario: Scenario) -> None:
        async def main() -> None:
            with KernelSyncs([way]) as syncs:
                await scenario(syncs)

        run(main())

    return carry_out


def written(path: Path) -> PosixFile:
    file = PosixFileSystem().open(str(path), create=True)
    file.write([b"records"])
    return file


def test_a_file_is_synced_and_its_waiter_told(tmp_path: Path, with_syncs: WithSyncs) -> None:
    async def scenario(syncs: KernelSyncs) -> None:
        for number in range(3):
            done = syncs.begin(written(tmp_path / str(number)).descriptor)
            assert done is not None
            assert await done is None

    with_syncs(scenario)


def test_syncs_of_many_files_are_under_way_at_once(tmp_path: Path, with_syncs: WithSyncs) -> None:
    async def scenario(syncs: KernelSyncs) -> None:
        files = [written(tmp_path / str(number)) for number in range(IN_FLIGHT_MAX)]
        for _ in range(5):
            begun = [syncs.begin(file.descriptor) for file in files]
            assert None not in begun
            assert syncs.begin(files[0].descriptor) is None  # One too many: a thread's work.
            await asyncio.gather(*(done for done in begun if done is not None))

    with_syncs(scenario)


def failing(way: type[IoRing | QueuedSyncs], results: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk whose syncs end so, as the kernel would tell."""
    found = way.results
    monkeypatch.setattr(way, "results", lambda self: [(number, results.pop(0)) for number, _ in found(self)])


def test_what_goes_wrong_is_told_to_who_waits(
    tmp_path: Path, way: type[IoRing | QueuedSyncs], with_syncs: WithSyncs, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(syncs: KernelSyncs) -> None:
        done = syncs.begin(written(tmp_path / "file").descriptor)
        assert done is not None
        with pytest.raises(OSError, match="Input/output") as caught:
            await done
        assert caught.value.errno == errno.EIO

    failing(way, [-errno.EIO], monkeypatch)
    with_syncs(scenario)


def test_a_log_commits_what_the_kernel_has_synced_and_fails_when_it_has_not(
    tmp_path: Path, way: type[IoRing | QueuedSyncs], with_syncs: WithSyncs, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = [0, -errno.EIO]
    failing(way, results, monkeypatch)

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

    with_syncs(scenario)


def test_who_no_longer_waits_is_not_told(tmp_path: Path, with_syncs: WithSyncs) -> None:
    async def scenario(syncs: KernelSyncs) -> None:
        file = written(tmp_path / "file")
        done, other = syncs.begin(file.descriptor), syncs.begin(file.descriptor)
        assert done is not None
        assert other is not None
        done.cancel()
        await other
        await until(lambda: not syncs._waiting)

    with_syncs(scenario)


def test_a_file_may_be_closed_while_it_is_synced(tmp_path: Path, with_syncs: WithSyncs) -> None:
    async def scenario(syncs: KernelSyncs) -> None:
        for _ in range(100):
            file = written(tmp_path / "file")
            done = syncs.begin(file.descriptor)
            file.close()
            reader, writer = os.pipe()  # Has its descriptor now, and cannot be synced.
            assert done is not None
            await done
            os.close(reader)
            os.close(writer)

    with_syncs(scenario)


def test_what_cannot_be_synced_fails_or_is_left_to_threads(with_syncs: WithSyncs) -> None:
    """io_uring takes a pipe and tells later, io_submit refuses it; a thread will find out the same."""

    async def scenario(syncs: KernelSyncs) -> None:
        reader, writer = os.pipe()
        done = syncs.begin(writer)
        if done is not None:
            with pytest.raises(OSError, match="Invalid argument"):
                await done
        os.close(reader)
        os.close(writer)
        assert syncs.begin(writer) is None

    with_syncs(scenario)


def test_too_many_open_files_are_no_failure_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def main() -> None:
        with KernelSyncs([refused, QueuedSyncs]) as syncs:
            assert syncs.begin(written(tmp_path / "file").descriptor) is None

    monkeypatch.setattr(os, "eventfd", refused)
    run(main())


def test_where_one_way_is_closed_the_next_is_taken(tmp_path: Path, way: NewWay) -> None:
    def forbidden(count_max: int) -> Way:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))  # As a container says it.

    async def main() -> None:
        with KernelSyncs([forbidden, way]) as syncs:
            done = syncs.begin(written(tmp_path / "file").descriptor)
            assert done is not None
            await done

    run(main())


@pytest.fixture
def ring() -> Iterator[IoRing]:
    try:
        ring = IoRing(2)
    except OSError as error:
        pytest.skip(f"NOT TESTED: rings of the kernel. This system has none for us: {error}")
    yield ring
    ring.close()


def results_of(ring: IoRing) -> list[tuple[int, int]]:
    while not (found := ring.results()):
        os.sched_yield()
    return found


def test_a_ring_goes_round_and_round(tmp_path: Path, ring: IoRing) -> None:
    file = written(tmp_path / "file")
    for number in range(1, 50):
        assert ring.fdatasync(number, file.descriptor)
        assert results_of(ring) == [(number, 0)]


def test_a_descriptor_that_fails_to_close_takes_no_result_away(
    tmp_path: Path, ring: IoRing, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = os.close

    def closed_and_failed(descriptor: int) -> None:
        close(descriptor)
        raise OSError(errno.EIO, os.strerror(errno.EIO))  # As NFS may say it.

    file = written(tmp_path / "file")
    monkeypatch.setattr(os, "close", closed_and_failed)
    for number in (1, 2):
        assert ring.fdatasync(number, file.descriptor)
        assert results_of(ring) == [(number, 0)]
    monkeypatch.undo()


def test_nothing_is_left_open(tmp_path: Path, with_syncs: WithSyncs) -> None:
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
    tmp_path: Path, way: NewWay, monkeypatch: pytest.MonkeyPatch, is_available: bool
) -> None:
    by_thread: list[str] = []
    sync = PosixFile.sync

    def counted(file: PosixFile) -> None:
        by_thread.append(file.path)
        sync(file)

    async def main() -> None:
        with DiskThreads(count_max=1) as threads, KernelSyncs([way] if is_available else []) as syncs:
            fs = PosixFileSystem(threads, syncs)
            for _ in range(2):
                await fs.sync(written(tmp_path / "file"))

    monkeypatch.setattr(PosixFile, "sync", counted)
    run(main())
    assert len(by_thread) == (0 if is_available else 2)


@pytest.mark.parametrize("new", [IoRing, QueuedSyncs])
@pytest.mark.parametrize("system", [("darwin", "x86_64"), ("linux", "s390x")])
def test_a_system_without_it_says_so(monkeypatch: pytest.MonkeyPatch, new: NewWay, system: tuple[str, str]) -> None:
    monkeypatch.setattr("sys.platform", system[0])
    monkeypatch.setattr("platform.machine", lambda: system[1])
    with pytest.raises(OSError, match="not implemented"):
        new(1)
