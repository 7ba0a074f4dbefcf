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
from penstock.partition.manager import OPEN_SLICE_S, REOPEN_INTERVAL_S, PartitionManager
from penstock.partition.peers import PeerLink
from penstock.partition.replication import Replication
from penstock.storage.format import LEADER_EPOCH_CHECKPOINT
from penstock.storage.fs import PosixFileSystem
from penstock.storage.journal_format import LogKey
from penstock.storage.log_manager import LogManager

ALONE = (NodeId(1),)


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def now_ms(self) -> int:
        return 1_700_000_000_000

    def monotonic(self) -> float:
        return self.seconds

    def pass_s(self, seconds: float) -> None:
        self.seconds += seconds


class ShutFileSystem(PosixFileSystem):
    """The real disk, which lets nobody into some partitions."""

    def __init__(self) -> None:
        super().__init__()
        self.shut: set[int] = set()
        self.unreadable: set[int] = set()  # Their leader epochs.
        self.faulty: set[int] = set()  # Here a fault of ours comes to light.
        self.on_asked: Callable[[], None] = lambda: None
        self.asked: list[int] = []  # For which partitions.

    def mkdir(self, path: str) -> None:
        topic, _, number = path.rpartition("-")
        if topic.endswith("/t"):
            self.asked.append(int(number))
            self.on_asked()
            if int(number) in self.faulty:
                raise RuntimeError("for this test")
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


def image_of(partitions: int) -> ClusterImage:
    states = [PartitionState(number, ALONE, ALONE, NodeId(1), LeaderEpoch(0), 0) for number in range(partitions)]
    return ClusterImage(topics={"t": TopicImage("t", UUID(int=1), tuple(states))})


class World:
    """A broker with one topic, all of which is shut at first."""

    def __init__(self, directory: Path, partitions: int) -> None:
        config = BrokerConfig(node_id=NodeId(1), data_dir=str(directory))
        self.clock = Clock()
        self.fs = ShutFileSystem()
        self.logs = logs = LogManager(config=config, fs=self.fs, clock=self.clock)
        logs.start()
        self.replication = replication = Replication(
            config=config, clock=self.clock, links=NoLinks(), broker_epoch=lambda: 1
        )
        self.manager = PartitionManager(config=config, fs=self.fs, clock=self.clock, logs=logs, replication=replication)
        self.fs.shut = set(range(partitions))
        self.manager.apply(image_of(partitions))
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


def test_what_a_full_disk_kept_shut_is_opened_in_slices(tmp_path: Path) -> None:
    async def life() -> None:
        world = World(tmp_path, 5)
        world.fs.shut = {3}
        world.fs.on_asked = lambda: world.clock.pass_s(OPEN_SLICE_S / 2)
        assert world.look() == [0, 1, 2]
        assert len(world.manager.unopened) == 2
        await asyncio.sleep(0.1)  # What is left of it takes no time on this clock.
        assert world.opened() == [0, 1, 2, 4]
        assert world.manager.unopened == [LogKey(UUID(int=1), 3)]

    asyncio.run(life())


def test_what_waits_to_be_opened_is_opened_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By whomever: the slices, who asks for it, or the next try of what stays shut."""

    async def life() -> None:
        world = World(tmp_path, 6)
        world.fs.shut = {5}
        world.fs.on_asked = lambda: world.clock.pass_s(REOPEN_INTERVAL_S)
        world.clock.pass_s(REOPEN_INTERVAL_S)
        with pytest.raises(Refused) as refused:
            world.manager.get("t", 4)  # One tells that there is room, one is a slice.
        assert refused.value.code is ErrorCode.not_leader_or_follower  # Clients try again at once.
        await asyncio.sleep(0)
        opened = world.manager.get("t", 3)
        world.manager.try_unopened()
        await asyncio.sleep(0.1)
        assert world.manager.get("t", 3) is opened
        assert world.opened() == [0, 1, 2, 3, 4]
        assert world.fs.asked == [0, 1, 3, 2, 4, 5]
        told = [record.getMessage() for record in caplog.records if "cannot be opened" in record.getMessage()]
        assert len(told) == 6  # Of the one that stays shut no second time.

    asyncio.run(life())


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


def test_settings_that_cannot_be_used_are_left_out_and_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def scenario(world: World) -> None:
        settings = {"log.cleanup.policy": "tiered", "log.retention.ms": "5"}  # Of another version.
        image = replace(image_of(2), broker_configs={ALL_BROKERS: ConfigImage(settings, 1)})
        topic = replace(image.topics["t"], config={"retention.bytes": "7", "remote.tier": "s3"})
        image = replace(image, topics={"t": topic})
        for _ in range(2):
            world.manager.apply(image)
        world.fs.shut = set()
        world.look()
        assert world.opened() == [0, 1]
        for partition_log in world.logs.logs.values():
            assert (partition_log.config.retention_ms, partition_log.config.retention_bytes) == (5, 7)

    run(scenario, tmp_path, partitions=2)
    told = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert [next(name for name in ("log.cleanup.policy", "remote.tier") if name in text) for text in told] == [
        "log.cleanup.policy",
        "remote.tier",
    ]


def test_a_fault_of_ours_in_one_partition_keeps_no_other_shut(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def scenario(world: World) -> None:
        world.fs.shut, world.fs.faulty = set(), {1}
        world.look()
        world.manager.apply(image_of(3))
        assert world.opened() == [0, 2]
        assert world.manager.unopened == [LogKey(UUID(int=1), 1)]
        with pytest.raises(Refused) as refused:
            world.manager.get("t", 1)
        assert refused.value.code is ErrorCode.kafka_storage_error
        world.fs.faulty = set()
        world.look()
        assert world.opened() == [0, 1, 2]

    run(scenario, tmp_path, partitions=1)
    (record,) = [record for record in caplog.records if record.exc_info is not None]
    assert record.getMessage() == "partition cannot be opened partition=t-1 error='for this test'"


def test_what_waits_to_be_opened_is_not_open(tmp_path: Path) -> None:
    def scenario(world: World) -> None:
        world.fs.shut = set()
        for _ in range(2):
            world.look()
        assert world.manager.unopened == []
        world.manager.begin_roles()
        world.fs.on_asked = lambda: world.clock.pass_s(OPEN_SLICE_S)
        world.manager.apply(image_of(4))
        assert world.opened() == [0, 1, 2]
        assert world.manager.unopened == [LogKey(UUID(int=1), 3)]

    run(scenario, tmp_path, partitions=2)


def test_what_is_not_open_is_not_known_while_the_image_has_not_been_applied(tmp_path: Path) -> None:
    """A start takes away the journal of the last life unless it hears of a partition that may need it."""

    def scenario(world: World) -> None:
        set_topic = world.replication.quotas.set_topic
        world.replication.quotas.set_topic = broken  # type: ignore[method-assign]
        with pytest.raises(RuntimeError):
            world.manager.apply(image_of(2))
        world.replication.quotas.set_topic = set_topic  # type: ignore[method-assign]
        for _ in range(2):
            with pytest.raises(OSError, match="could not be followed") as refused:
                _ = world.manager.unopened
            world.manager.apply(image_of(2))  # What the first one has left out may be passed over.
        assert refused.value.errno is None  # Whoever starts it would be shown the system's words for that instead.

    run(scenario, tmp_path, partitions=1)


def broken(*_: object, **__: object) -> None:
    raise RuntimeError("for this test")
