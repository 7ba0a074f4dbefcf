"""Which partitions are opened when the disk, or a fault of ours, does not let us."""

import asyncio
import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from penstock.base.config import BrokerConfig
from penstock.base.errors import ErrorCode, Refused
from penstock.base.types import LeaderEpoch, NodeId, TopicPartition
from penstock.cluster.image import ClusterImage, ConfigImage, PartitionState, TopicImage
from penstock.cluster.records import ALL_BROKERS
from penstock.partition.manager import REOPEN_INTERVAL_S, PartitionManager
from penstock.partition.peers import PeerLink
from penstock.partition.replication import Replication
from penstock.storage.format import LEADER_EPOCH_CHECKPOINT
from penstock.storage.fs import PosixFileSystem
from penstock.storage.log_manager import LogManager

ALONE = (NodeId(1),)


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def now_ms(self) -> int:
        return 1_700_000_000_000

    def monotonic(self) -> float:
        return self.seconds


class ShutFileSystem(PosixFileSystem):
    """The real disk, which lets nobody into some partitions."""

    def __init__(self) -> None:
        super().__init__()
        self.shut: set[int] = set()
        self.unreadable: set[int] = set()  # Their leader epochs.
        self.asked: list[int] = []  # For which partitions.

    def mkdir(self, path: str) -> None:
        topic, _, number = path.rpartition("-")
        if topic.endswith("/t"):
            self.asked.append(int(number))
            if int(number) in self.shut:
                raise OSError(errno.EAGAIN, "for this test", path)
        super().mkdir(path)

    def read_all(self, path: str) -> bytes:
        directory, _, name = path.rpartition("/")
        if name == LEADER_EPOCH_CHECKPOINT and int(directory.rpartition("-")[2]) in self.unreadable:
            raise OSError(errno.EIO, "for this test", path)
        return super().read_all(path)


class NoLinks:
    async def connect(self, node_id: NodeId) -> PeerLink:
        raise OSError(errno.ECONNREFUSED, "nobody is there")


class World:
    """A broker with one topic, all of which is shut at first."""

    def __init__(self, directory: Path, partitions: int) -> None:
        config = BrokerConfig(node_id=NodeId(1), data_dir=str(directory))
        self.clock = Clock()
        self.fs = ShutFileSystem()
        self.logs = logs = LogManager(config=config, fs=self.fs, clock=self.clock)
        logs.start()
        replication = Replication(config=config, clock=self.clock, links=NoLinks(), broker_epoch=lambda: 1)
        self.manager = PartitionManager(config=config, fs=self.fs, clock=self.clock, logs=logs, replication=replication)
        states = [PartitionState(number, ALONE, ALONE, NodeId(1), LeaderEpoch(0), 0) for number in range(partitions)]
        self.fs.shut = set(range(partitions))
        self.image = ClusterImage(topics={"t": TopicImage("t", UUID(int=1), tuple(states))})
        self.manager.apply(self.image)
        self.fs.asked.clear()

    def look(self) -> list[int]:
        """The partitions that the disk is asked for when it is time to try again."""
        self.clock.seconds += REOPEN_INTERVAL_S
        self.manager.try_unopened()
        self.manager.try_unopened()
        asked, self.fs.asked = self.fs.asked, []
        return asked

    def opened(self) -> list[int]:
        return sorted(partition.topic_partition.partition for partition in self.manager)


def run(scenario: Callable[[World], None], directory: Path, partitions: int) -> None:
    async def life() -> None:
        scenario(World(directory, partitions))

    asyncio.run(life())


@pytest.mark.parametrize("stuck", [{0}, {0, 1}, {2, 4}, {0, 1, 3, 4}])
def test_a_partition_that_stays_shut_keeps_no_other_shut(tmp_path: Path, stuck: set[int]) -> None:
    def scenario(world: World) -> None:
        world.fs.shut = stuck
        for _ in range(len(stuck) + 1):
            world.look()
        assert world.opened() == sorted(set(range(5)) - stuck)
        with pytest.raises(Refused) as refused:
            world.manager.get("t", min(stuck))
        assert refused.value.code is ErrorCode.kafka_storage_error
        world.fs.shut = set()
        world.look()
        assert world.opened() == [0, 1, 2, 3, 4]
        assert world.look() == []

    run(scenario, tmp_path, partitions=5)


def test_a_full_disk_is_asked_for_one_partition_at_a_time(tmp_path: Path) -> None:
    def scenario(world: World) -> None:
        assert [world.look() for _ in range(6)] == [[0], [1], [2], [0], [1], [2]]
        world.fs.shut = set()
        assert world.look() == [0, 1, 2]

    run(scenario, tmp_path, partitions=3)


def test_a_partition_of_which_only_the_log_can_be_opened_holds_up_no_other(tmp_path: Path) -> None:
    """Retention and compaction go over all logs; of this one nobody knows what is committed."""

    def scenario(world: World) -> None:
        number, half_open = 0, TopicPartition("t", 0)
        world.fs.shut, world.fs.unreadable = set(), {number}
        (tmp_path / "t-0").mkdir()
        (tmp_path / "t-0" / LEADER_EPOCH_CHECKPOINT).write_text("0\n0\n")
        for _ in range(3):
            world.look()
        assert world.opened() == [1, 2]
        half_opened = world.logs.logs[half_open]
        assert world.logs.high_watermark_of(half_open) == world.logs.last_stable_offset_of(half_open) == 0
        for partition_log in world.logs.logs.values():
            world.logs._apply_retention(partition_log, 0)
        world.fs.unreadable = set()
        world.look()
        assert world.opened() == [0, 1, 2]
        assert world.manager.get("t", number).log is half_opened  # With the files that wait for their sync.

    run(scenario, tmp_path, partitions=3)


def test_a_log_without_its_partition_goes_with_its_topic(tmp_path: Path) -> None:
    async def life() -> None:
        world = World(tmp_path, 1)
        world.fs.shut, world.fs.unreadable = set(), {0}
        (tmp_path / "t-0").mkdir()
        (tmp_path / "t-0" / LEADER_EPOCH_CHECKPOINT).write_text("0\n0\n")
        world.look()
        assert list(world.logs.logs)
        world.manager.apply(ClusterImage())
        assert not world.logs.logs
        await world.logs.stop()
        assert not (tmp_path / "t-0").exists()

    asyncio.run(life())


def test_broker_settings_that_cannot_be_used_keep_no_partition_shut(tmp_path: Path) -> None:
    def scenario(world: World) -> None:
        settings = {"log.cleanup.policy": "tiered"}  # Of another version.
        world.manager.apply(replace(world.image, broker_configs={ALL_BROKERS: ConfigImage(settings, 1)}))
        world.fs.shut = set()
        world.look()
        assert world.opened() == [0, 1]

    run(scenario, tmp_path, partitions=2)
