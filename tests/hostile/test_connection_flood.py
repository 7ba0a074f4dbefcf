"""S2, S18: floods of connections against limits that an owner has set, and connections that never say anything."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from penstock.wire.codec import Struct

from .broker_process import HOST, BrokerProcess
from .client import Client, eventually, framed, request_frame
from .latency import check_others_unaffected, innocent_client

HELLO = framed(request_frame(18, 0, Struct()))


@contextmanager
def broker_with(directory: Path, **properties: str) -> Iterator[BrokerProcess]:
    process = BrokerProcess(directory, **properties)
    process.start()
    try:
        yield process
        process.stop()
    finally:
        process.kill()


def answered_count(peers: list[socket.socket]) -> int:
    count = 0
    for peer in peers:
        peer.setblocking(False)
        with suppress(BlockingIOError):
            count += bool(peer.recv(10_000, socket.MSG_PEEK))
    return count


def answered_in_turn(peers: list[socket.socket], count: int, began: float) -> int:
    """How many are answered once there are so many; never more than 40 a second, and those of 11 seconds at once."""
    seen = 0

    def is_enough() -> bool:
        nonlocal seen
        seen = answered_count(peers)
        assert seen <= 40 * (11 + time.monotonic() - began) + 1
        return seen >= count

    eventually(is_enough, f"{count} are answered")
    return seen


def test_s18_connections_above_the_rate_wait_for_their_turn(tmp_path: Path) -> None:
    with broker_with(tmp_path, max_connection_creation_rate="40") as broker, ExitStack() as stack:
        with Client(broker.port) as client:
            assert client.create_topic("t") == 0
        began = time.monotonic()
        peers = [stack.enter_context(socket.create_connection((HOST, broker.port))) for _ in range(520)]
        for peer in peers:
            peer.sendall(HELLO)
        early = answered_in_turn(peers, 380, began)
        answered_in_turn(peers, early + 40, began)


def test_s18_a_flood_above_the_rate_does_not_slow_those_who_are_connected(tmp_path: Path) -> None:
    with broker_with(tmp_path, max_connection_creation_rate="1000") as broker:
        with Client(broker.port) as client:
            assert client.create_topic("t") == 0

        def attack() -> None:
            """20,000 a minute, each of which asks something."""
            began = time.monotonic()
            for number in range(500):
                with socket.create_connection((HOST, broker.port), timeout=10) as peer:
                    peer.sendall(HELLO)
                time.sleep(max(0.0, began + (number + 1) * 60 / 20_000 - time.monotonic()))

        check_others_unaffected(broker, "t", attack)


def test_s2_a_connection_that_never_asks_is_closed_and_one_that_has_asked_is_kept(tmp_path: Path) -> None:
    with broker_with(tmp_path, penstock_first_request_timeout_ms="1000") as broker, ExitStack() as stack:
        asked = stack.enter_context(Client(broker.port))
        assert asked.ask(18, 0).error_code == 0
        silent = [stack.enter_context(Client(broker.port)) for _ in range(1000)]
        began = time.monotonic()
        assert all(client.is_closed_by_broker() for client in silent)
        assert 0.5 <= time.monotonic() - began < 9.0  # Unless told otherwise, it is ten seconds.
        assert asked.ask(18, 0).error_code == 0


def test_s18_a_flood_from_one_address_is_turned_away_and_costs_others_nothing(tmp_path: Path) -> None:
    """20,000 a minute from an address that may have 5 a second."""
    with broker_with(tmp_path) as broker, Client(broker.port) as client:
        assert client.create_topic("t") == 0
        entry = Struct(
            entity=[Struct(entity_type="ip", entity_name=HOST)],
            ops=[Struct(key="connection_creation_rate", value=5.0, remove=False)],
        )
        assert client.ask(49, 1, entries=[entry], validate_only=False).entries[0].error_code == 0
        before = broker.rss_bytes()
        began = time.monotonic()
        with innocent_client(broker, "t") as waits, ExitStack() as stack:
            peers = []
            for number in range(1000):
                peers.append(stack.enter_context(socket.create_connection((HOST, broker.port), timeout=60)))
                peers[-1].sendall(HELLO)
                time.sleep(max(0.0, began + (number + 1) * 60 / 20_000 - time.monotonic()))
            served = sum(map(is_answered, peers))
        assert 45 <= served <= 5 * (10 + time.monotonic() - began) + 1
        assert waits.longest_s() < 0.1
        assert broker.rss_bytes() - before < 16 << 20


def is_answered(peer: socket.socket) -> bool:
    """Or closed, without a word."""
    with suppress(ConnectionResetError):
        return bool(peer.recv(1000))
    return False
