"""Giving memory back to the system after a peak."""

import sys


def give_back_freed() -> None:
    """Have the allocator return the pages that it keeps for later; nothing where it cannot be told to.

    glibc returns what lies at the end of its heap, so one small object there, younger than a crowd of large replies,
    would keep as much as they took. To return 200 MB takes some 50 ms, in which nothing else is done.
    """
    if sys.platform != "linux":
        return
    import ctypes  # Seldom needed: not by a broker that starts.

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # Not in musl, which keeps nothing.
    if trim is not None:
        trim(0)
