"""Transactions across restarts, truncation and damage: the same last stable offset, the same aborted ones.

Rules 14 and 19: producers and indexes are what the log says, whatever became of their files.
"""

import asyncio
import random
from pathlib import Path

import pytest
from test_partition import open_partition
from test_partition_transactions import end, write

from penstock.base.errors import ErrorCode
from penstock.base.topic_config import TopicConfig
from penstock.base.types import LeaderEpoch, NodeId, Offset
from penstock.cluster.image import PartitionState
from penstock.partition.partition import Partition
from penstock.storage.fs import PosixFileSystem
from penstock.storage.txn_index import AbortedTxn

CONFIG = TopicConfig(durability="os", segment_bytes=600)  # Six batches or so.


class Workload:
    """Transactions of four producers, at random; with what the log's readers are to be told."""

    def __init__(self, partition: Partition, seed: int) -> None:
        self.partition = partition
        self.random = random.Random(seed)
        self.open: dict[int, int] = {}
        self.sequences = dict.fromkeys(range(4), 0)
        self.aborted: list[tuple[int, int, int]] = []

    def step(self) -> None:
        pid = self.random.randrange(4)
        if pid in self.open and self.random.random() < 0.4:
            commit = self.random.random() < 0.5
            offset = end(self.partition, commit=commit, pid=pid) - 1
            first = self.open.pop(pid)
            if not commit:
                self.aborted.append((pid, first, offset))
        else:
            offset = write(self.partition, pid=pid, sequence=self.sequences[pid])
            self.sequences[pid] += 1
            self.open.setdefault(pid, offset)

    @property
    def stable(self) -> int:
        return min(self.open.values(), default=self.partition.log.log_end)


def all_aborted(partition: Partition) -> list[tuple[int, int, int]]:
    return [entry[:3] for entry in partition.aborted(Offset(0), partition.log.log_end)]


def check(partition: Partition, workload: Workload) -> None:
    assert partition.last_stable_offset == workload.stable
    assert all_aborted(partition) == workload.aborted
    for start in range(0, partition.log.log_end, 3):
        for stop in (start + 1, start + 7):
            told = {entry[:3] for entry in partition.aborted(Offset(start), Offset(stop))}
            assert {entry for entry in workload.aborted if entry[2] >= start and entry[1] < stop} == told


def snapshots(directory: Path) -> list[Path]:
    return list(directory.glob("topic-0/*.snapshot"))


def indexes(directory: Path) -> list[Path]:
    return sorted(directory.glob("topic-0/*.txnindex"))


@pytest.mark.parametrize(
    "harm", ["none", "indexes gone", "one gone", "one damaged", "torn", "snapshots gone", "all gone"]
)
@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_restart_finds_what_was_there(tmp_path: Path, harm: str, checkpointed: bool) -> None:
    async def scenario(directory: Path, seed: int) -> None:
        partition = open_partition(PosixFileSystem(), directory, CONFIG)
        workload = Workload(partition, seed)
        for _ in range(60):
            workload.step()
        if checkpointed:
            partition._commit.request(partition.log)
            await partition._commit.finish()
            await partition._logs.checkpoint()
            for _ in range(workload.random.randrange(15)):
                workload.step()
        check(partition, workload)
        stored = indexes(directory)
        assert len(stored) == len(partition.log.segments) > 5
        chosen = workload.random.choice([path for path in stored if path.stat().st_size])
        if harm in ("indexes gone", "all gone"):
            for path in stored[1:]:
                path.unlink()
        if harm in ("snapshots gone", "all gone"):
            for path in snapshots(directory):
                path.unlink()
        if harm == "one gone" and chosen != stored[0]:
            chosen.unlink()
        if harm == "one damaged":
            chosen.write_bytes(bytes([chosen.read_bytes()[0] ^ 1]) + chosen.read_bytes()[1:])
        if harm == "torn":
            stored[-1].write_bytes(stored[-1].read_bytes() + b"\0" * 10)
        partition = open_partition(PosixFileSystem(), directory, CONFIG, epoch=1)
        workload.partition = partition
        check(partition, workload)
        for _ in range(20):  # And on it goes.
            workload.step()
        check(partition, workload)
        workload.partition = partition = open_partition(PosixFileSystem(), directory, CONFIG, epoch=2)
        check(partition, workload)

    for seed in range(3):
        asyncio.run(scenario(tmp_path / str(seed), seed))


def test_the_index_of_a_torn_tail_is_cut_with_it(tmp_path: Path) -> None:
    """What was cut off may be written anew, otherwise: an entry of before must not come true."""

    async def scenario() -> None:
        partition = open_partition(PosixFileSystem(), tmp_path, TopicConfig(durability="os"))
        write(partition)
        end(partition, commit=False)
        assert all_aborted(partition) == [(4000, 0, 1)]
        path = tmp_path / "topic-0" / f"{0:020d}.log"
        path.write_bytes(path.read_bytes()[:-1])
        partition = open_partition(PosixFileSystem(), tmp_path, TopicConfig(durability="os"), epoch=1)
        assert (partition.log.log_end, partition.last_stable_offset, all_aborted(partition)) == (1, 0, [])
        end(partition, commit=True)
        assert all_aborted(partition) == []
        partition = open_partition(PosixFileSystem(), tmp_path, TopicConfig(durability="os"), epoch=2)
        assert (partition.last_stable_offset, all_aborted(partition)) == (2, [])

    asyncio.run(scenario())


def test_the_index_of_a_segment_that_is_gone_is_not_taken_for_a_new_ones(tmp_path: Path) -> None:
    async def scenario() -> None:
        partition = open_partition(PosixFileSystem(), tmp_path, CONFIG)
        write(partition)
        stray = tmp_path / "topic-0" / f"{1:020d}.txnindex"
        stray.write_bytes(bytes(34))
        partition = open_partition(PosixFileSystem(), tmp_path, CONFIG, epoch=1)
        assert not stray.exists()

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", range(4))
def test_a_follower_that_is_cut_back_forgets_what_was_cut(tmp_path: Path, seed: int) -> None:
    async def scenario() -> None:
        partition = open_partition(PosixFileSystem(), tmp_path, CONFIG)
        workload = Workload(partition, seed)
        history: list[tuple[int, int, list[tuple[int, int, int]]]] = []
        for _ in range(50):
            workload.step()
            history.append((partition.log.log_end, workload.stable, list(workload.aborted)))
        others = (NodeId(1), NodeId(2))
        partition.take_role(PartitionState(0, others, others, NodeId(2), LeaderEpoch(1), 1))
        for cut, stable, aborted in (history[40], history[17], history[3]):
            await partition.truncate((LeaderEpoch(0), Offset(cut)))
            assert (partition.log.log_end, partition.last_stable_offset) == (cut, stable)
            assert all_aborted(partition) == aborted
        await partition.start_over(Offset(100))
        assert (partition.last_stable_offset, all_aborted(partition)) == (100, [])
        names = [path.name for path in indexes(tmp_path)]
        assert names == [f"{100:020d}.txnindex"]
        partition = open_partition(PosixFileSystem(), tmp_path, CONFIG, epoch=2)
        assert all_aborted(partition) == []

    asyncio.run(scenario())


def test_retention_takes_the_index_with_its_segment(tmp_path: Path) -> None:
    async def scenario() -> None:
        partition = open_partition(PosixFileSystem(), tmp_path, CONFIG)
        workload = Workload(partition, 5)
        for _ in range(50):
            workload.step()
        partition.log.delete_oldest(3)
        assert len(indexes(tmp_path)) == len(partition.log.segments)
        expected = [entry for entry in workload.aborted if entry[2] >= partition.log_start]
        found = partition.aborted(partition.log_start, partition.log.log_end)
        assert [entry[:3] for entry in found] == expected
        partition = open_partition(PosixFileSystem(), tmp_path, CONFIG, epoch=1)
        assert [entry[:3] for entry in partition.aborted(partition.log_start, partition.log.log_end)] == expected

    asyncio.run(scenario())


def test_a_marker_that_the_disk_refuses_leaves_no_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 16: a failed append is undone as a whole."""

    async def scenario() -> None:
        partition = open_partition(PosixFileSystem(), tmp_path, TopicConfig(durability="os"))
        write(partition)

        def fail(*arguments: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(partition.log.active, "append", fail)
            with pytest.raises(Exception, match="No space left") as refused:
                end(partition, commit=False)
            assert getattr(refused.value, "code", None) is ErrorCode.kafka_storage_error
        assert all_aborted(partition) == []
        assert indexes(tmp_path)[0].stat().st_size == 0
        assert end(partition, commit=False) == 2
        assert partition.aborted(Offset(0), Offset(2)) == [AbortedTxn(4000, 0, 1, 2)]
        assert indexes(tmp_path)[0].stat().st_size == 34

    asyncio.run(scenario())
