"""Reading what is committed: Fetch up to the last stable offset, ListOffsets by isolation level."""

import time
from pathlib import Path
from typing import Any

import pytest
from in_process_broker import Client, RunningBroker, fetch_fields, run, until

from penstock.partition.partition import Partition
from penstock.server import handlers
from penstock.server.api import ApiKey
from penstock.wire.batch import TRANSACTIONAL_MASK, Record, build_batch
from penstock.wire.codec import Struct

handlers.register_all()

READ_COMMITTED = 1
LONG_WAIT_MS = 30_000
LATEST, MAX_TIMESTAMP = -1, -3


def write(partition: Partition, pid: int, sequence: int = 0, timestamp: int | None = None) -> None:
    """One record in a transaction of the producer."""
    now_ms = int(time.time() * 1000) if timestamp is None else timestamp
    batch = build_batch(
        [Record(0, now_ms, None, b"v" * 100)],
        base_offset=0,
        attributes=TRANSACTIONAL_MASK,
        producer_id=pid,
        producer_epoch=0,
        base_sequence=sequence,
    )
    guard = partition.begin_verification(pid, 0, sequence, begins_at_zero=False)
    partition.append(memoryview(batch), produce_version=12, is_transactional=True, guard=guard)


def end(partition: Partition, pid: int, *, commit: bool) -> None:
    partition.append_marker(
        producer_id=pid, producer_epoch=0, coordinator_epoch=0, is_commit=commit, transaction_version=1
    )


async def fetch(client: Client, offset: int, version: int = 12, **fields: Any) -> Struct:
    asked = fetch_fields(("topic", 0, offset), **fields)
    answer = await client.ask(ApiKey.FETCH, version, **asked, isolation_level=READ_COMMITTED)
    result: Struct = answer.responses[0].partitions[0]
    return result


def aborted_in(result: Struct) -> list[tuple[int, int]]:
    return [(item.producer_id, item.first_offset) for item in result.aborted_transactions]


async def list_offset(client: Client, timestamp: int, isolation_level: int = READ_COMMITTED) -> int:
    partitions = [Struct(partition_index=0, current_leader_epoch=-1, timestamp=timestamp)]
    answer = await client.ask(
        ApiKey.LIST_OFFSETS,
        7,
        replica_id=-1,
        isolation_level=isolation_level,
        topics=[Struct(name="topic", partitions=partitions)],
    )
    result = answer.topics[0].partitions[0]
    assert result.error_code == 0
    offset: int = result.offset
    return offset


@pytest.mark.parametrize("version", [4, 11, 12])
def test_a_reader_stops_at_an_open_transaction_and_is_told_what_was_aborted(tmp_path: Path, version: int) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("topic", penstock_durability="os")
        client, partition = await broker.connect(), broker.partition("topic")
        write(partition, 1)
        write(partition, 2)
        end(partition, 1, commit=False)
        write(partition, 3)
        end(partition, 3, commit=False)
        nothing = await fetch(client, 0, version, session=(0, -1))
        assert (nothing.high_watermark, nothing.last_stable_offset) == (5, 1)
        assert aborted_in(nothing) == [(1, 0)]
        assert (await fetch(client, 1, version)).records == b""
        everything = await client.ask(ApiKey.FETCH, version, **fetch_fields(("topic", 0, 0)))
        result = everything.responses[0].partitions[0]
        assert result.aborted_transactions is None
        assert len(result.records) > len(nothing.records) > 0
        end(partition, 2, commit=True)
        assert aborted_in(await fetch(client, 0, version)) == [(1, 0), (3, 3)]
        assert aborted_in(await fetch(client, 3, version)) == [(3, 3)]
        assert aborted_in(await fetch(client, 5, version)) == []
        first = await fetch(client, 0, version, partition_max_bytes=1)  # One batch, and what concerns it.
        assert aborted_in(first) == [(1, 0)]

    run(scenario, tmp_path)


def test_a_waiting_reader_is_woken_by_the_marker(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("topic", penstock_durability="os")
        client, partition = await broker.connect(), broker.partition("topic")
        write(partition, 1)
        asked = fetch_fields(("topic", 0, 0), wait_ms=LONG_WAIT_MS, min_bytes=300)
        client.send(ApiKey.FETCH, 12, **asked, isolation_level=READ_COMMITTED)
        await until(lambda: bool(partition.waiters._stable_readers))
        write(partition, 1, 1)
        assert await client.is_silent()
        end(partition, 1, commit=True)
        answer = await client.receive_reply(ApiKey.FETCH, 12)
        result = answer.responses[0].partitions[0]
        assert (result.last_stable_offset, len(result.records) > 300) == (3, True)
        assert (len(partition.waiters._stable_readers), broker.timers_count) == (0, 0)

    run(scenario, tmp_path)


def test_the_last_offset_is_the_last_stable_one(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("topic", penstock_durability="os")
        client, partition = await broker.connect(), broker.partition("topic")
        now_ms = int(time.time() * 1000)
        write(partition, 1, timestamp=now_ms - 5000)
        end(partition, 1, commit=True)
        write(partition, 1, 1, timestamp=now_ms - 3000)
        assert (await list_offset(client, LATEST), await list_offset(client, LATEST, 0)) == (2, 3)
        assert (await list_offset(client, now_ms - 4000), await list_offset(client, now_ms - 4000, 0)) == (1, 1)
        assert (await list_offset(client, now_ms + 5000), await list_offset(client, now_ms + 5000, 0)) == (-1, -1)
        end(partition, 1, commit=False)
        assert await list_offset(client, LATEST) == 4
        assert await list_offset(client, MAX_TIMESTAMP) in (1, 3)

    run(scenario, tmp_path)


def test_producers_are_described_with_their_transactions(tmp_path: Path) -> None:
    """KIP-664: what kafka-transactions.sh looks for."""

    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("topic", penstock_durability="os")
        client, partition = await broker.connect(), broker.partition("topic")
        write(partition, 1)
        end(partition, 1, commit=True)
        write(partition, 1, 1)
        answer = await client.ask(ApiKey.DESCRIBE_PRODUCERS, 0, topics=[Struct(name="topic", partition_indexes=[0])])
        (producer,) = answer.topics[0].partitions[0].active_producers
        assert (producer.producer_id, producer.coordinator_epoch, producer.current_txn_start_offset) == (1, 0, 2)

    run(scenario, tmp_path)
