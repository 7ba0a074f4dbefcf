"""Consumer groups of this broker: their shards on the coordinators' runtime, and what they need of the image."""

from collections.abc import Callable, Collection
from functools import partial
from random import Random
from typing import TypeVar

from penstock.base.clock import Clock
from penstock.base.config import BrokerConfig
from penstock.base.errors import ErrorCode, Refused
from penstock.base.timers import TimerWheel
from penstock.cluster.image import EMPTY_IMAGE, BrokerRegistration, ClusterImage
from penstock.cluster.metadata import Metadata
from penstock.coordinator.group import records
from penstock.coordinator.group.decision import Decision, Now, Response, Token
from penstock.coordinator.group.group_config import GroupConfig, MigrationPolicy
from penstock.coordinator.group.group_shard import GroupShard
from penstock.coordinator.group.member_budget import MemberBudget
from penstock.coordinator.group.pending_offsets import PendingBudget
from penstock.coordinator.image_topics import ImageTopics
from penstock.coordinator.runtime import CoordinatorRuntime, CoordinatorTopic, CreateTopics
from penstock.partition.manager import PartitionManager
from penstock.partition.partition import Partition
from penstock.storage.fs import FileSystem

OFFSETS_TOPIC = "__consumer_offsets"
OFFSETS_TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": "104857600",  # Kafka's: small enough that compaction, which skips the last one, finds work.
    "compression.type": "producer",
}

R = TypeVar("R")
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
        self._pending_budget = PendingBudget(self._group_config.pending_offsets_bytes_max)
        self._image = EMPTY_IMAGE
        self._topics = ImageTopics(EMPTY_IMAGE)
        self._runtime = CoordinatorRuntime(
            node_id=config.node_id,
            topic=CoordinatorTopic(
                name=OFFSETS_TOPIC,
                partition_count=config.offsets_topic_num_partitions,
                replication_factor=config.offsets_topic_replication_factor,
                config=OFFSETS_TOPIC_CONFIG,
            ),
            new_shard=self._new_shard,
            codec=records,
            create_topics=create_topics,
            partitions=partitions,
            clock=clock,
            timers=timers,
            fs=fs,
        )

    def start(self) -> None:
        """Follow the image; to be called after the partitions have subscribed to it."""
        self.apply(self._metadata.image)
        self._metadata.subscribe(self.apply)
        self._runtime.run_every(
            self._config.offsets_retention_check_interval_ms, GroupShard.expire_offsets, "offset expiry"
        )

    async def stop(self) -> None:
        """Everyone who waits for a rebalance is told to look for another coordinator."""
        await self._runtime.stop()

    def on_roles_changed(self) -> None:
        """Coordinate what this broker leads, and nothing else."""
        self._runtime.on_roles_changed()

    def apply(self, image: ClusterImage) -> None:
        old, self._image = self._image, image
        if old.topics is not image.topics:
            self._topics = ImageTopics(image)
        self._runtime.apply(image)
        if old.topics is image.topics:
            return
        deleted = [name for name in old.topics if name not in image.topics]
        changed = [name for name, topic in image.topics.items() if old.topics.get(name) is not topic]
        for runner in self._runtime.runners():
            runner.shard.on_topics_changed(self._topics, deleted + changed)
            if deleted and runner.is_loaded:
                runner.run(partial(_on_topics_deleted, runner.shard, deleted))

    def _new_shard(self) -> GroupShard:
        shard = GroupShard(
            new_unique_id=self._new_unique_id,
            config=self._group_config,
            budget=self._budget,
            pending_budget=self._pending_budget,
        )
        shard.on_topics_changed(self._topics, ())
        return shard

    def _new_unique_id(self) -> str:
        value = f"{self._random.getrandbits(128):032x}"
        return f"{value[:8]}-{value[8:12]}-{value[12:16]}-{value[16:20]}-{value[20:]}"

    def partition_for(self, group_id: str) -> int:
        """The partition of `__consumer_offsets` that the group belongs to."""
        return self._runtime.partition_for(group_id)

    def led_partition(self, group_id: str) -> Partition:
        """The same, to be written to. Refused when this broker cannot answer for the group, or not yet."""
        runner = self._runtime.runner(group_id)
        if not runner.is_loaded:
            raise Refused(ErrorCode.coordinator_load_in_progress)
        return runner.partition

    async def find(self, group_id: str) -> BrokerRegistration:
        """The broker that coordinates the group; the topic behind it is made when it is first needed."""
        return await self._runtime.find(group_id)

    async def call(self, group_id: str, decide: Decide) -> Response:
        """What the group's shard answers, once it is committed. Refused when this broker cannot answer for it."""
        return await self._runtime.call(group_id, decide)

    def look(self, group_id: str, view: Callable[[GroupShard], R]) -> R:
        """What `view` sees in the group's shard, at once."""
        return self._runtime.look(group_id, view)

    def shards(self) -> list[GroupShard]:
        """All that this broker coordinates; Refused while one still loads."""
        return self._runtime.shards()


def _on_topics_deleted(shard: GroupShard, names: Collection[str], now: Now) -> Decision:
    return shard.on_topics_deleted(names)
