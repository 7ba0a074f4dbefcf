"""Syncs that the kernel carries out by itself: one call begins one, and a descriptor tells the loop of its end.

So does a write that is on disk when it is done (`direct_file.py`).

A thread that has synced needs the interpreter's lock, which the loop holds: to hand it over takes both of them longer
than the sync takes a good disk. Linux does it without a thread of ours by io_uring, and where that is not allowed (many
containers do not) by io_submit. Where neither is, threads do it.
"""

import asyncio
import errno
import os
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Protocol, Self

from penstock.base.io_ring import IoRing
from penstock.base.kernel_queue import EVENT, FDSYNC, REQUEST, TELLS, WRITE, KernelQueue
from penstock.base.logging import get_logger

log = get_logger(__name__)

IN_FLIGHT_MAX = 64  # A log has one at a time; more of them wait for threads, and would wait for the disk anyway.


class Way(Protocol):
    """How the kernel is asked. Made for so many at a time; OSError or ImportError then: it cannot be asked so."""

    @property
    def descriptor(self) -> int:
        """Can be read from when there are results."""

    def fdatasync(self, number: int, descriptor: int) -> bool:
        """Begin one; False if the kernel does not take it."""

    def write(self, number: int, descriptor: int, address: int, size: int, position: int) -> bool:
        """The same, of memory that stays as it is until it has ended."""

    def results(self) -> Iterable[tuple[int, int]]:
        """The number of each that has ended since, and how much was written (of a sync 0), or the error, below 0."""

    def close(self) -> None:
        """Return when nothing is under way."""


class QueuedSyncs:
    """By io_submit, since Linux 4.18. A worker of the kernel syncs, on the processor that asked for it and no other."""

    def __init__(self, count_max: int) -> None:
        self._queue = KernelQueue(count_max)  # First: only Linux has eventfds.
        try:
            self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError:
            self._queue.close()
            raise

    def fdatasync(self, number: int, descriptor: int) -> bool:
        return self._begin(number, FDSYNC, descriptor)

    def write(self, number: int, descriptor: int, address: int, size: int, position: int) -> bool:
        return self._begin(number, WRITE, descriptor, address, size, position)

    def _begin(
        self, number: int, command: int, descriptor: int, address: int = 0, size: int = 0, position: int = 0
    ) -> bool:
        what, told = (command, 0, descriptor, address, size, position, 0), (TELLS, self.descriptor)
        REQUEST.pack_into(self._queue.requests, 0, number, 0, 0, *what, *told)
        return self._queue.submit(1) == 1

    def results(self) -> list[tuple[int, int]]:
        os.eventfd_read(self.descriptor)  # Before the events: one that comes in between is told of again.
        return [(number, result) for number, _, result, _ in EVENT.iter_unpack(self._queue.events())]

    def close(self) -> None:
        self._queue.close()
        os.close(self.descriptor)


WAYS: Sequence[Callable[[int], Way]] = (IoRing, QueuedSyncs)  # The first that can be had.


class KernelSyncs:
    """For the event loop in which it is used. As a context manager: at its end no sync is under way."""

    def __init__(self, ways: Sequence[Callable[[int], Way]] = WAYS) -> None:
        self._ways = ways
        self._way: Way | None = None
        self._is_unavailable = False
        self._waiting: dict[int, tuple[asyncio.Future[None], int]] = {}  # With what the kernel says when all is well.
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._way is not None:
            asyncio.get_running_loop().remove_reader(self._way.descriptor)
            self._way.close()  # Waits for those that are under way.
            self._way = None
        self._is_unavailable = True

    def begin(self, descriptor: int) -> "asyncio.Future[None] | None":
        """Done, or failed with OSError, when all that was written to the file is on disk; None: ask a thread."""
        way = self._free_way()
        if way is None or not way.fdatasync(self._count, descriptor):
            return None  # The file system cannot do it. Or the file is not fit for it, as the thread will say.
        return self._wait_for(0)

    def begin_write(self, descriptor: int, address: int, size: int, position: int) -> "asyncio.Future[None] | None":
        """Done, or failed with OSError, when it has ended: until then the memory must stay. None: it has not begun."""
        way = self._free_way()
        if way is None or not way.write(self._count, descriptor, address, size, position):
            return None
        return self._wait_for(size)

    def _free_way(self) -> Way | None:
        """For one more; None: there is none, or too much is under way."""
        if len(self._waiting) >= IN_FLIGHT_MAX or (self._way is None and not self._open()):
            return None
        self._count += 1
        return self._way

    def _wait_for(self, result: int) -> "asyncio.Future[None]":
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[self._count] = future, result
        return future

    def _open(self) -> bool:
        """With the first sync, not with the broker: ctypes takes a while to load."""
        if self._is_unavailable:
            return False
        for way in self._ways:
            try:
                self._way = way(IN_FLIGHT_MAX)
            except (OSError, ImportError) as error:  # Not the disk's failure: nobody may take it for one.
                log.debug("the kernel does not sync so", way=way, reason=error)
                continue
            asyncio.get_running_loop().add_reader(self._way.descriptor, self._on_done)
            return True
        self._is_unavailable = True
        log.debug("threads sync files")
        return False

    def _on_done(self) -> None:
        assert self._way is not None
        for number, result in self._way.results():
            future, expected = self._waiting.pop(number)
            if future.cancelled():
                continue
            if result == expected:
                future.set_result(None)
            else:  # Of a write in part nothing is known to be on disk.
                code = -result if result < 0 else errno.EIO
                future.set_exception(OSError(code, os.strerror(code)))
