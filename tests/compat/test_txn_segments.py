"""Kafka's own DumpLogSegments reads what transactions leave on disk: markers, their index, the producers' snapshots."""

import asyncio
import re
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from penstock.base.clock import SystemClock
from penstock.base.config import BrokerConfig
from penstock.base.topic_config import TopicConfig
from penstock.base.types import LeaderEpoch, NodeId, Offset, TopicPartition
from penstock.cluster.image import PartitionState
from penstock.partition.partition import Partition
from penstock.storage.fs import PosixFileSystem
from penstock.storage.log_manager import LogManager
from penstock.wire.batch import TRANSACTIONAL_MASK, Record, build_batch

from .kafka_tools import DUMP_LOG_SEGMENTS, KafkaTools
from .missing_parts import skip_when_missing

TP = TopicPartition("txns", 0)


@pytest.fixture(scope="module")
def kafka_tools() -> Iterator[KafkaTools]:
    with skip_when_missing("Kafka's command-line tools"):
        tools = KafkaTools("")
    yield tools
    tools.close()


def opened(directory: Path) -> Partition:
    fs, clock = PosixFileSystem(), SystemClock()
    logs = LogManager(config=BrokerConfig(data_dir=str(directory)), fs=fs, clock=clock)
    logs.start()
    partition = Partition(
        topic_partition=TP,
        topic_id=UUID(int=1),
        node_id=NodeId(1),
        partition_log=logs.open(TP, UUID(int=1), TopicConfig(durability="os")),
        logs=logs,
        fs=fs,
        clock=clock,
        decompressed_bytes_max=1 << 20,
    )
    partition.open(Offset(0))
    alone = (NodeId(1),)
    partition.take_role(PartitionState(0, alone, alone, NodeId(1), LeaderEpoch(3), 0))
    return partition


def write(partition: Partition, pid: int) -> None:
    batch = build_batch(
        [Record(0, int(time.time() * 1000), b"key", b"value")],
        base_offset=0,
        attributes=TRANSACTIONAL_MASK,
        producer_id=pid,
        producer_epoch=0,
        base_sequence=0,
    )
    guard = partition.begin_verification(pid, 0, 0, begins_at_zero=True)
    partition.append(memoryview(batch), produce_version=12, is_transactional=True, guard=guard)


def end(partition: Partition, pid: int, *, is_commit: bool) -> None:
    partition.append_marker(
        producer_id=pid, producer_epoch=1, coordinator_epoch=9, is_commit=is_commit, transaction_version=2
    )


async def _write_files(directory: Path) -> Path:
    partition = opened(directory)
    for pid in (1, 2, 3):
        write(partition, pid)
    end(partition, 2, is_commit=False)
    end(partition, 1, is_commit=True)
    partition.store_producers()
    partition.log.store_indexes()
    return Path(partition.log.directory)


def test_kafka_reads_markers_aborted_transactions_and_producers(tmp_path: Path, kafka_tools: KafkaTools) -> None:
    directory = asyncio.run(_write_files(tmp_path))
    files = [directory / f"{0:020d}.log", directory / f"{0:020d}.txnindex", directory / f"{5:020d}.snapshot"]
    result = kafka_tools.run_offline(
        DUMP_LOG_SEGMENTS, "--files", ",".join(map(str, files)), "--print-data-log", "--deep-iteration"
    )
    assert (result.exit_code, result.err) == (0, "")
    markers = re.findall(r"offset: (\d+) .*endTxnMarker: (\w+) coordinatorEpoch: (\d+)", result.out)
    assert markers == [("3", "ABORT", "9"), ("4", "COMMIT", "9")]
    aborted = re.findall(r"producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)", result.out)
    assert aborted == [("2", "1", "3", "0")]
    producers = re.findall(
        r"producerId: (\d+) producerEpoch: (\d+) coordinatorEpoch: (-?\d+) currentTxnFirstOffset: (\S+)", result.out
    )
    assert [(pid, epoch, coordinator) for pid, epoch, coordinator, _ in producers] == [
        ("1", "1", "9"),
        ("2", "1", "9"),
        ("3", "0", "-1"),
    ]
    assert "2" in producers[2][3]
