"""Hosts of our own: a link that is cut is cut, in the direction that was asked for, and nobody else notices."""

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from .hosts import Hosts

# Answers one connection after the other on the host, until it is killed.
SERVER = "import socket; s = socket.create_server(('{}', 7)); print(flush=True)\nwhile True: s.accept()[0].close()"
CLIENT = "import socket; socket.create_connection(('{}', 7), timeout={}).close()"


@pytest.fixture(scope="module", autouse=True)
def servers(hosts: Hosts) -> Iterator[None]:
    running = []
    try:
        for number in hosts.numbers:
            command = [*hosts.wrapper(number), sys.executable, "-c", SERVER.format(hosts.address(number))]
            running.append(subprocess.Popen(command, stdout=subprocess.PIPE))
            running[-1].stdout.readline()  # type: ignore[union-attr]
        yield
    finally:
        for server in running:
            server.kill()
            server.communicate()


def connects(hosts: Hosts, source: int, target: int | str, timeout_s: float = 0.5) -> bool:
    address = hosts.address(target) if isinstance(target, int) else target
    command = [*hosts.wrapper(source), sys.executable, "-S", "-c", CLIENT.format(address, timeout_s)]
    return subprocess.run(command, capture_output=True).returncode == 0


def test_a_cut_is_between_two_and_ends(hosts: Hosts) -> None:
    assert connects(hosts, 1, 2, timeout_s=20)
    hosts.cut([1], [2])
    assert not connects(hosts, 1, 2)
    assert not connects(hosts, 2, 1)
    assert connects(hosts, 1, 3, timeout_s=20)
    hosts.heal()
    assert connects(hosts, 1, 2, timeout_s=20)


def test_who_is_isolated_reaches_nobody_not_even_us(hosts: Hosts) -> None:
    with socket.create_server(("", 7)):
        assert connects(hosts, 1, hosts.hub_address(1), timeout_s=20)
        hosts.isolate(1)
        assert not connects(hosts, 1, hosts.hub_address(1))
        assert connects(hosts, 2, hosts.hub_address(2), timeout_s=20)
    assert not connects(hosts, 1, 2)
    assert not connects(hosts, 3, 1)
    assert connects(hosts, 2, 3, timeout_s=20)
    hosts.heal()
    assert connects(hosts, 3, 1, timeout_s=20)
