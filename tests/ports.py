"""Loopback ports."""

import random
import socket
import time
from collections.abc import Callable

HOST = "127.0.0.1"

_FIRST, _END = 20_000, 30_000


def free_port() -> int:
    """A port that is free, and below those that the kernel hands out to clients, who could take it meanwhile."""
    # Not the lowest: another test run on this machine would be given the same one before we listen on it.
    for port in random.sample(range(_FIRST, _END), 100):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"no free port among a hundred between {_FIRST} and {_END}")


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0


def wait_until_open(port: int, still_alive: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and still_alive():
        if is_open(port):
            return True
        time.sleep(0.05)
    return False


def wait_until_closed(port: int, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if not is_open(port):
            return True
        time.sleep(0.05)
    return False
