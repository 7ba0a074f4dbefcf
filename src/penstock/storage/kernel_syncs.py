"""Syncs that the kernel carries out by itself: one call begins one, and a descriptor tells the loop of its end.

A thread that has synced needs the interpreter's lock, which the loop holds: to hand it over takes both of them longer
than the sync takes a good disk. Linux does it without a thread of ours since 4.18 (io_submit with IOCB_CMD_FDSYNC).
Python has no name for that, and some containers and file systems do not allow it: then threads do it.
"""

import asyncio
import errno
import os
import platform
import struct
import sys
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import NamedTuple, Self

from penstock.base.logging import get_logger

log = get_logger(__name__)

IN_FLIGHT_MAX = 64  # A log has one at a time; more of them wait for threads, and would wait for the disk anyway.

_FDSYNC = 3  # IOCB_CMD_FDSYNC
_TELLS = 1  # IOCB_FLAG_RESFD: the descriptor that follows is told.
_REQUEST = struct.Struct("=QIIHhIQQqQII")  # struct iocb: our number, …, command, …, descriptor, …, flags, who is told.
_EVENT = struct.Struct("=QQqq")  # struct io_event: our number, …, result, …


class _CallNumbers(NamedTuple):
    setup: int
    destroy: int
    submit: int
    getevents: int


# Of machines with the layouts above.
_CALL_NUMBERS = {
    "x86_64": _CallNumbers(setup=206, destroy=207, submit=209, getevents=208),
    "aarch64": _CallNumbers(setup=0, destroy=1, submit=2, getevents=4),
}


class KernelSyncs:
    """For the event loop in which it is used. As a context manager: at its end no sync is under way."""

    def __init__(self) -> None:
        self._queue: _Queue | None = None
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
        request = _REQUEST.pack(self._count, 0, 0, _FDSYNC, 0, descriptor, 0, 0, 0, 0, _TELLS, self._event_fd)
        if not self._queue.submit(request):
            return None  # The file system cannot do it. Or the file is not fit for it, as the thread will say.
        future = self._waiting[self._count] = asyncio.get_running_loop().create_future()
        return future

    def _open(self) -> bool:
        """With the first sync, not with the broker: ctypes takes a while to load."""
        if self._is_unavailable:
            return False
        try:
            queue = _Queue()  # First: only Linux has eventfds.
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
        for number, _, result, _ in _EVENT.iter_unpack(self._queue.events()):
            future = self._waiting.pop(number)
            if future.cancelled():
                continue
            if result < 0:
                future.set_exception(OSError(-result, os.strerror(-result)))
            else:
                future.set_result(None)


class _Queue:
    """The kernel's queue of requests, by its system calls. OSError on a system that has none for us."""

    def __init__(self) -> None:
        numbers = _CALL_NUMBERS.get(platform.machine())
        if sys.platform != "linux" or numbers is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)

        def call(number: int, *types: type) -> Callable[..., int]:
            function = libc["syscall"]
            function.argtypes, function.restype = [ctypes.c_long, *types], ctypes.c_long
            return partial(function, number)

        long, address, queue = ctypes.c_long, ctypes.c_void_p, ctypes.c_ulong
        setup = call(numbers.setup, long, address)
        self._destroy = call(numbers.destroy, queue)
        self._submit = call(numbers.submit, queue, long, address)
        self._getevents = call(numbers.getevents, queue, long, long, address, address)
        self._queue = queue(0)
        if setup(IN_FLIGHT_MAX, ctypes.byref(self._queue)) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self._request = ctypes.create_string_buffer(_REQUEST.size)
        self._requests = (address * 1)(ctypes.addressof(self._request))
        self._events = ctypes.create_string_buffer(_EVENT.size * IN_FLIGHT_MAX)

    def submit(self, request: bytes) -> bool:
        """Whether it was taken."""
        self._request.raw = request  # The kernel copies it, so that one is enough.
        return self._submit(self._queue, 1, self._requests) == 1

    def events(self) -> memoryview:
        """Those that have come; they are overwritten by the next."""
        count = self._getevents(self._queue, 0, IN_FLIGHT_MAX, self._events, None)
        return memoryview(self._events).cast("B")[: _EVENT.size * max(count, 0)]

    def close(self) -> None:
        """Return when nothing is under way."""
        self._destroy(self._queue)
