"""Consumer groups of this broker: which partition of `__consumer_offsets` a group belongs to, and its runner."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import lru_cache
from random import Random
from typing import Any, TypeVar

from penstock.base.clock import Clock
from penstock.base.config import BrokerConfig
from penstock.base.errors import ErrorCode, Refused
from penstock.base.logging import get_logger
from penstock.base.timers import TimerWheel
from penstock.base.types import TopicPartition
from penstock.cluster.image import EMPTY_IMAGE, BrokerRegistration, ClusterImage
from penstock.cluster.metadata import Metadata
from penstock.cluster.topic_plan import NewTopic, TopicResult
from penstock.coordinator.group.decision import Decision, Now, Response, Token
from penstock.coordinator.group.group_config import GroupConfig, MigrationPolicy
from penstock.coordinator.group.group_shard import GroupShard
from penstock.coordinator.group.member_budget import MemberBudget
from penstock.coordinator.image_topics import ImageTopics
from penstock.coordinator.shard_runner import ShardRunner
from penstock.partition.manager import PartitionManager
from penstock.storage.fs import FileSystem

log = get_logger(__name__)

OFFSETS_TOPIC = "__consumer_offsets"
OFFSETS_TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": "104857600",  # Kafka's: small enough that compaction, which skips the last one, finds work.
    "compression.type": "producer",
}

R = TypeVar("R")
CreateTopics = Callable[[Sequence[NewTopic]], Awaitable[list[TopicResult]]]  # Works on every broker.
Decide = Callable[[GroupShard, Token, Now], Decision]


class GroupCoordinator:
    def __init__(
        self,
        *,
        config: BrokerConfig,
        metadata: Metadata,
        create_topics: CreateTopics,
        partitions: PartitionManager,
        clock: Clock,
        timers: TimerWheel,
        fs: FileSystem,
        random: Random,
    ) -> None:
        self._config = config
        self._metadata = metadata
        self._create_topics = create_topics
        self._partitions = partitions
        self._clock = clock
        self._timers = timers
        self._fs = fs
        self._random = random
        self._group_config = GroupConfig(
            min_session_timeout_ms=config.group_min_session_timeout_ms,
            max_session_timeout_ms=config.group_max_session_timeout_ms,
            max_size=config.group_max_size,
            initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            offsets_retention_ms=config.offsets_retention_minutes * 60_000,
            offset_metadata_bytes_max=config.offset_metadata_max_bytes,
            consumer_session_timeout_ms=config.group_consumer_session_timeout_ms,
            consumer_heartbeat_interval_ms=config.group_consumer_heartbeat_interval_ms,
            consumer_max_size=config.group_consumer_max_size,
            consumer_assignors=config.group_consumer_assignors,
            migration_policy=MigrationPolicy(config.group_consumer_migration_policy),
        )
        self._budget = MemberBudget(self._group_config.members_bytes_max)
        self._image = EMPTY_IMAGE
        self._topics = ImageTopics(EMPTY_IMAGE)
        self._runners: dict[int, ShardRunner] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Follow the image; to be called after the partitions have subscribed to it."""
        self.apply(self._metadata.image)
        self._metadata.subscribe(self.apply)
        self._spawn(self._expiry_loop(), "offset expiry")

    async def stop(self) -> None:
        """Everyone who waits for a rebalance is told to look for another coordinator."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for runner in self._runners.values():
            runner.close(ErrorCode.not_coordinator)
        self._runners.clear()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Following the image

    def apply(self, image: ClusterImage) -> None:
        old, self._image = self._image, image
        if old.topics is image.topics:
            return
        self._topics = ImageTopics(image)
        self.on_roles_changed()
        deleted = [name for name in old.topics if name not in image.topics]
        changed = [name for name, topic in image.topics.items() if old.topics.get(name) is not topic]
        for runner in self._runners.values():
            runner.shard.on_topics_changed(self._topics, deleted + changed)
        if deleted:
            for runner in self._runners.values():
                if runner.is_loaded:
                    runner.on_topics_deleted(deleted)

    def on_roles_changed(self) -> None:
        """Coordinate what this broker leads, and nothing else. A new leader epoch is a new beginning."""
        topic = self._image.topics.get(OFFSETS_TOPIC)
        for number, runner in list(self._runners.items()):
            if not runner.is_leading:
                del self._runners[number]
                runner.close(ErrorCode.not_coordinator)
        for state in topic.partitions if topic is not None else ():
            if state.leader == self._config.node_id and state.partition not in self._runners:
                self._maybe_open(state.partition)

    def _maybe_open(self, number: int) -> None:
        """Begin to coordinate a partition, unless it cannot be led yet; the next who asks makes us try again."""
        try:
            partition = self._partitions.leader(OFFSETS_TOPIC, number)
        except Refused:
            return
        shard = GroupShard(new_unique_id=self._new_unique_id, config=self._group_config, budget=self._budget)
        shard.on_topics_changed(self._topics, ())
        runner = ShardRunner(
            partition=partition,
            shard=shard,
            clock=self._clock,
            timers=self._timers,
            fs=self._fs,
        )
        self._runners[number] = runner
        self._spawn(self._load(number, runner), f"coordinator load {number}")

    async def _load(self, number: int, runner: ShardRunner) -> None:
        try:
            await runner.load()
        except Exception:
            # A task root. Clients keep hearing that it loads; the reason is in the log.
            log.exception("coordinator could not be loaded", partition=TopicPartition(OFFSETS_TOPIC, number))

    def _new_unique_id(self) -> str:
        value = f"{self._random.getrandbits(128):032x}"
        return f"{value[:8]}-{value[8:12]}-{value[12:16]}-{value[16:20]}-{value[20:]}"

    # Finding

    def partition_for(self, group_id: str) -> int:
        topic = self._image.topics.get(OFFSETS_TOPIC)
        if topic is None:
            raise Refused(ErrorCode.coordinator_not_available, f"{OFFSETS_TOPIC} does not exist yet")
        return _java_hash(group_id) % len(topic.partitions)

    async def find(self, group_id: str) -> BrokerRegistration:
        """The broker that coordinates the group; the topic behind it is made when it is first needed."""
        if OFFSETS_TOPIC not in self._image.topics:
            await self._create_topic()
        number = self.partition_for(group_id)
        state = self._image.topics[OFFSETS_TOPIC].partitions[number]
        broker = self._image.brokers.get(state.leader)
        if broker is None:
            raise Refused(ErrorCode.coordinator_not_available, "the coordinator's partition has no leader")
        return broker

    async def _create_topic(self) -> None:
        topic = NewTopic(
            name=OFFSETS_TOPIC,
            partition_count=self._config.offsets_topic_num_partitions,
            replication_factor=min(self._config.offsets_topic_replication_factor, len(self._image.brokers)),
            config=OFFSETS_TOPIC_CONFIG,
        )
        (result,) = await self._create_topics([topic])
        if result.code not in (ErrorCode.none, ErrorCode.topic_already_exists):
            if result.code is not ErrorCode.not_controller:  # That passes, and every client would add a line.
                log.error("topic of the group coordinator could not be made", code=result.code.name, why=result.message)
            raise Refused(ErrorCode.coordinator_not_available, result.message or "")

    # Commands

    async def call(self, group_id: str, decide: Decide) -> Response:
        """What the group's shard answers, once it is committed. Refused when this broker cannot answer for it."""
        runner = self._runner(group_id)
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

        def token(response: Response) -> None:
            if not answer.done():
                answer.set_result(response)

        runner.run(lambda now: decide(runner.shard, token, now))
        return await answer

    def look(self, group_id: str, view: Callable[[GroupShard], R]) -> R:
        """What `view` sees in the group's shard, at once."""
        runner = self._runner(group_id)
        if not runner.is_loaded:
            raise Refused(ErrorCode.coordinator_load_in_progress)
        return view(runner.shard)

    def _runner(self, group_id: str) -> ShardRunner:
        number = self.partition_for(group_id)
        runner = self._runners.get(number)
        if runner is not None:
            if not runner.may_speak:
                raise Refused(ErrorCode.not_coordinator, "the broker has not heard from the metadata store")
            return runner
        if self._image.topics[OFFSETS_TOPIC].partitions[number].leader != self._config.node_id:
            raise Refused(ErrorCode.not_coordinator)
        self._maybe_open(number)
        raise Refused(ErrorCode.coordinator_load_in_progress)

    def shards(self) -> list[GroupShard]:
        """All that this broker coordinates; Refused while one still loads."""
        if not all(runner.is_loaded for runner in self._runners.values()):
            raise Refused(ErrorCode.coordinator_load_in_progress)
        return [runner.shard for runner in self._runners.values()]

    async def _expiry_loop(self) -> None:
        while True:
            await asyncio.sleep(self._config.offsets_retention_check_interval_ms / 1000)
            for runner in list(self._runners.values()):
                if runner.is_loaded:
                    runner.run(runner.shard.expire_offsets)
                await asyncio.sleep(0)


@lru_cache(maxsize=4096)  # A tenth of a heartbeat, without it.
def _java_hash(text: str) -> int:
    """Java's String.hashCode without its sign, as Kafka maps groups to partitions."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[position : position + 2], "big")) & 0xFFFFFFFF
    signed = value - 2**32 if value >= 2**31 else value
    return 0 if signed == -(2**31) else abs(signed)
