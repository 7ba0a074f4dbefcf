"""Linux's queue of requests to files and sockets (io_submit), by its system calls: Python has no name for them.

Many requests can be handed over by one call. What a request did is told by an event with the number that it was given.
"""

import errno
import os
import platform
import struct
import sys
from typing import NamedTuple

from penstock.base.system_call import system_call

WRITE = 1  # IOCB_CMD_PWRITE
FDSYNC = 3  # IOCB_CMD_FDSYNC, since Linux 4.18
TELLS = 1  # IOCB_FLAG_RESFD: the descriptor that follows is told of the event.
# struct iocb: our number, …, command, …, descriptor, address, size, …, flags, who is told.
REQUEST = struct.Struct("=QIIHhIQQqQII")
EVENT = struct.Struct("=QQqq")  # struct io_event: our number, …, result, …


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


class KernelQueue:
    def __init__(self, count_max: int, *, place_bytes: int = 0) -> None:
        """For as many requests at a time; OSError or ImportError on a system that has no such queue for us.

        `place` is memory for what they write, at `place_address` for the kernel.
        """
        numbers = _CALL_NUMBERS.get(platform.machine())
        if sys.platform != "linux" or numbers is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        import ctypes  # Not with the module: it takes a while to load.

        long, address, queue = ctypes.c_long, ctypes.c_void_p, ctypes.c_ulong
        setup = system_call(numbers.setup, long, address)
        self._destroy = system_call(numbers.destroy, queue)
        self._submit = system_call(numbers.submit, queue, long, address)
        self._getevents = system_call(numbers.getevents, queue, long, long, address, address)
        self._queue = queue(0)
        if setup(count_max, ctypes.byref(self._queue)) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self._count_max = count_max
        requests = ctypes.create_string_buffer(REQUEST.size * count_max)
        self.requests = memoryview(requests).cast("B")  # To be packed; the kernel copies them when they are submitted.
        start = ctypes.addressof(requests)
        self._addresses = (address * count_max)(*range(start, start + len(self.requests), REQUEST.size))
        place = ctypes.create_string_buffer(place_bytes)
        self.place, self.place_address = memoryview(place).cast("B"), ctypes.addressof(place)
        self._events = ctypes.create_string_buffer(EVENT.size * count_max)

    def submit(self, count: int) -> int:
        """How many of the first `count` requests were taken; the next one is at fault then."""
        return max(self._submit(self._queue, count, self._addresses), 0)

    def events(self, count_min: int = 0) -> memoryview:
        """Those that have come, at least so many; they are overwritten by the next."""
        count = self._getevents(self._queue, count_min, self._count_max, self._events, None)
        return memoryview(self._events).cast("B")[: EVENT.size * max(count, 0)]

    def close(self) -> None:
        """Return when nothing is under way."""
        self._destroy(self._queue)
