"""The threads that wait for the disk, and a short way there and back.

A sync takes 0.2 to 1 ms on a good disk, so the way counts: an executor's futures, conditions and semaphores would take
as long again. Here a job is one put into a queue, and one call back into the loop.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")


class DiskThreads:
    """For the event loop in which it is used. As a context manager: at its end the threads have done all their jobs."""

    def __init__(self, *, count_max: int, name: str = "disk") -> None:
        self._count_max = count_max
        self._name = name
        self._jobs: SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._unfinished_count = 0  # Touched by the loop alone.

    def __enter__(self) -> "DiskThreads":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def run(self, function: Callable[[], T]) -> "asyncio.Future[T]":
        """What `function` gives or raises. It goes on when nobody waits for it any more."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._unfinished_count += 1
        if self._unfinished_count > len(self._threads) < self._count_max:
            name = f"{self._name} {len(self._threads)}"
            self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
            self._threads[-1].start()
        self._jobs.put((function, future))
        return future

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, future = job
            result, error = None, None
            try:
                result = function()
            except BaseException as raised:
                error = raised
            with suppress(RuntimeError):  # The loop is closed, and with it has gone whoever waited.
                future.get_loop().call_soon_threadsafe(self._on_done, future, result, error)
            del job, function, future, result, error  # Not to be held until the next job comes.

    def _on_done(self, future: "asyncio.Future[Any]", result: object, error: BaseException | None) -> None:
        self._unfinished_count -= 1
        if future.cancelled():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
