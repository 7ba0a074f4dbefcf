"""Disk space behind the end of a file, for bytes that are still to come: fallocate(2). Python's own moves the end."""

import sys
from collections.abc import Callable
from functools import cache

_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE


def reserve(descriptor: int, position: int, size: int) -> bool:
    """Whether the file system has set the space aside. It need not: then it finds some when the bytes are written."""
    fallocate = _fallocate()
    return fallocate is not None and fallocate(descriptor, _KEEP_SIZE, position, size) == 0


@cache
def _fallocate() -> Callable[[int, int, int, int], int] | None:
    if sys.platform != "linux":
        return None
    import ctypes  # Not needed by a broker that starts, and it takes a while.

    function = ctypes.CDLL(None)["fallocate"]
    function.argtypes, function.restype = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long], ctypes.c_int
    return function
