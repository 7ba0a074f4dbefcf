"""Requests leave no cycles behind: the broker's collector hardly ever runs, and a request may hold a megabyte."""

import asyncio
import gc
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import UUID

import pytest
from in_process_broker import Client, RunningBroker, fetch_fields, produce_fields, run
from session_reader import SessionReader

from penstock.server.api import ApiKey
from penstock.wire.codec import Struct

TIMES = 20
Ask = Callable[[Client], Awaitable[object]]


async def produce(client: Client) -> None:
    await client.produce("t", b"x" * 1000)


async def produce_without_acks(client: Client) -> None:
    client.send(ApiKey.PRODUCE, 9, **produce_fields("t", acks=0))
    await client.ask(ApiKey.API_VERSIONS, 0)


async def produce_compressed(client: Client) -> None:
    await client.produce("compacted", b"x" * 20_000)


async def produce_refused(client: Client) -> None:
    await client.produce("no-such-topic", b"x" * 1000)


async def fetch(client: Client) -> None:
    await client.fetch("t", 0)


async def fetch_much_and_read_on(client: Client) -> None:
    wanted = {"topics": [Struct(topic_id=UUID(int=0), name="t")], "allow_auto_topic_creation": False}
    told = await client.ask(ApiKey.METADATA, 12, include_topic_authorized_operations=False, **wanted)
    for value in range(6):
        await client.produce("t", bytes([value]) * 100_000)
    reader = SessionReader(client, told.topics[0].topic_id)
    for _ in range(3):
        await reader.fetch()


async def fetch_that_waits_in_vain(client: Client) -> None:
    await client.ask(ApiKey.FETCH, 12, **fetch_fields(("empty", 0, 0), wait_ms=5))


async def fetch_that_waits_for_a_record(client: Client) -> None:
    end = (await client.fetch("t", 0)).high_watermark
    client.send(ApiKey.FETCH, 12, **fetch_fields(("t", 0, end), wait_ms=5000))
    await asyncio.sleep(0.005)
    client.send(ApiKey.PRODUCE, 9, **produce_fields("t"))
    await client.receive()
    await client.receive()


async def list_offsets(client: Client) -> None:
    topics = [Struct(name="t", partitions=[Struct(partition_index=0, timestamp=at)]) for at in (-1,)]
    await client.ask(ApiKey.LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=topics)


@pytest.mark.parametrize(
    "ask",
    [
        produce,
        produce_without_acks,
        produce_compressed,
        produce_refused,
        fetch,
        fetch_much_and_read_on,
        fetch_that_waits_in_vain,
        fetch_that_waits_for_a_record,
        list_offsets,
    ],
    ids=lambda ask: ask.__name__,
)
def test_nothing_is_left_for_the_collector(tmp_path: Path, ask: Ask) -> None:
    left: Counter[str] = Counter()

    async def scenario(broker: RunningBroker) -> None:
        for name, config in (("t", {}), ("empty", {}), ("compacted", {"cleanup_policy": "compact"})):
            await broker.create_topic(name, **config)
        client = await broker.connect()
        await client.produce("t", b"first")
        await ask(client)
        gc.collect()
        gc.disable()
        try:
            for _ in range(TIMES):
                await ask(client)
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            left.update(
                type(item).__name__ for item in gc.garbage if type(item).__module__.startswith("penstock.server")
            )
            left.update(type(item).__name__ for item in gc.garbage if isinstance(item, memoryview | bytearray))
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
        client.close()

    run(scenario, tmp_path)
    assert left == Counter()
