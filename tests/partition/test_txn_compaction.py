"""Compaction of transactions: aborted records go, markers stay while anything of their transaction does. Rule 20."""

import asyncio
import random
from pathlib import Path

import pytest
from test_partition import open_partition

from penstock.base.clock import SystemClock
from penstock.base.topic_config import TopicConfig
from penstock.base.types import Offset
from penstock.partition.partition import Partition
from penstock.storage.fs import PosixFileSystem
from penstock.wire.batch import TRANSACTIONAL_MASK, BatchHeader, Record, build_batch, read_header, records_of
from penstock.wire.txn_marker import read_marker

CONFIG = TopicConfig(
    durability="os",
    segment_bytes=500,
    cleanup_policy=("compact",),
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=0,
)


class Workload:
    """Keyed records of four producers, in transactions and out of them, with raised epochs and without."""

    def __init__(self, partition: Partition, seed: int) -> None:
        self.partition = partition
        self.random = random.Random(seed)
        self.open: set[int] = set()
        self.epochs = dict.fromkeys(range(4), 0)
        self.sequences = dict.fromkeys(range(4), 0)
        self.count = 0

    def step(self) -> None:
        pid = self.random.randrange(4)
        if pid in self.open and self.random.random() < 0.5:
            self.end(pid, commit=self.random.random() < 0.5)
        else:
            self.write(pid)

    def write(self, pid: int) -> None:
        self.count += 1
        key, value = b"key %d" % self.random.randrange(5), b"value %d" % self.count
        now_ms = SystemClock().now_ms()
        batch = build_batch(
            [Record(0, now_ms, key, value)],
            base_offset=0,
            attributes=TRANSACTIONAL_MASK,
            producer_id=pid,
            producer_epoch=self.epochs[pid],
            base_sequence=self.sequences[pid],
        )
        guard = self.partition.begin_verification(pid, self.epochs[pid], self.sequences[pid], begins_at_zero=False)
        self.partition.append(memoryview(batch), produce_version=12, is_transactional=True, guard=guard)
        self.sequences[pid] += 1
        self.open.add(pid)

    def end(self, pid: int, *, commit: bool, is_bumped: bool | None = None) -> None:
        is_bumped = self.random.random() < 0.5 if is_bumped is None else is_bumped
        if is_bumped:
            self.epochs[pid] += 1
            self.sequences[pid] = 0
        self.partition.append_marker(
            producer_id=pid,
            producer_epoch=self.epochs[pid],
            coordinator_epoch=0,
            is_commit=commit,
            transaction_version=2 if is_bumped else 1,
        )
        self.open.discard(pid)


def batches(partition: Partition) -> list[tuple[BatchHeader, memoryview]]:
    data = memoryview(bytes(partition.read_all(partition.log_start, 1 << 30, at_least_one=True)))
    found, offset = [], partition.log_start
    while data:
        position = 0
        while position < len(data):
            header = read_header(data, position)
            found.append((header, data[position : position + header.size]))
            position += header.size
            offset = Offset(header.next_offset)
        data = memoryview(bytes(partition.read_all(offset, 1 << 30, at_least_one=True)))
    return found


def committed_values(partition: Partition) -> dict[bytes, bytes]:
    """The last value of each key, as a consumer finds it: it skips an aborted transaction up to its marker."""
    end = partition.last_stable_offset
    aborted = sorted(partition.aborted(partition.log_start, end), key=lambda of: of.first_offset)
    skipping: set[int] = set()
    values: dict[bytes, bytes] = {}
    for header, view in batches(partition):
        if header.base_offset >= end:
            break
        while aborted and aborted[0].first_offset <= header.last_offset:
            skipping.add(aborted.pop(0).producer_id)
        if header.is_control:
            marker = read_marker(view)
            if marker is not None and not marker.is_commit:
                skipping.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in skipping):
            for record in records_of(view, decompressed_bytes_max=1 << 20):
                assert record.key is not None
                assert record.value is not None
                values[record.key] = record.value
    return values


def known(partition: Partition) -> dict[int, tuple[int, int, Offset | None]]:
    return {
        pid: (producer.epoch, producer.next_sequence, producer.txn_first_offset)
        for pid, producer in partition.producers.producers.items()
    }


def remove_snapshots(directory: Path) -> None:
    for path in directory.glob("topic-0/*.snapshot"):
        path.unlink()


async def compact(partition: Partition) -> None:
    partition._logs.last_stable_offset_of = lambda tp: partition.last_stable_offset
    partition._commit.request(partition.log)
    await partition._commit.finish()
    await partition._logs.cleaner.clean_all()
    assert partition._logs.cleaner.uncleanable == {}


@pytest.mark.parametrize("seed", range(4))
def test_readers_find_the_same_before_and_after(tmp_path: Path, seed: int) -> None:
    async def scenario() -> None:
        partition = open_partition(PosixFileSystem(), tmp_path, CONFIG)
        workload = Workload(partition, seed)
        for restarts in range(2):
            for _ in range(3):
                for _ in range(workload.random.randrange(5, 40)):
                    workload.step()
                before = committed_values(partition), partition.last_stable_offset, known(partition)
                size = partition.log.size
                await compact(partition)
                assert (committed_values(partition), partition.last_stable_offset, known(partition)) == before
                assert partition.log.size <= size + 20 * 70  # Horizons do not change sizes by much.
            if seed % 2:  # Then what is left of the log has to do.
                remove_snapshots(tmp_path)
            partition = workload.partition = open_partition(PosixFileSystem(), tmp_path, CONFIG, epoch=restarts + 1)
            assert (committed_values(partition), partition.last_stable_offset) == before[:2]
            assert known(partition) == before[2]

    asyncio.run(scenario())


def test_a_marker_goes_some_time_after_the_last_of_its_records(tmp_path: Path) -> None:
    async def scenario() -> None:
        partition = open_partition(PosixFileSystem(), tmp_path, CONFIG)
        workload = Workload(partition, 1)
        workload.write(0)
        workload.end(0, commit=False, is_bumped=True)  # Or its last sequence would be of use, and the batch stay.
        workload.write(1)
        workload.end(1, commit=True)
        for _ in range(8):  # Fills segments, and is the last of its producers.
            workload.write(2)
            workload.end(2, commit=True)
        counts = []
        for _ in range(4):
            workload.write(3)
            workload.end(3, commit=True)
            partition.log.roll()
            await compact(partition)
            of_first = [header for header, _ in batches(partition) if header.producer_id == 0]
            counts.append([header.is_control for header in of_first if header.records_count])
            assert partition.aborted(Offset(0), Offset(2)) == [] or counts == [[True]]
        # The record goes in the first pass; the marker is seen to be hollow in the second, and goes in the third.
        assert counts == [[True], [True], [], []]

    asyncio.run(scenario())


def test_an_open_transaction_and_what_is_behind_it_stay_as_they_are(tmp_path: Path) -> None:
    async def scenario() -> None:
        partition = open_partition(PosixFileSystem(), tmp_path, CONFIG)
        workload = Workload(partition, 1)
        workload.write(0)
        for _ in range(20):
            workload.write(1)
            workload.end(1, commit=True)
        count = len(batches(partition))
        await compact(partition)
        assert len(batches(partition)) == count

    asyncio.run(scenario())
