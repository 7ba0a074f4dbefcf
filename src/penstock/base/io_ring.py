"""Linux's rings of requests and results (io_uring), by their system calls: Python has no name for them.

Here for syncs, and for writes past the page cache that are on disk when they are done. A thread of the kernel carries
a sync out, on whatever processor is free; the ring's descriptor can be read from while there are results.
"""

import contextlib
import errno
import mmap
import os
import platform
import struct
import sys

from penstock.base.system_call import system_call

# The same on all machines.
_SETUP, _ENTER = 425, 426
_WAIT = 1  # IORING_ENTER_GETEVENTS
_IS_ONE_MAP = 1  # IORING_FEAT_SINGLE_MMAP, since Linux 5.4: requests and results are in one piece of memory.
_ENTRIES_AT = 0x10000000  # IORING_OFF_SQES

_FSYNC, _DATA_ONLY = 3, 1  # IORING_OP_FSYNC, IORING_FSYNC_DATASYNC. Never done in the call that submits it.
_WRITE = 23  # IORING_OP_WRITE, since Linux 5.6; before, the result is an error.

# struct io_uring_params: entries of both rings, …, features, …; then of each ring where its head, tail, mask, …, are.
_PARAMS = struct.Struct("=2I3II4I8IQ8IQ")
# struct io_uring_sqe: operation, flags, …, descriptor, position, address, size, flags of the operation, our number, …
_ENTRY = struct.Struct("=BBHiQQIIQ24x")
_RESULT = struct.Struct("=QiI")  # struct io_uring_cqe: our number, result, …


class IoRing:
    def __init__(self, count_max: int) -> None:
        """For so many requests at a time, a power of two; OSError or ImportError where there is no ring for us."""
        # Other processors may see our stores in another order, and Python has no barrier to put between them.
        if sys.platform != "linux" or platform.machine() != "x86_64":
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        import ctypes  # Not with the module: it takes a while to load.

        number, address = ctypes.c_uint, ctypes.c_void_p
        setup = system_call(_SETUP, number, address)
        self._enter = system_call(_ENTER, number, number, number, number, address, ctypes.c_size_t)
        params = ctypes.create_string_buffer(_PARAMS.size)
        self.descriptor = setup(count_max, params)  # The kernel has it closed on exec.
        if self.descriptor < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        try:
            self._map(_PARAMS.unpack(params))
        except BaseException:
            os.close(self.descriptor)
            raise
        self._descriptors: dict[int, int] = {}  # Of those under way, by their numbers.

    def _map(self, params: tuple[int, ...]) -> None:
        entries, results, features, requests_at, results_at = (*params[:2], params[5], params[10:19], params[19:28])
        if not features & _IS_ONE_MAP:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        array_at = requests_at[6]
        size = max(array_at + 4 * entries, results_at[5] + _RESULT.size * results)
        self._memory = mmap.mmap(self.descriptor, size)
        self._entries = mmap.mmap(self.descriptor, 64 * entries, offset=_ENTRIES_AT)
        self._words = words = memoryview(self._memory)[: size // 4 * 4].cast("I")
        self._head, self._tail, mask_at = (each // 4 for each in requests_at[:3])
        self._mask = words[mask_at]
        self._results_head, self._results_tail, mask_at = (each // 4 for each in results_at[:3])
        self._results_mask, self._results_at = words[mask_at], results_at[5]
        for index in range(entries):  # Each place of the ring has the entry of the same number, for ever.
            words[array_at // 4 + index] = index

    def fdatasync(self, number: int, descriptor: int) -> bool:
        """Begin one, whose result will have that number; False if the kernel does not take it now."""
        return self._begin(number, descriptor, _FSYNC, 0, 0, 0, _DATA_ONLY)

    def write(self, number: int, descriptor: int, address: int, size: int, position: int) -> bool:
        """Begin one, of memory that stays as it is until there is a result: how much was written."""
        return self._begin(number, descriptor, _WRITE, position, address, size, 0)

    def _begin(self, number: int, descriptor: int, operation: int, *where: int) -> bool:
        """The kernel looks the file up when it gets to it. It may have been closed by then, and another have its
        descriptor: so what is begun has a descriptor of its own.
        """
        try:
            own = os.dup(descriptor)
        except OSError:
            return False
        words, tail = self._words, self._words[self._tail]
        _ENTRY.pack_into(self._entries, (tail & self._mask) * _ENTRY.size, operation, 0, 0, own, *where, number)
        words[self._tail] = after = (tail + 1) & 0xFFFFFFFF
        self._enter(self.descriptor, 1, 0, 0, None, 0)
        if words[self._head] != after:
            words[self._tail] = tail
            os.close(own)
            return False
        self._descriptors[number] = own
        return True

    def results(self) -> list[tuple[int, int]]:
        """Those that have come, each with its number: 0, how much was written, or an error's number below 0."""
        words, head = self._words, self._words[self._results_head]
        found = []
        while head != words[self._results_tail]:
            at = self._results_at + (head & self._results_mask) * _RESULT.size
            number, result, _ = _RESULT.unpack_from(self._memory, at)
            found.append((number, result))
            head = (head + 1) & 0xFFFFFFFF
        words[self._results_head] = head
        for number, _ in found:
            with contextlib.suppress(OSError):  # A network's file system may fail here; what counts is the sync's word.
                os.close(self._descriptors.pop(number))
        return found

    def close(self) -> None:
        """Return when nothing is under way."""
        while self._descriptors:
            self._enter(self.descriptor, 0, len(self._descriptors), _WAIT, None, 0)
            self.results()
        self._words.release()
        self._memory.close()
        self._entries.close()
        os.close(self.descriptor)
