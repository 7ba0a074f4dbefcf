"""DescribeProducers: what a partition remembers of those who write to it, and what is said instead."""

import asyncio
import time
from pathlib import Path
from typing import Any

from in_process_broker import Client, RunningBroker, run, running_broker

from penstock.base.errors import ErrorCode
from penstock.cluster.store.memory import MemoryStore
from penstock.server import handlers
from penstock.server.api import ApiKey
from penstock.wire.batch import Record, build_batch
from penstock.wire.codec import Struct

handlers.register_all()


async def _describe(client: Client, topic: str, *partitions: int) -> list[Struct]:
    asked = [Struct(name=topic, partition_indexes=list(partitions))]
    answer = await client.ask(ApiKey.DESCRIBE_PRODUCERS, 0, topics=asked)
    assert [found.name for found in answer.topics] == [topic]
    found: list[Struct] = answer.topics[0].partitions
    assert [partition.partition_index for partition in found] == list(partitions)
    return found


async def _produce(client: Client, topic: str, **producer: Any) -> None:
    records = build_batch([Record(n, 1000, None, b"v") for n in range(3)], base_offset=0, leader_epoch=-1, **producer)
    data = [Struct(name=topic, partition_data=[Struct(index=0, records=records)])]
    answer = await client.ask(ApiKey.PRODUCE, 9, transactional_id=None, acks=-1, timeout_ms=10_000, topic_data=data)
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.none


def test_idempotent_producers_are_listed_and_others_are_not(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t", partitions=2)
        client = await broker.connect()
        before_ms = time.time_ns() // 1_000_000
        await client.produce("t", b"of nobody")
        await _produce(client, "t", producer_id=7, producer_epoch=2, base_sequence=0)
        await _produce(client, "t", producer_id=7, producer_epoch=2, base_sequence=3)
        await _produce(client, "t", producer_id=8, producer_epoch=0, base_sequence=0)
        used, unused = await _describe(client, "t", 0, 1)
        assert (used.error_code, used.error_message) == (ErrorCode.none, None)
        assert [(p.producer_id, p.producer_epoch, p.last_sequence) for p in used.active_producers] == [
            (7, 2, 5),
            (8, 0, 2),
        ]
        for producer in used.active_producers:
            assert before_ms <= producer.last_timestamp <= time.time_ns() // 1_000_000
            assert (producer.coordinator_epoch, producer.current_txn_start_offset) == (-1, -1)
        assert (unused.error_code, unused.active_producers) == (ErrorCode.none, [])
        client.close()

    run(scenario, tmp_path)


def test_a_new_epoch_has_no_sequence_yet(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        client = await broker.connect()
        await _produce(client, "t", producer_id=7, producer_epoch=0, base_sequence=2**31 - 2)
        (found,) = (await _describe(client, "t", 0))[0].active_producers
        assert found.last_sequence == 0  # The ring begins again after 2^31 - 1.
        broker.partition("t").producers.producers[7].begin_epoch(1)
        (found,) = (await _describe(client, "t", 0))[0].active_producers
        assert (found.producer_epoch, found.last_sequence) == (1, -1)
        client.close()

    run(scenario, tmp_path)


def test_what_is_not_there_or_asked_twice_is_refused(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        client = await broker.connect()
        codes = [partition.error_code for partition in await _describe(client, "t", 0, 1, -1, 0, 0)]
        unknown, twice = ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_request
        assert codes == [ErrorCode.none, unknown, unknown, twice, twice]
        (missing,) = await _describe(client, "missing", 0)
        assert (missing.error_code, missing.error_message) == (unknown, "missing-0 is not here")
        client.close()

    run(scenario, tmp_path)


def test_a_partition_of_another_broker_is_not_ours_to_describe(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = MemoryStore()
        async with (
            running_broker(tmp_path / "1", store, node_id=1) as first,
            running_broker(tmp_path / "2", store, node_id=2) as second,
        ):
            await first.create_topic("t", partitions=2)
            clients = [await first.connect(), await second.connect()]
            codes = [{partition.error_code for partition in await _describe(client, "t", 0, 1)} for client in clients]
            assert codes == [{ErrorCode.none, ErrorCode.not_leader_or_follower}] * 2
            for client in clients:
                client.close()

    asyncio.run(asyncio.wait_for(scenario(), 30))
