"""Loopback ports."""

import itertools
import random
import socket
import time
from collections.abc import Callable, Iterator
from functools import cache

HOST = "127.0.0.1"

_FIRST, _END, _BLOCK = 20_000, 30_000, 100  # Below the ports that the kernel hands out to clients.


def free_port() -> int:
    """A port that nobody uses, and that no other test run on this machine is given, also while we do not listen."""
    ports = _ports_of_our_own()[1]
    for port in itertools.islice(ports, _BLOCK):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"all {_BLOCK} ports of this test run are in use")


@cache
def _ports_of_our_own() -> tuple[socket.socket, Iterator[int]]:
    """A block of ports, in turn, and what makes it ours for as long as we live: its first port."""
    for first in random.sample(range(_FIRST, _END, _BLOCK), (_END - _FIRST) // _BLOCK):
        guard = socket.socket()
        try:
            guard.bind((HOST, first))
        except OSError:
            guard.close()
            continue
        return guard, itertools.cycle(range(first + 1, first + _BLOCK))
    raise RuntimeError(f"no block of ports between {_FIRST} and {_END} is free")


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
