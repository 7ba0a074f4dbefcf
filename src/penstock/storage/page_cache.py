"""Is a part of a file in memory? Linux tells since version 6.5, by cachestat(2), for which Python has no name."""

import errno
import os
import sys
from collections.abc import Callable
from functools import cache

_CACHESTAT = 451  # The same on every architecture that Python is built for.
_NO_DESCRIPTOR = -1


def can_tell() -> bool:
    return _cached_pages() is not None


def is_cached(descriptor: int, position: int, size: int) -> bool:
    """Whether all of it is in memory now; False where nobody can tell."""
    cached_pages = _cached_pages()
    if cached_pages is None:
        return False
    page = os.sysconf("SC_PAGE_SIZE")
    return cached_pages(descriptor, position, size) >= (position + size - 1) // page - position // page + 1


@cache
def _cached_pages() -> Callable[[int, int, int], int] | None:
    """How many pages of a file and range are in memory; None on a system that does not say."""
    if sys.platform != "linux":
        return None
    import ctypes  # Not needed by a broker that starts, and it takes a while.

    syscall = ctypes.CDLL(None, use_errno=True).syscall

    def cached_pages(descriptor: int, position: int, size: int) -> int:
        span = (ctypes.c_uint64 * 2)(position, size)
        found = (ctypes.c_uint64 * 5)()  # Cached, dirty, being written, evicted, recently evicted.
        if syscall(_CACHESTAT, descriptor, ctypes.byref(span), ctypes.byref(found), 0):
            raise OSError(ctypes.get_errno(), "cachestat")
        return found[0]

    try:
        cached_pages(_NO_DESCRIPTOR, 0, 1)
    except OSError as error:
        return cached_pages if error.errno == errno.EBADF else None  # ENOSYS, or EPERM in a container.
    return cached_pages
