"""Calls of Linux that Python has no name for."""

from collections.abc import Callable
from functools import partial


def system_call(number: int, *types: type) -> Callable[..., int]:
    """The call with that number, for arguments of these types of ctypes.

    It gives -1 when it fails, and `ctypes.get_errno` says why.
    """
    import ctypes  # Not with the module: it takes a while to load.

    function = ctypes.CDLL(None, use_errno=True)["syscall"]
    function.argtypes, function.restype = [ctypes.c_long, *types], ctypes.c_long
    return partial(function, number)
