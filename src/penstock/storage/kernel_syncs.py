"""Syncs that the kernel carries out by itself: one call begins one, and a descriptor tells the loop of its end.

A thread that has synced needs the interpreter's lock, which the loop holds: to hand it over takes both of them longer
than the sync takes a good disk. Linux does it without a thread of ours since 4.18 (io_submit with IOCB_CMD_FDSYNC).
Some containers and file systems do not allow it: then threads do it.
"""

import asyncio
import os
from types import TracebackType
from typing import Self

from penstock.base.kernel_queue import EVENT, FDSYNC, REQUEST, TELLS, KernelQueue
from penstock.base.logging import get_logger

log = get_logger(__name__)

IN_FLIGHT_MAX = 64  # A log has one at a time; more of them wait for threads, and would wait for the disk anyway.


class KernelSyncs:
    """For the event loop in which it is used. As a context manager: at its end no sync is under way."""

    def __init__(self) -> None:
        self._queue: KernelQueue | None = None
        self._is_unavailable = False
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._count = 0
        self._event_fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._queue is not None:
            asyncio.get_running_loop().remove_reader(self._event_fd)
            self._queue.close()  # Waits for those that are under way.
            os.close(self._event_fd)
            self._queue = None
        self._is_unavailable = True

    def begin(self, descriptor: int) -> "asyncio.Future[None] | None":
        """Done, or failed with OSError, when all that was written to the file is on disk; None: ask a thread."""
        if self._queue is None and not self._open():
            return None
        assert self._queue is not None
        if len(self._waiting) >= IN_FLIGHT_MAX:
            return None
        self._count += 1
        what, told = (FDSYNC, 0, descriptor, 0, 0, 0, 0), (TELLS, self._event_fd)
        REQUEST.pack_into(self._queue.requests, 0, self._count, 0, 0, *what, *told)
        if not self._queue.submit(1):
            return None  # The file system cannot do it. Or the file is not fit for it, as the thread will say.
        future = self._waiting[self._count] = asyncio.get_running_loop().create_future()
        return future

    def _open(self) -> bool:
        """With the first sync, not with the broker: ctypes takes a while to load."""
        if self._is_unavailable:
            return False
        try:
            queue = KernelQueue(IN_FLIGHT_MAX)  # First: only Linux has eventfds.
            try:
                self._event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            except OSError:
                queue.close()
                raise
        except (OSError, ImportError) as error:  # Not the disk's failure: nobody may take it for one.
            self._is_unavailable = True
            log.debug("threads sync files: the kernel does not do it by itself", reason=error)
            return False
        self._queue = queue
        asyncio.get_running_loop().add_reader(self._event_fd, self._on_done)
        return True

    def _on_done(self) -> None:
        assert self._queue is not None
        os.eventfd_read(self._event_fd)  # Before the events: one that comes in between is told of again.
        for number, _, result, _ in EVENT.iter_unpack(self._queue.events()):
            future = self._waiting.pop(number)
            if future.cancelled():
                continue
            if result < 0:
                future.set_exception(OSError(-result, os.strerror(-result)))
            else:
                future.set_result(None)
