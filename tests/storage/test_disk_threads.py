"""Work that waits for the disk: every job is done once, and its result comes back to the loop."""

import asyncio
import gc
import threading
import weakref

import pytest

from penstock.storage.disk_threads import DiskThreads


def test_results_and_errors_come_back_to_whoever_waits() -> None:
    async def scenario(threads: DiskThreads) -> None:
        assert await threads.run(threading.get_ident) != threading.get_ident()
        with pytest.raises(OSError, match="no disk"):
            await threads.run(fail)
        assert await asyncio.gather(*(threads.run(lambda number=number: number) for number in range(100))) == list(
            range(100)
        )

    def fail() -> None:
        raise OSError("no disk")

    with DiskThreads(count_max=3) as threads:
        asyncio.run(scenario(threads))
    assert not any(thread.is_alive() for thread in threads._threads)


def test_threads_are_as_many_as_there_is_work_for_and_no_more() -> None:
    async def scenario(threads: DiskThreads) -> None:
        for _ in range(5):
            await threads.run(lambda: None)
        assert len(threads._threads) == 1
        together = threading.Barrier(3)
        await asyncio.gather(*(threads.run(lambda: together.wait(60)) for _ in range(3)))
        await asyncio.gather(*(threads.run(lambda: None) for _ in range(50)))
        assert len(threads._threads) == 3

    with DiskThreads(count_max=3) as threads:
        asyncio.run(scenario(threads))


def test_a_job_goes_on_when_nobody_waits_for_it() -> None:
    may_go, done = threading.Event(), threading.Event()

    async def scenario(threads: DiskThreads) -> None:
        task = asyncio.ensure_future(threads.run(lambda: (may_go.wait(60), done.set())))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not done.is_set()
        may_go.set()
        assert await threads.run(lambda: 1) == 1

    with DiskThreads(count_max=1) as threads:
        asyncio.run(scenario(threads))
    assert done.is_set()


def test_a_loop_that_is_gone_stops_no_thread() -> None:
    may_go, done = threading.Event(), threading.Event()

    async def scenario(threads: DiskThreads) -> None:
        threads.run(lambda: may_go.wait(60))
        threads.run(done.set)

    with DiskThreads(count_max=1) as threads:
        asyncio.run(scenario(threads))
        may_go.set()
        assert done.wait(60)


def test_what_a_job_held_is_let_go() -> None:
    class Batch:
        pass

    async def scenario(threads: DiskThreads) -> None:
        batch = Batch()
        found = weakref.ref(batch)
        await threads.run(lambda held=batch: None)
        del batch
        gc.collect()
        for _ in range(6000):
            if found() is None:
                return
            await asyncio.sleep(0.01)
        pytest.fail("the thread still holds it")

    with DiskThreads(count_max=1) as threads:
        asyncio.run(scenario(threads))
