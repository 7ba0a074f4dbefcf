"""Brokers that talk to each other: who is let in, what becomes of requests when a connection ends."""

import asyncio
import logging
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st
from in_process_broker import RunningBroker, logged_errors, running_broker, until

from penstock.base.errors import ErrorCode, Refused
from penstock.base.types import NodeId
from penstock.cluster.image import BrokerRegistration, ClusterImage
from penstock.cluster.store.memory import MemoryStore
from penstock.partition.peers import PeerLost
from penstock.server.api import ApiKey
from penstock.server.authentication import (
    MECHANISM,
    Authentication,
    BrokerIdentity,
    proof_of,
    proved,
    require_broker,
)
from penstock.server.network import SocketNetwork
from penstock.server.peer import Peer
from penstock.wire.codec import Struct, encode_response

ASK_S = 60.0

Scenario = Callable[[RunningBroker, RunningBroker], Awaitable[None]]


def registration(node_id: int = 1, epoch: int = 7, secret: str = "a1b2") -> BrokerRegistration:
    return BrokerRegistration(NodeId(node_id), "localhost", 9092, None, epoch, secret)


def image_of(*registrations: BrokerRegistration) -> ClusterImage:
    return ClusterImage(brokers={item.node_id: item for item in registrations})


# The proof


def test_a_broker_is_known_by_its_own_registration() -> None:
    image = image_of(registration(1), registration(2, secret="c3d4"))
    assert proved(proof_of(registration(1)), image) == BrokerIdentity(NodeId(1), 7)


@pytest.mark.parametrize(
    "shown",
    [
        registration(3),
        registration(1, epoch=6),
        registration(1, secret="c3d4"),
        registration(1, secret="a1b"),
        registration(1, secret="a1b2c"),
        registration(2),
    ],
    ids=["unknown broker", "former epoch", "wrong secret", "shorter", "longer", "somebody else's secret"],
)
def test_anything_else_proves_nothing(shown: BrokerRegistration) -> None:
    assert proved(proof_of(shown), image_of(registration(1), registration(2, secret="c3d4"))) is None


def test_a_registration_without_a_secret_can_be_nobodys_proof() -> None:
    image = image_of(registration(1, secret=""))
    assert proved(proof_of(registration(1, secret="")), image) is None
    assert proved(proof_of(registration(1, secret="x")), image) is None


@given(st.binary(max_size=64))
def test_bytes_that_nobody_made_prove_nothing(proof: bytes) -> None:
    assert proved(proof, image_of(registration(0, epoch=0, secret="f" * 32))) is None


def test_reliability_rule_5_a_proof_ends_with_the_registration() -> None:
    authentication = Authentication(broker=BrokerIdentity(NodeId(1), 7))
    assert require_broker(authentication, image_of(registration(1, epoch=7))) == BrokerIdentity(NodeId(1), 7)
    for image in (image_of(registration(1, epoch=8)), image_of(registration(2, epoch=7))):
        with pytest.raises(Refused) as refused:
            require_broker(authentication, image)
        assert refused.value.code is ErrorCode.cluster_authorization_failed
    with pytest.raises(Refused):
        require_broker(Authentication(), image_of(registration(1, epoch=7)))


# A connection, and what the other side can do to it


@asynccontextmanager
async def peer_of(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]], frame_bytes_max: int = 1 << 20
) -> AsyncIterator[Peer]:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    peer = Peer(name="broker 2", client_id="broker-1", frame_bytes_max=frame_bytes_max)
    await SocketNetwork().connect(lambda: peer, "127.0.0.1", port)
    try:
        yield peer
    finally:
        peer.close()
        server.close()
        await server.wait_closed()


async def read_id(reader: asyncio.StreamReader) -> int:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return int(struct.unpack_from(">hhi", await reader.readexactly(size))[2])


def reply_to(correlation_id: int, body: bytes) -> bytes:
    return struct.pack(">iib", 5 + len(body), correlation_id, 0) + body


async def ask_raw(peer: Peer, timeout_s: float = ASK_S) -> bytes:
    return bytes(await peer.ask_raw(ApiKey.DESCRIBE_CLUSTER, 2, b"\0\1\0\0", timeout_s))


def test_replies_come_to_those_who_asked_in_order() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ids = [await read_id(reader) for _ in range(3)]  # All have been asked before the first is answered.
        data = b"".join(reply_to(number, f"reply {number}".encode() * 20_000) for number in ids)
        for start in range(0, len(data), 50_000):
            writer.write(data[start : start + 50_000])
            await writer.drain()
        await reader.read()
        writer.close()

    async def scenario() -> None:
        async with peer_of(serve) as peer:
            replies = await asyncio.gather(*(ask_raw(peer) for _ in range(3)))
            assert replies == [f"reply {number}".encode() * 20_000 for number in (1, 2, 3)]
            assert not peer.is_lost

    asyncio.run(scenario())


def test_a_reply_that_nobody_waits_for_any_more_is_dropped() -> None:
    async def scenario() -> None:
        go = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            first = await read_id(reader)
            await go.wait()
            writer.write(reply_to(first, b"first") + reply_to(await read_id(reader), b"second"))
            await reader.read()
            writer.close()

        async with peer_of(serve) as peer:
            first = asyncio.create_task(ask_raw(peer))
            await asyncio.sleep(0)
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            go.set()
            assert await ask_raw(peer) == b"second"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "answer",
    [
        lambda number: reply_to(number + 1, b"not this one"),
        lambda number: struct.pack(">i", (1 << 20) + 1),
        lambda number: struct.pack(">i", -1),
        lambda number: struct.pack(">ih", 2, 0),
        lambda number: struct.pack(">ii", 4, number),
        lambda number: struct.pack(">iiB", 5, number, 0x80),
        lambda number: b"",
    ],
    ids=["wrong id", "oversized", "negative size", "no header", "no tags", "bad tags", "closed"],
)
def test_all_who_wait_hear_when_the_connection_is_lost(answer: Callable[[int], bytes]) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await read_id(reader)
        await read_id(reader)
        data = answer(first)
        if data:
            writer.write(data)
            await reader.read()
        writer.close()

    async def scenario() -> None:
        async with peer_of(serve) as peer:
            results = await asyncio.gather(ask_raw(peer), ask_raw(peer), return_exceptions=True)
            assert [type(result) for result in results] == [PeerLost, PeerLost]
            assert peer.is_lost
            with pytest.raises(PeerLost):
                await ask_raw(peer)

    asyncio.run(scenario())


def test_who_gets_no_reply_in_time_ends_the_connection() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def scenario() -> None:
        async with peer_of(serve) as peer:
            patient = asyncio.create_task(ask_raw(peer))
            with pytest.raises(PeerLost, match=r"within 0\.01 s"):
                await ask_raw(peer, 0.01)
            with pytest.raises(PeerLost):
                await patient
            assert peer.is_lost

    asyncio.run(scenario())


def test_a_reply_that_makes_no_sense_ends_the_connection() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(reply_to(await read_id(reader), b"\0"))
        await reader.read()
        writer.close()

    async def scenario() -> None:
        async with peer_of(serve) as peer:
            with pytest.raises(PeerLost, match="cannot be read"):
                await describe(peer)
            assert peer.is_lost

    asyncio.run(scenario())


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run])
def test_requests_leave_at_once(runner: Callable[[Awaitable[None]], None]) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def scenario() -> None:
        async with peer_of(serve) as peer:
            assert peer._transport is not None
            connection = peer._transport.get_extra_info("socket")
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    runner(scenario())


# Two brokers


@asynccontextmanager
async def two_brokers(tmp_path: Path, store: MemoryStore) -> AsyncIterator[tuple[RunningBroker, RunningBroker]]:
    """The first is the controller."""
    async with (
        running_broker(tmp_path / "1", store, node_id=1) as one,
        running_broker(tmp_path / "2", store, node_id=2) as two,
    ):
        await until(lambda: len(one.broker.metadata.image.brokers) == 2)
        yield one, two


def run_two(tmp_path: Path, scenario: Scenario, store: MemoryStore | None = None) -> None:
    async def main() -> None:
        async with two_brokers(tmp_path, MemoryStore() if store is None else store) as (one, two):
            await scenario(one, two)

    asyncio.run(main())


async def describe(peer: Peer) -> Struct:
    request = Struct(include_cluster_authorized_operations=False, endpoint_type=1, include_fenced_brokers=False)
    return await peer.ask(ApiKey.DESCRIBE_CLUSTER, 2, request, ASK_S)


def test_a_broker_asks_another(tmp_path: Path) -> None:
    async def scenario(one: RunningBroker, two: RunningBroker) -> None:
        peer = await two.broker.peers.connect(1)
        answers = await asyncio.gather(*(describe(peer) for _ in range(200)))
        assert {answer.controller_id for answer in answers} == {1}
        (connection,) = one.listener._connections
        epoch = two.broker.metadata.image.brokers[NodeId(2)].epoch
        assert connection.authentication.broker == BrokerIdentity(NodeId(2), epoch)
        other = await two.broker.peers.connect(1)
        peer.close()
        with pytest.raises(PeerLost):
            await describe(peer)
        assert (await describe(other)).controller_id == 1

    run_two(tmp_path, scenario)


def test_the_controller_is_asked_over_one_connection_for_as_long_as_it_lasts(tmp_path: Path) -> None:
    async def scenario(one: RunningBroker, two: RunningBroker) -> None:
        request = Struct(include_cluster_authorized_operations=False, endpoint_type=1, include_fenced_brokers=False)

        async def ask() -> Struct:
            return await two.broker.peers.ask_controller(ApiKey.DESCRIBE_CLUSTER, 2, request, ASK_S)

        await asyncio.gather(*(ask() for _ in range(10)))
        (connection,) = one.listener._connections
        connection.close("test")
        await until(lambda: not one.listener._connections)
        with_luck = await asyncio.gather(ask(), return_exceptions=True)  # It may not know yet.
        assert isinstance(with_luck[0], Struct | PeerLost)
        assert (await ask()).controller_id == 1
        assert len(one.listener._connections) == 1

    run_two(tmp_path, scenario)


def test_a_broker_that_is_not_there_cannot_be_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.server.peers.CONNECT_S_MAX", 0.2)

    async def scenario(one: RunningBroker, two: RunningBroker) -> None:
        with pytest.raises(PeerLost, match="broker 3 cannot be reached"):
            await two.broker.peers.connect(3)
        one.listener.stop_accepting()
        await asyncio.sleep(0)
        with pytest.raises(PeerLost, match="broker 1 cannot be reached"):
            await two.broker.peers.connect(1)

    run_two(tmp_path, scenario)


def test_a_broker_waits_until_the_image_has_the_other_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = MemoryStore()
        async with running_broker(tmp_path / "1", store, node_id=1) as one:
            connecting = asyncio.create_task(one.broker.peers.connect(2))
            await asyncio.sleep(0.05)
            assert not connecting.done()
            async with running_broker(tmp_path / "2", store, node_id=2):
                peer = await connecting
                assert (await describe(peer)).controller_id == 1

    asyncio.run(scenario())


def test_connections_end_with_the_registration_that_they_were_made_under(tmp_path: Path) -> None:
    """Else a broker that was taken for dead would go on under a name that it no longer has."""
    store = MemoryStore()

    async def scenario(one: RunningBroker, two: RunningBroker) -> None:
        outgoing, incoming = await two.broker.peers.connect(1), await one.broker.peers.connect(2)
        epoch = one.broker.metadata.image.brokers[NodeId(2)].epoch
        store.expire_leases("broker-2")
        await until(lambda: outgoing.is_lost and incoming.is_lost)
        peer = await two.broker.peers.connect(1)  # Waits for the new registration.
        (connection,) = [item for item in one.listener._connections if item.authentication.broker]
        assert connection.authentication.broker.node_id == 2
        assert connection.authentication.broker.epoch > epoch
        assert (await describe(peer)).controller_id == 1

    run_two(tmp_path, scenario, store)


# Who is not let in


async def handshake(broker: RunningBroker, mechanism: str = MECHANISM):  # type: ignore[no-untyped-def]
    client = await broker.connect()
    return client, await client.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism=mechanism)


def test_reliability_s16_a_wrong_proof_is_refused_and_the_connection_ends(tmp_path: Path) -> None:
    async def scenario(one: RunningBroker, two: RunningBroker) -> None:
        true = two.broker.metadata.image.brokers[NodeId(2)]
        wrong = [
            proof_of(true._replace(secret="0" * 32)),
            proof_of(true._replace(epoch=true.epoch - 1)),
            proof_of(true._replace(node_id=NodeId(3))),
            b"",
            b"\0admin\0admin",
        ]
        for version in (0, 1, 2):
            for proof in wrong:
                client, answer = await handshake(one)
                assert (answer.error_code, answer.mechanisms) == (0, [MECHANISM])
                client.send(ApiKey.SASL_AUTHENTICATE, version, auth_bytes=proof)
                client.send(ApiKey.API_VERSIONS, 0)  # Is not answered any more.
                answer = await client.receive_reply(ApiKey.SASL_AUTHENTICATE, version)
                assert answer.error_code == ErrorCode.sasl_authentication_failed
                assert (answer.error_message, answer.auth_bytes) == ("Authentication failed", b"")
                assert await client.is_closed_by_broker()
                client.close()

    with logged_errors() as errors:
        run_two(tmp_path, scenario)
    assert errors == []


def test_reliability_s16_a_client_hears_of_no_mechanism(tmp_path: Path) -> None:
    async def scenario(one: RunningBroker, two: RunningBroker) -> None:
        for mechanism in ("PLAIN", "SCRAM-SHA-256", "", "penstock-broker", "x" * 30_000):
            client, answer = await handshake(one, mechanism)
            assert (answer.error_code, answer.mechanisms) == (ErrorCode.unsupported_sasl_mechanism, [])
            proof = proof_of(one.broker.metadata.image.brokers[NodeId(2)])
            answer = await client.ask(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=proof)
            assert answer.error_code == ErrorCode.illegal_sasl_state
            assert all(item.authentication.broker is None for item in one.listener._connections)
            client.close()

    run_two(tmp_path, scenario)


def test_what_was_proved_holds_for_requests_of_a_kind_that_came_before(tmp_path: Path) -> None:
    """A connection remembers the header of its last request; it must not remember that it was nobody's."""

    async def scenario(one: RunningBroker, two: RunningBroker) -> None:
        client, _ = await handshake(one)
        proof = proof_of(one.broker.metadata.image.brokers[NodeId(2)])
        (connection,) = one.listener._connections
        await client.ask(ApiKey.API_VERSIONS, 0)
        before = connection.known_header.header
        assert before.broker is None
        assert (await client.ask(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=proof)).error_code == 0
        assert before.broker.node_id == connection.known_header.header.broker.node_id == 2
        # There is nothing more to prove over this connection.
        answer = await client.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism=MECHANISM)
        assert answer.error_code == ErrorCode.illegal_sasl_state
        answer = await client.ask(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=proof)
        assert answer.error_code == ErrorCode.illegal_sasl_state
        assert connection.authentication.broker is not None
        client.close()

    run_two(tmp_path, scenario)


def test_a_broker_whose_image_lags_lets_the_other_in_a_moment_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.server.handlers import sasl_authenticate

    refusals = iter([None, None])
    real = sasl_authenticate.proved
    monkeypatch.setattr(sasl_authenticate, "proved", lambda *arguments: next(refusals, 1) and real(*arguments))

    async def scenario(one: RunningBroker, two: RunningBroker) -> None:
        peer = await two.broker.peers.connect(1)
        assert next(refusals, "used") == "used"
        assert (await describe(peer)).controller_id == 1

    run_two(tmp_path, scenario)


def test_no_secret_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    secrets: list[str] = []

    async def scenario(one: RunningBroker, two: RunningBroker) -> None:
        secrets.extend(broker.secret for broker in one.broker.metadata.image.brokers.values())
        (await two.broker.peers.connect(1)).close()
        client, _ = await handshake(one)
        await client.ask(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=b"?" * 12 + secrets[0].encode())
        client.close()

    with caplog.at_level(logging.DEBUG):
        run_two(tmp_path, scenario)
    assert len(secrets) == 2 and all(len(secret) == 32 for secret in secrets)
    assert not any(secret in caplog.text for secret in secrets)


def test_handshakes_look_as_kafkas_do() -> None:
    answer = Struct(error_code=0, error_message=None, auth_bytes=b"", session_lifetime_ms=0)
    assert encode_response(ApiKey.SASL_AUTHENTICATE, 1, answer) == struct.pack(">hhiq", 0, -1, 0, 0)
