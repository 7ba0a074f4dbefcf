"""How long a group coordinator takes to load: a partition of `__consumer_offsets` read from its start.

    python -m bench.coordinator_load [records] [offsets] [records per batch] [1: each batch a transaction]

A million commits of a hundred thousand offsets, ten to a batch, unless told otherwise. CPU time of one thread; the
best of three.
"""

import asyncio
import sys
import tempfile
import time
from uuid import UUID

from penstock.base.clock import SystemClock
from penstock.base.config import BrokerConfig
from penstock.base.timers import TimerWheel
from penstock.base.topic_config import TopicConfig
from penstock.base.types import LeaderEpoch, NodeId, Offset, TopicPartition
from penstock.cluster.image import PartitionState
from penstock.coordinator.group import records
from penstock.coordinator.group.group_shard import GroupShard
from penstock.coordinator.group.records import OffsetCommitted
from penstock.coordinator.shard_runner import ShardRunner
from penstock.partition.partition import Partition
from penstock.storage.fs import PosixFileSystem
from penstock.storage.log_manager import LogManager
from penstock.wire.batch import Record

ROUNDS = 3
PARTITIONS = 100  # Of each topic; a group has one.
TOPIC_ID = UUID(int=7)
NODE = NodeId(1)
PRODUCER_ID = 4000


def main() -> None:
    given = [int(argument) for argument in sys.argv[1:]]
    count, offsets, per_batch, is_transactional = [*given, *(1_000_000, 100_000, 10, 0)[len(given) :]]
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(_measure(directory, count, offsets, per_batch, bool(is_transactional)))


async def _measure(directory: str, count: int, offsets: int, per_batch: int, is_transactional: bool) -> None:
    fs, clock = PosixFileSystem(), SystemClock()
    logs = LogManager(config=BrokerConfig(data_dir=directory), fs=fs, clock=clock)
    logs.start()
    topic_partition = TopicPartition("__consumer_offsets", 0)
    partition = Partition(
        topic_partition=topic_partition,
        topic_id=TOPIC_ID,
        node_id=NODE,
        partition_log=logs.open(topic_partition, TOPIC_ID, TopicConfig(durability="os")),
        logs=logs,
        fs=fs,
        clock=clock,
        decompressed_bytes_max=1 << 20,
    )
    partition.open(Offset(0))
    partition.take_role(PartitionState(0, (NODE,), (NODE,), NODE, LeaderEpoch(0), 0))
    for start in range(0, count, per_batch):
        batch = [_commit(number % offsets, number) for number in range(start, start + per_batch)]
        if is_transactional:
            _write_transaction(partition, batch)
        else:
            partition.append_own(batch)
    best = min([await _load(partition, fs, clock) for _ in range(ROUNDS)])
    print(f"{count:,} records of {offsets:,} offsets in {count // per_batch:,} batches: {best:.2f} s of CPU")


def _write_transaction(partition: Partition, batch: list[Record]) -> None:
    guard = partition.begin_verification(PRODUCER_ID, 0, -1, begins_at_zero=False)
    partition.append_own(batch, producer_id=PRODUCER_ID, producer_epoch=0, guard=guard)
    partition.append_marker(
        producer_id=PRODUCER_ID, producer_epoch=0, coordinator_epoch=0, is_commit=True, transaction_version=1
    )


def _commit(name: int, offset: int) -> Record:
    committed = OffsetCommitted(
        group_id=f"consumers-{name // PARTITIONS}",
        topic="a-usual-topic-name",
        partition=name % PARTITIONS,
        offset=Offset(offset),
        leader_epoch=LeaderEpoch(0),
        commit_timestamp_ms=1_700_000_000_000,
        topic_id=TOPIC_ID,
    )
    key, value = records.encode(committed)
    return Record(0, 1_700_000_000_000, key, value)


async def _load(partition: Partition, fs: PosixFileSystem, clock: SystemClock) -> float:
    shard = GroupShard(new_unique_id=str)
    runner = ShardRunner(partition=partition, shard=shard, codec=records, clock=clock, timers=TimerWheel(), fs=fs)
    begun = time.thread_time()
    await runner.load()
    seconds = time.thread_time() - begun
    assert runner.is_loaded
    return seconds


if __name__ == "__main__":
    main()
