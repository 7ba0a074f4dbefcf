"""Offsets inside transactions on a real partition: written, ended by markers, loaded again."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import UUID

import pytest

from penstock.base.clock import SystemClock
from penstock.base.config import BrokerConfig
from penstock.base.errors import ErrorCode
from penstock.base.timers import TimerWheel
from penstock.base.topic_config import TopicConfig
from penstock.base.types import LeaderEpoch, NodeId, Offset, TopicPartition
from penstock.cluster.image import PartitionState
from penstock.coordinator.decision import TransactionalProducer
from penstock.coordinator.group import records
from penstock.coordinator.group.commands import (
    CommitOffsets,
    CommitTxnOffsets,
    DeleteOffsets,
    FetchOffsets,
    PartitionCommit,
    TopicCommit,
    TopicPartitions,
)
from penstock.coordinator.group.group_shard import GroupShard
from penstock.coordinator.group.replies import CommitReply, FetchReply
from penstock.coordinator.shard_runner import ShardRunner
from penstock.partition.partition import Partition
from penstock.storage.fs import PosixFileSystem
from penstock.storage.log_manager import LogManager

TP = TopicPartition("__consumer_offsets", 0)
OS = TopicConfig(durability="os")
UNSTABLE = ErrorCode.unstable_offset_commit


class Coordinator:
    def __init__(self, directory: Path, config: TopicConfig = OS) -> None:
        fs, clock = PosixFileSystem(), SystemClock()
        logs = LogManager(config=BrokerConfig(data_dir=str(directory)), fs=fs, clock=clock)
        logs.start()
        logs.high_watermark_of = lambda tp: self.partition.high_watermark
        logs.last_stable_offset_of = lambda tp: self.partition.last_stable_offset
        self.logs = logs
        self.partition = Partition(
            topic_partition=TP,
            topic_id=UUID(int=1),
            node_id=NodeId(1),
            partition_log=logs.open(TP, UUID(int=1), config),
            logs=logs,
            fs=fs,
            clock=clock,
            decompressed_bytes_max=1 << 20,
        )
        self.partition.open(Offset(0))
        self.epoch = 0
        self.runner = self.new_runner()

    def new_runner(self) -> ShardRunner[GroupShard]:
        alone = (NodeId(1),)
        self.partition.take_role(PartitionState(0, alone, alone, NodeId(1), LeaderEpoch(self.epoch), self.epoch))
        self.epoch += 1
        clock = SystemClock()
        shard = GroupShard(new_unique_id=str)
        timers = TimerWheel()
        return ShardRunner(
            partition=self.partition, shard=shard, codec=records, clock=clock, timers=timers, fs=PosixFileSystem()
        )

    async def move(self) -> None:
        """Another epoch of the same broker: all that it knows is what the log has."""
        self.runner.close(ErrorCode.not_coordinator)
        self.runner = self.new_runner()
        await self.runner.load()

    def commit(self, offset: int, *, partition: int = 0, pid: int | None = None, epoch: int = 0) -> ErrorCode:
        answers: list[CommitReply] = []
        topics = (TopicCommit("t", (PartitionCommit(partition, Offset(offset)),)),)
        shard = self.runner.shard
        if pid is None:
            plain = CommitOffsets(group_id="g", topics=topics, version=9)
            self.runner.run(lambda now: shard.commit_offsets(plain, answers.append, now))
        else:
            guard = self.partition.begin_verification(pid, epoch, -1, begins_at_zero=False)
            command = CommitTxnOffsets(group_id="g", topics=topics, producer=TransactionalProducer(pid, epoch, guard))
            self.runner.run(lambda now: shard.commit_txn_offsets(command, answers.append, now))
        return answers[0].topics[0].partitions[0].error_code

    def delete(self, partition: int) -> None:
        command = DeleteOffsets(group_id="g", topics=(TopicPartitions("t", (partition,)),))
        self.runner.run(lambda now: self.runner.shard.delete_offsets(command, lambda reply: None))

    async def compact(self) -> None:
        self.logs.commit.request(self.partition.log)
        await self.logs.commit.finish(self.partition.log)
        await self.logs.cleaner.clean_all()

    def end(self, pid: int, *, is_commit: bool = True, epoch: int = 0) -> None:
        self.partition.append_marker(
            producer_id=pid, producer_epoch=epoch, coordinator_epoch=0, is_commit=is_commit, transaction_version=1
        )

    def fetch(self, partition: int = 0) -> int | ErrorCode:
        answers: list[FetchReply] = []
        command = FetchOffsets(group_id="g", topics=(TopicPartitions("t", (partition,)),), require_stable=True)
        self.runner.run(lambda now: self.runner.shard.fetch_offsets(command, answers.append))
        found = answers[0].topics[0].partitions[0]
        return found.offset if found.error_code is ErrorCode.none else found.error_code


def run(directory: Path, scenario: Callable[[Coordinator], Awaitable[None]]) -> None:
    async def main() -> None:
        coordinator = Coordinator(directory)
        await coordinator.runner.load()
        await scenario(coordinator)

    asyncio.run(main())


def test_a_marker_decides_in_the_step_in_which_it_is_written(tmp_path: Path) -> None:
    async def scenario(coordinator: Coordinator) -> None:
        assert coordinator.commit(3) is ErrorCode.none
        assert coordinator.commit(7, pid=1) is ErrorCode.none
        assert coordinator.partition.last_stable_offset == 1
        assert coordinator.fetch() is UNSTABLE
        coordinator.end(1)
        assert coordinator.fetch() == 7
        coordinator.commit(8, pid=1)
        coordinator.end(1, is_commit=False)
        assert coordinator.fetch() == 7
        await coordinator.move()
        assert coordinator.fetch() == 7

    run(tmp_path, scenario)


def test_an_open_transaction_moves_with_its_coordinator(tmp_path: Path) -> None:
    async def scenario(coordinator: Coordinator) -> None:
        coordinator.commit(3)
        coordinator.commit(7, pid=1)
        coordinator.commit(5, partition=1, pid=2)
        coordinator.commit(9, partition=1)
        await coordinator.move()
        assert (coordinator.fetch(), coordinator.fetch(1)) == (UNSTABLE, UNSTABLE)
        assert coordinator.commit(8, pid=1) is ErrorCode.none  # It goes on.
        coordinator.end(1)
        coordinator.end(2)
        assert (coordinator.fetch(), coordinator.fetch(1)) == (8, 9)
        await coordinator.move()
        assert (coordinator.fetch(), coordinator.fetch(1)) == (8, 9)

    run(tmp_path, scenario)


@pytest.mark.parametrize("turns", range(6))
def test_a_transaction_that_ends_while_its_coordinator_loads(tmp_path: Path, turns: int) -> None:
    """At any time: before it was read up to, while what was read is applied, and when all is done."""

    async def scenario(coordinator: Coordinator) -> None:
        coordinator.commit(7, pid=1)
        for partition in range(1, 1500):  # More than are applied at once.
            coordinator.commit(partition, partition=partition)
        coordinator.runner.close(ErrorCode.not_coordinator)
        coordinator.runner = coordinator.new_runner()
        load = asyncio.get_running_loop().create_task(coordinator.runner.load())
        for _ in range(turns):
            await asyncio.sleep(0)
        coordinator.end(1)
        await load
        assert (coordinator.fetch(), coordinator.fetch(1499)) == (7, 1499)

    run(tmp_path, scenario)


def test_a_fenced_producer_commits_nothing(tmp_path: Path) -> None:
    async def scenario(coordinator: Coordinator) -> None:
        coordinator.commit(7, pid=1, epoch=3)
        coordinator.end(1, is_commit=False, epoch=4)
        assert coordinator.commit(8, pid=1, epoch=3) is ErrorCode.invalid_producer_epoch
        assert coordinator.fetch() == -1

    run(tmp_path, scenario)


def test_a_commit_without_the_word_of_its_transaction_s_coordinator_is_refused(tmp_path: Path) -> None:
    """It may be late: its transaction may have ended, and a new one would never end."""

    async def scenario(coordinator: Coordinator) -> None:
        answers: list[CommitReply] = []
        topics = (TopicCommit("t", (PartitionCommit(0, Offset(1)),)),)
        command = CommitTxnOffsets(group_id="g", topics=topics, producer=TransactionalProducer(1, 0))
        coordinator.runner.run(lambda now: coordinator.runner.shard.commit_txn_offsets(command, answers.append, now))
        assert answers[0].topics[0].partitions[0].error_code is ErrorCode.invalid_txn_state
        assert coordinator.fetch() == -1
        assert coordinator.partition.log.log_end == 0

    run(tmp_path, scenario)


def test_who_no_longer_coordinates_hears_of_no_markers(tmp_path: Path) -> None:
    async def scenario(coordinator: Coordinator) -> None:
        coordinator.runner.close(ErrorCode.not_coordinator)
        assert coordinator.partition.on_marker is None

    run(tmp_path, scenario)
