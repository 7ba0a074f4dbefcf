"""Power cuts at every single operation of a partition with transactions: its indexes are what its log says."""

from penstock.base.topic_config import TopicConfig
from penstock.base.types import LeaderEpoch, NodeId, Offset
from penstock.cluster.image import PartitionState
from penstock.partition.partition import Partition
from penstock.wire.batch import TRANSACTIONAL_MASK, Record, build_batch, read_header
from penstock.wire.txn_marker import read_marker

from .support import TOPIC_ID, TP, Machine
from .test_crashes import commit, cut_at_every_operation, started

CONFIG = TopicConfig(segment_bytes=450, index_interval_bytes=100)


def opened(machine: Machine, logs, epoch: int) -> Partition:
    partition = Partition(
        topic_partition=TP,
        topic_id=TOPIC_ID,
        node_id=NodeId(1),
        partition_log=logs.open(TP, TOPIC_ID, CONFIG),
        logs=logs,
        fs=machine.fs,
        clock=machine.clock,
        decompressed_bytes_max=1 << 20,
    )
    partition.open(Offset(0))
    alone = (NodeId(1),)
    partition.take_role(PartitionState(0, alone, alone, NodeId(1), LeaderEpoch(epoch), 0))
    return partition


def write(partition: Partition, machine: Machine, pid: int, sequence: int) -> None:
    record = Record(0, machine.clock.now_ms(), None, b"x" * 40)
    batch = build_batch(
        [record],
        base_offset=0,
        attributes=TRANSACTIONAL_MASK,
        producer_id=pid,
        producer_epoch=0,
        base_sequence=sequence,
    )
    guard = partition.begin_verification(pid, 0, sequence, begins_at_zero=False)
    partition.append(memoryview(batch), produce_version=12, is_transactional=True, guard=guard)


def end(partition: Partition, pid: int, *, is_commit: bool) -> None:
    partition.append_marker(
        producer_id=pid, producer_epoch=0, coordinator_epoch=0, is_commit=is_commit, transaction_version=1
    )


async def live_with_transactions(machine, known):
    logs = started(machine)
    partition = opened(machine, logs, 0)
    for turn in range(4):
        write(partition, machine, 1, turn)
        write(partition, machine, 2, 2 * turn)
        if turn == 1:
            await commit(logs, partition.log)
        end(partition, 1, is_commit=turn == 2)
        write(partition, machine, 2, 2 * turn + 1)
        await commit(logs, partition.log)
        known["promised"] = partition.high_watermark
        if turn % 2 == 0:
            await logs.checkpoint()
        if turn % 2 == 1:
            end(partition, 2, is_commit=False)
    partition.store_producers()
    await logs.stop()


def read_from_log(partition: Partition) -> tuple[list[tuple[int, int, int]], dict[int, int]]:
    """The aborted transactions and the open ones, by looking at every batch."""
    aborted, begun = [], {}
    for segment in partition.log.segments:
        position = 0
        while position < segment.size:
            header = read_header(segment.file.read(position, 61))
            batch = segment.file.read(position, header.size)
            position += header.size
            if not header.is_control:
                begun.setdefault(header.producer_id, header.base_offset)
                continue
            marker = read_marker(batch)
            first = begun.pop(header.producer_id, None)
            if marker is not None and not marker.is_commit and first is not None:
                aborted.append((header.producer_id, first, header.base_offset))
    return aborted, begun


async def find_the_same_transactions(machine, known):
    for epoch in (1, 2):  # What the first start has mended is there for the second.
        logs = started(machine)
        partition = opened(machine, logs, epoch)
        assert partition.log.failure is None, partition.log.failure
        log_end = partition.log.log_end
        assert log_end >= known.get("promised", 0)
        aborted, begun = read_from_log(partition)
        assert [entry[:3] for entry in partition.aborted(Offset(0), log_end)] == aborted
        assert partition.high_watermark == log_end
        assert partition.last_stable_offset == min(begun.values(), default=log_end)
        if 2 not in begun:
            next_sequence = partition.producers.producers[2].next_sequence if 2 in partition.producers.producers else 0
            write(partition, machine, 2, next_sequence)
        end(partition, 2, is_commit=False)
        await commit(logs, partition.log)
        await logs.checkpoint()
        machine.cut_power()


def test_transactions_are_what_the_log_says_after_a_power_cut_at_any_operation():
    """Rules 14 and 19: neither a snapshot nor an index that reached the disk alone is believed."""
    cut_at_every_operation(live_with_transactions, find_the_same_transactions, seeds=range(2))
