"""Quotas in a running broker: replies leave at once and say how long, and for so long nothing more is taken."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from in_process_broker import Client, RunningBroker, fetch_fields, produce_fields, run

from penstock.server.api import APIS, ApiKey
from penstock.server.dispatch import WITHOUT_THROTTLE
from penstock.wire.codec import Struct
from penstock.wire.schema_table import MESSAGES

KILOBYTES_100 = b"x" * 100_000
Components = list[tuple[str, str | None]]
DEFAULT_CLIENT: Components = [("client-id", None)]
ALL_TOPICS: dict[str, Any] = {
    "topics": None,
    "allow_auto_topic_creation": False,
    "include_cluster_authorized_operations": False,
    "include_topic_authorized_operations": False,
}


async def set_quota(broker: RunningBroker, components: Components, **limits: float | None) -> None:
    """A quota under the given key; None removes it."""
    client = await broker.connect()
    entry = Struct(
        entity=[Struct(entity_type=kind, entity_name=name) for kind, name in components],
        ops=[Struct(key=key, value=value or 0.0, remove=value is None) for key, value in limits.items()],
    )
    answer = await client.ask(ApiKey.ALTER_CLIENT_QUOTAS, 1, entries=[entry], validate_only=False)
    assert [entry.error_code for entry in answer.entries] == [0]
    client.close()


async def produce(client: Client, **fields: Any) -> int:
    """The milliseconds of throttling in the reply."""
    answer = await client.ask(ApiKey.PRODUCE, 9, **produce_fields("t", KILOBYTES_100, **fields))
    assert answer.responses[0].partition_responses[0].error_code == 0
    throttle_ms: int = answer.throttle_time_ms
    return throttle_ms


def test_a_producer_over_its_quota_is_answered_at_once_and_then_not_heard_for_a_while(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        await set_quota(broker, DEFAULT_CLIENT, producer_byte_rate=8_000.0)
        client = await broker.connect()
        began = time.monotonic()
        throttle_ms = await produce(client)
        # 100,000 bytes at 8,000 a second are 12.5 seconds, of which 10 are free.
        assert 2_500 < throttle_ms < 2_600
        assert time.monotonic() - began < 2.5
        client.send(ApiKey.API_VERSIONS, 0)
        assert await client.is_silent(0.2)
        other = await broker.connect()
        await other.ask(ApiKey.API_VERSIONS, 0)
        other.close()
        await client.receive()
        assert time.monotonic() - began > 2.5
        client.close()

    run(scenario, tmp_path)


def test_a_producer_that_does_not_listen_is_held_to_its_rate(tmp_path: Path) -> None:
    """It sends as fast as the socket takes it, and looks at no throttle time."""

    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        await set_quota(broker, DEFAULT_CLIENT, producer_byte_rate=1_000_000.0)
        client = await broker.connect()
        for _ in range(150):
            client.send(ApiKey.PRODUCE, 9, **produce_fields("t", KILOBYTES_100))
        began = time.monotonic()
        for _ in range(120):
            await client.receive()
        # 12 MB, of which 10 are free. On a busy machine it may take longer, but not as long as if none were.
        assert 1.7 < time.monotonic() - began < 12
        client.abort()

    run(scenario, tmp_path)


@pytest.mark.parametrize("acks", [-1, 1])
def test_requests_behind_a_throttled_one_wait(tmp_path: Path, acks: int) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        await set_quota(broker, DEFAULT_CLIENT, producer_byte_rate=1_000.0)
        client = await broker.connect()
        client.send(ApiKey.PRODUCE, 9, **produce_fields("t", KILOBYTES_100, acks=acks))
        client.send(ApiKey.PRODUCE, 9, **produce_fields("t", KILOBYTES_100, acks=acks))
        first = await client.receive_reply(ApiKey.PRODUCE, 9)
        assert 90_000 < first.throttle_time_ms < 91_000
        assert await client.is_silent(0.2)
        assert broker.partition("t").log.log_end == 1
        client.abort()

    run(scenario, tmp_path)


def test_without_acks_the_connection_is_throttled_as_well(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        await set_quota(broker, DEFAULT_CLIENT, producer_byte_rate=1_000.0)
        client = await broker.connect()
        client.send(ApiKey.PRODUCE, 9, **produce_fields("t", KILOBYTES_100, acks=0))
        client.send(ApiKey.API_VERSIONS, 0)
        assert await client.is_silent(0.2)
        client.abort()

    run(scenario, tmp_path)


def test_a_new_connection_of_the_same_client_is_throttled_too(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        await set_quota(broker, DEFAULT_CLIENT, producer_byte_rate=5_000.0)
        began = time.monotonic()
        for expected_ms in (10_000, 30_000, 50_000):
            client = await broker.connect()
            throttle_ms = await produce(client)
            assert expected_ms - 1_000 * (time.monotonic() - began) - 100 < throttle_ms < expected_ms + 100
            client.abort()

    run(scenario, tmp_path)


def test_a_quota_that_is_removed_no_longer_holds(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        await set_quota(broker, DEFAULT_CLIENT, producer_byte_rate=1_000.0)
        await set_quota(broker, DEFAULT_CLIENT, producer_byte_rate=None)
        client = await broker.connect()
        assert await produce(client) == 0
        assert broker.broker._quotas.active is None
        client.close()

    run(scenario, tmp_path)


def test_a_quota_outlives_a_restart_of_its_follower(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await set_quota(broker, DEFAULT_CLIENT, producer_byte_rate=1_000.0)
        await broker.broker.metadata._load()
        assert broker.broker._quotas.active is not None

    run(scenario, tmp_path)


def test_a_consumer_over_its_quota_gets_nothing_until_later(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        client = await broker.connect()
        for _ in range(4):
            await produce(client)
        await set_quota(broker, DEFAULT_CLIENT, consumer_byte_rate=16_000.0)  # A second record is 2.5 seconds away.
        began = time.monotonic()
        fields = fetch_fields(("t", 0, 0), max_bytes=110_000)
        first = await client.ask(ApiKey.FETCH, 12, **fields)
        assert len(first.responses[0].partitions[0].records) > 100_000
        assert first.throttle_time_ms == 0
        second = await client.ask(ApiKey.FETCH, 12, **fetch_fields(("t", 0, 1), max_bytes=110_000))
        assert second.responses == []
        assert 0 < second.throttle_time_ms < 2_600
        third = await client.ask(ApiKey.FETCH, 12, **fetch_fields(("t", 0, 1), max_bytes=110_000))
        assert len(third.responses[0].partitions[0].records) > 100_000
        fourth = await client.ask(ApiKey.FETCH, 12, **fetch_fields(("t", 0, 2), max_bytes=110_000))
        assert fourth.responses == []
        # The third may have come later than it might, and then the fourth is nearer by so much.
        assert 8_700 - 1_000 * (time.monotonic() - began) < fourth.throttle_time_ms < 6_400
        client.send(ApiKey.FETCH, 12, **fetch_fields(("t", 0, 1)))
        assert await client.is_silent(0.1)
        client.abort()

    run(scenario, tmp_path)


def test_a_fetch_asks_for_no_more_than_its_quota_gives(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        client = await broker.connect()
        for _ in range(4):
            await produce(client)
        await set_quota(broker, DEFAULT_CLIENT, consumer_byte_rate=25_000.0)
        answer = await client.ask(ApiKey.FETCH, 12, **fetch_fields(("t", 0, 0)))
        assert 200_000 < len(answer.responses[0].partitions[0].records) < 250_000
        client.close()

    run(scenario, tmp_path)


def test_a_session_survives_a_throttled_fetch_and_none_begins_with_one(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        client = await broker.connect()
        for _ in range(2):
            await produce(client)
        opened = await client.ask(ApiKey.FETCH, 12, **fetch_fields(("t", 0, 0), max_bytes=110_000, session=(0, 0)))
        assert opened.session_id > 0
        await set_quota(broker, DEFAULT_CLIENT, consumer_byte_rate=95_000.0)
        broker.broker._quotas.active.on_fetch(None, 1_250_000)  # type: ignore[union-attr]
        second = await client.ask(ApiKey.FETCH, 12, **fetch_fields(("t", 0, 1), session=(opened.session_id, 1)))
        assert second.throttle_time_ms > 0
        assert (second.responses, second.session_id) == ([], opened.session_id)
        other = await broker.connect()
        third = await other.ask(ApiKey.FETCH, 12, **fetch_fields(("t", 0, 0), session=(0, 0)))
        assert (third.responses, third.session_id, third.error_code) == ([], 0, 0)
        await set_quota(broker, DEFAULT_CLIENT, consumer_byte_rate=None)
        again = await client.ask(ApiKey.FETCH, 12, **fetch_fields(session=(opened.session_id, 2)))
        assert len(again.responses[0].partitions[0].records) > 100_000
        assert len(broker.broker._dispatcher._context.fetch_sessions) == 1
        client.close()
        other.close()

    run(scenario, tmp_path)


def test_who_uses_too_much_of_the_brokers_time_is_throttled_in_every_reply(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        await set_quota(broker, DEFAULT_CLIENT, request_percentage=0.001)
        client = await broker.connect()
        for _ in range(10):
            await client.ask(ApiKey.METADATA, 8, **ALL_TOPICS)
            client.close()
            client = await broker.connect()
        for key, version, fields in (
            (ApiKey.METADATA, 8, ALL_TOPICS),
            (ApiKey.LIST_OFFSETS, 7, {"replica_id": -1, "isolation_level": 0, "topics": []}),
            (ApiKey.PRODUCE, 9, produce_fields("t")),
            (ApiKey.FETCH, 12, fetch_fields(("t", 0, 0))),
        ):
            answer = await client.ask(key, version, **fields)
            answered = time.monotonic()
            assert 0 < answer.throttle_time_ms <= 1000, key
            client.send(ApiKey.API_VERSIONS, 0)
            is_silent = await client.is_silent(0.02)
            assert is_silent or time.monotonic() - answered > 0.5 * answer.throttle_time_ms / 1000
            client.abort()
            client = await broker.connect()
        client.close()

    run(scenario, tmp_path)


def test_a_long_poll_is_not_time_that_a_client_used(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        await set_quota(broker, DEFAULT_CLIENT, request_percentage=25.0)
        client = await broker.connect()
        await client.ask(ApiKey.FETCH, 12, **fetch_fields(("t", 0, 0), wait_ms=3_000))  # 2.5 seconds are free.
        answer = await client.ask(ApiKey.METADATA, 8, **ALL_TOPICS)
        assert answer.throttle_time_ms == 0
        client.close()

    run(scenario, tmp_path)


def test_connections_above_the_rate_of_their_address_are_held_and_closed(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await set_quota(broker, [("ip", "127.0.0.1")], connection_creation_rate=1.0)
        clients, began = [], time.monotonic()
        for _ in range(24):
            client = await broker.connect()
            client.send(ApiKey.API_VERSIONS, 0)
            clients.append(client)
        refused = await asyncio.gather(*(client.is_closed_by_broker() for client in clients))
        # Ten come at once and one every second; the one that set the quota came before it.
        assert 14 - (time.monotonic() - began) - 1 <= sum(refused) <= 15
        for client in clients:
            client.close()

    run(scenario, tmp_path)


def test_every_reply_has_a_place_for_throttling() -> None:
    """The dispatcher counts on it. It leaves out what is for brokers, and SASL sends its replies itself."""
    for key in APIS.keys() - {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE} - WITHOUT_THROTTLE:
        assert "throttle_time_ms" in {field[0] for field in MESSAGES[key][3]}, key
