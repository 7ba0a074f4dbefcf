"""Connections: order of replies, what happens to requests when either side leaves, and that nothing stays behind."""

import asyncio
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from in_process_broker import (
    RunningBroker,
    fetch_fields,
    frame,
    logged_errors,
    produce_fields,
    run,
    running_broker,
    until,
)

from penstock.server import connection as connection_module
from penstock.server import handlers
from penstock.server.api import APIS, ApiKey
from penstock.server.connection import REQUESTS_OPEN_MAX, Connection
from penstock.server.network import SYSTEM_DECIDES, tune

handlers.register_all()

LONG_WAIT_MS = 30_000


def test_replies_leave_in_the_order_of_their_requests(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        client, other = await broker.connect(), await broker.connect()
        broker.disk.hold()
        expected = [
            client.send(ApiKey.PRODUCE, 9, **produce_fields("t")),
            client.send(ApiKey.API_VERSIONS, 0),
            client.send(ApiKey.FETCH, 12, **fetch_fields(("t", 0, 0), wait_ms=LONG_WAIT_MS)),
            client.send(ApiKey.METADATA, 1, topics=None),
            client.send(ApiKey.LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=[]),
            client.send(ApiKey.API_VERSIONS, 0),
        ]
        assert await client.is_silent()
        await other.ask(ApiKey.API_VERSIONS, 0)  # Others do not wait behind it.
        broker.disk.release()
        assert [await client.receive_id() for _ in expected] == expected

    run(scenario, tmp_path)


def test_a_request_without_reply_gives_up_its_place(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        client = await broker.connect()
        for _ in range(3 * REQUESTS_OPEN_MAX):
            client.send(ApiKey.PRODUCE, 9, **produce_fields("t", acks=0))
        last = client.send(ApiKey.API_VERSIONS, 0)
        assert await client.receive_id() == last
        assert broker.listener.budget_used == 0

    run(scenario, tmp_path)


@pytest.mark.parametrize("leave", ["close", "abort"])
def test_replies_after_the_client_left_are_dropped(tmp_path: Path, leave: str) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        client = await broker.connect()
        broker.disk.hold()
        for _ in range(10):
            client.send(ApiKey.PRODUCE, 9, **produce_fields("t"))
            client.send(ApiKey.DELETE_RECORDS, 2, topics=[], timeout_ms=1000)
        await until(lambda: broker.listener.budget_used > 0, "requests in work")
        getattr(client, leave)()
        await until(lambda: not broker.listener._connections, "connection gone")
        assert broker.listener.budget_used == 0
        broker.disk.release()
        await until(lambda: broker.partition("t").high_watermark == 10, "commit")
        await until(lambda: broker.timers_count == 0, "timers gone")

    with logged_errors() as errors:
        run(scenario, tmp_path)
    assert errors == []


def test_a_bad_request_gives_back_what_waits_behind_and_before_it(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        client = await broker.connect()
        broker.disk.hold()
        client.send(ApiKey.PRODUCE, 9, **produce_fields("t"))
        await until(lambda: broker.listener.budget_used > 0)
        client.send_bytes(struct.pack(">ihhih", 10, 9999, 0, 1, -1))
        assert await client.is_closed_by_broker()
        await until(lambda: broker.listener.budget_used == 0)
        assert not broker.listener._connections

    run(scenario, tmp_path)


def test_requests_behind_a_bad_one_are_not_begun(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        client = await broker.connect()
        bad = struct.pack(">ihhih", 10, 9999, 0, 1, -1)
        produce = frame(ApiKey.PRODUCE, 9, 2, **produce_fields("t"))
        client.send_bytes(frame(ApiKey.API_VERSIONS, 0, 1) + bad + produce + frame(ApiKey.API_VERSIONS, 0, 3))
        assert await client.receive_id() == 1
        assert await client.is_closed_by_broker()
        assert broker.partition("t").log.log_end == 0

    run(scenario, tmp_path)


def test_a_second_reply_is_a_mistake_of_ours() -> None:
    class Listener:
        receive_buffer, frame_bytes_max, budget_used, unsent_bytes = bytearray(32), 10, 0, 0

        def release(self, frame_bytes: int) -> None: ...

    async def check() -> None:
        connection = Connection(Listener())  # type: ignore[arg-type]
        first, second = connection.open_reply(1, False, 0), connection.open_reply(2, False, 0)
        second.send([b"x"])
        for again in (lambda: second.send([b"y"]), second.skip):
            with pytest.raises(AssertionError):
                again()
        assert first.parts is None

    asyncio.run(check())


@pytest.mark.parametrize("is_late", [False, True])
def test_a_handler_that_fails_costs_its_client_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    async def fail_later(*_: Any) -> Any:
        await asyncio.sleep(0.01)
        raise RuntimeError("a mistake")

    def fail_now(*_: Any) -> Any:
        raise RuntimeError("a mistake")

    api = APIS[ApiKey.DESCRIBE_CLUSTER]
    monkeypatch.setitem(APIS, ApiKey.DESCRIBE_CLUSTER, api._replace(handler=fail_later if is_late else fail_now))

    async def scenario(broker: RunningBroker) -> None:
        client, other = await broker.connect(), await broker.connect()
        client.send(
            ApiKey.DESCRIBE_CLUSTER, 2, include_cluster_authorized_operations=False, include_fenced_brokers=False
        )
        client.send(ApiKey.API_VERSIONS, 0)
        assert await client.is_closed_by_broker()
        await other.ask(ApiKey.API_VERSIONS, 0)
        assert broker.listener.budget_used == 0

    with logged_errors() as errors:
        run(scenario, tmp_path)
    assert len(errors) == 1


def test_a_client_over_the_budget_waits_and_is_then_served(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        clients = [await broker.connect() for _ in range(5)]
        broker.disk.hold()
        for client in clients:
            for _ in range(20):
                client.send(ApiKey.PRODUCE, 9, **produce_fields("t", b"x" * 10_000))
        await until(lambda: len(broker.listener._waiting) == 5, "all clients wait")
        assert broker.listener.budget_used < 100_000 + 5 * 11_000
        broker.disk.release()
        for client in clients:
            assert [await client.receive_id() for _ in range(20)] == list(range(1, 21))
        assert (broker.listener.budget_used, broker.listener._waiting) == (0, {})

    run(scenario, tmp_path, queued_max_request_bytes=100_000)


def test_a_client_that_leaves_while_it_waits_for_the_budget_is_forgotten(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        clients = [await broker.connect() for _ in range(3)]
        broker.disk.hold()
        for client in clients:
            for _ in range(20):
                client.send(ApiKey.PRODUCE, 9, **produce_fields("t", b"x" * 10_000))
        await until(lambda: len(broker.listener._waiting) == 3)
        clients[0].abort()
        clients[1].abort()
        # A connection that is not read from is noticed as lost when it is written to.
        broker.disk.release()
        assert [await clients[2].receive_id() for _ in range(20)] == list(range(1, 21))
        await until(lambda: len(broker.listener._connections) == 1, "the others are gone")
        await until(lambda: broker.listener.budget_used == 0)

    run(scenario, tmp_path, queued_max_request_bytes=100_000)


def test_more_requests_than_may_be_open_wait_unread(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        client = await broker.connect()
        broker.disk.hold()
        count = 5 * REQUESTS_OPEN_MAX
        for _ in range(count):
            client.send(ApiKey.PRODUCE, 9, **produce_fields("t"))
        await until(lambda: broker.partition("t").log.log_end == REQUESTS_OPEN_MAX)
        await asyncio.sleep(0.02)
        assert broker.partition("t").log.log_end == REQUESTS_OPEN_MAX
        broker.disk.release()
        assert [await client.receive_id() for _ in range(count)] == list(range(1, count + 1))

    run(scenario, tmp_path)


def test_one_client_with_many_requests_takes_turns_with_others(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("wide", partitions=300)
        greedy, other = await broker.connect(), await broker.connect()
        for _ in range(1000):
            greedy.send(ApiKey.METADATA, 1, topics=None)
        await other.ask(ApiKey.API_VERSIONS, 0)
        assert any(connection._received for connection in broker.listener._connections), "all done in one go"
        assert [await greedy.receive_id() for _ in range(1000)] == list(range(1, 1001))

    run(scenario, tmp_path)


def test_a_client_owed_a_reply_that_it_does_not_read_is_dropped_after_a_bad_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t", max_message_bytes=str(32 << 20))
        producer = await broker.connect()
        await producer.produce("t", b"x" * (24 << 20))  # One batch, and more than the kernel keeps for a socket.
        client = await broker.connect()
        client.stop_reading()
        client.send(ApiKey.FETCH, 12, **fetch_fields(("t", 0, 0)))
        client.send_bytes(struct.pack(">i", -1))
        await until(lambda: any(connection.is_closed for connection in broker.listener._connections), "bad request")
        now = broker.listener.now
        broker.listener.now = lambda: now() + 100.0
        broker.listener.sweep()
        await until(lambda: all(not connection.is_closed for connection in broker.listener._connections), "dropped")

    # No pause: what is on its way may leave before the connection is closed.
    monkeypatch.setattr(connection_module, "WRITE_BUFFER_BYTES", 1 << 30)
    monkeypatch.setattr(connection_module, "TRANSPORT_BYTES_MAX", 1 << 30)
    run(scenario, tmp_path)


def test_a_broker_with_waiting_requests_stops_at_once(tmp_path: Path) -> None:
    async def check() -> None:
        async with running_broker(tmp_path) as broker:
            await broker.create_topic("t")
            clients = [await broker.connect() for _ in range(5)]
            for client in clients:
                client.send(ApiKey.FETCH, 12, **fetch_fields(("t", 0, 0), wait_ms=LONG_WAIT_MS))
            await until(lambda: len(broker.partition("t").waiters) == 5)
            began = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - began < LONG_WAIT_MS / 1000 / 2
        assert [await client.is_closed_by_broker() for client in clients] == [True] * 5

    asyncio.run(check())


def test_a_client_that_says_it_sends_no_more_is_not_an_error(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        client = await broker.connect()
        client.send(ApiKey.API_VERSIONS, 0)
        client._writer.write_eof()
        assert await client.receive_id() == 1
        assert await client.is_closed_by_broker()

    run(scenario, tmp_path)


def _option(connected: Any, level: int, name: int, *size: int) -> Any:
    return connected.get_extra_info("socket").getsockopt(level, name, *size)


def test_a_socket_holds_as_much_of_replies_as_is_set(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        client = await broker.connect()
        await client.ask(ApiKey.API_VERSIONS, 0)
        (connection,) = broker.listener._connections
        granted = _option(connection._transport, socket.SOL_SOCKET, socket.SO_SNDBUF)
        assert granted in (64 << 10, 128 << 10)  # Linux takes twice as much.

    run(scenario, tmp_path, socket_send_buffer_bytes=64 << 10)


def test_a_socket_is_left_as_it_is_where_the_system_decides() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        accepted, _ = server.accept()
        with accepted:
            before = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
            tune(accepted, SYSTEM_DECIDES)
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == before


@pytest.mark.skipif(not hasattr(socket, "TCP_CONGESTION"), reason="only Linux lets a socket choose")
def test_replies_within_one_machine_are_not_paced(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        client = await broker.connect()
        await client.ask(ApiKey.API_VERSIONS, 0)
        (connection,) = broker.listener._connections
        chosen = _option(connection._transport, socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        assert chosen.rstrip(b"\0") == b"reno"

    run(scenario, tmp_path)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_client_that_is_gone_before_it_is_accepted_is_not_an_error(
    tmp_path: Path, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def scenario(broker: RunningBroker) -> None:
        for _ in range(10):
            hasty = socket.create_connection(("127.0.0.1", broker.listener.port))  # The loop waits meanwhile.
            hasty.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # Reset.
            hasty.close()
        client = await broker.connect()
        await client.ask(ApiKey.API_VERSIONS, 0)
        await until(lambda: len(broker.listener._connections) == 1)

    run(scenario, tmp_path, new_loop=new_loop)
