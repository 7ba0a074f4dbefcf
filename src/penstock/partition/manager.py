"""The partitions that this broker hosts, kept in step with the cluster image.

They are opened when the image has them, and take their roles once the broker is registered: only then is the image one
that tells of everything that may have happened while the broker was away. When its registration is lost all roles end.

A new partition is some files: thousands of them are made in slices, between which requests are served and the lease is
renewed. Whoever asks for one that is not open yet has it opened, as long as that is not the work of a slice by itself.
"""

import asyncio
from collections.abc import Callable, Iterator
from uuid import UUID

from penstock.base.clock import Clock
from penstock.base.config import BrokerConfig
from penstock.base.config_key import unusable, with_stored
from penstock.base.errors import ErrorCode, Refused
from penstock.base.logging import get_logger
from penstock.base.topic_config import TopicConfig
from penstock.base.types import Offset, TopicPartition
from penstock.cluster.image import BrokerRegistration, ClusterImage, PartitionState, TopicImage
from penstock.cluster.topic_names import NAME_LENGTH_MAX
from penstock.partition.partition import Partition
from penstock.partition.refused_batches import RefusedBatches
from penstock.partition.replication import Replication
from penstock.partition.replication_quota import ReplicationQuota
from penstock.storage.fs import FileSystem
from penstock.storage.journal_format import LogKey
from penstock.storage.log import Log
from penstock.storage.log_manager import LogDirDescription, LogManager

log = get_logger(__name__)

OPEN_SLICE_S = 0.02  # Of the event loop's time, while the broker serves; about a hundred new partitions.
REOPEN_INTERVAL_S = 1.0  # A full disk is asked this often for a partition that it had no room for.


class PartitionManager:
    def __init__(
        self,
        *,
        config: BrokerConfig,
        fs: FileSystem,
        clock: Clock,
        logs: LogManager,
        replication: Replication,
        may_lead: Callable[[], bool] | None = None,
        look_at_isr: Callable[[Partition], None] = lambda partition: None,
    ) -> None:
        """`may_lead` and `look_at_isr`: see Partition."""
        self._config = config
        self._fs = fs
        self._clock = clock
        self._logs = logs
        self._replication = replication
        self._may_lead = may_lead
        self._look_at_isr = look_at_isr
        self._has_roles = False  # Whether the broker is registered.
        self._own: BrokerRegistration | None = None  # As the image has it.
        self._broker_overrides: dict[str, str] = {}  # Of the settings; likewise.
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._unopened: dict[tuple[str, int], None] = {}  # Ours, but could not be opened; tried in this order.
        self._queued: dict[tuple[str, int], None] = {}  # Ours, and soon to be opened, perhaps once more.
        self._is_followed = True  # No image has been applied in part: all that is ours is in one of those three.
        self._opening: asyncio.Task[None] | None = None
        self._refused = RefusedBatches()
        self._demand_left_s = 0.0  # What may still be opened on demand in this slice.
        self._reopened_at_s = float("-inf")
        self._topic_names: dict[UUID, str] = {}
        self._topics: dict[str, TopicImage] = {}  # As last applied.
        self._defaults = config.topic_defaults
        logs.high_watermark_of = self._high_watermark_of
        logs.last_stable_offset_of = self._last_stable_offset_of
        logs.replicated_high_watermarks = self._replicated_high_watermarks

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._partitions.values())

    def get(self, topic: str, partition: int) -> Partition:
        """The partition; Refused when this broker does not host it."""
        found = self._partitions.get((topic, partition))
        if found is None:
            if (topic, partition) in self._queued:
                return self._open_on_demand((topic, partition))
            if (topic, partition) in self._unopened:
                return self._reopen((topic, partition))
            image = self._topics.get(topic)
            if image is not None and 0 <= partition < len(image.partitions):
                raise Refused(ErrorCode.not_leader_or_follower, f"{topic}-{partition} is on another broker")
            # The name may be anything and of any length, and the message goes into the reply.
            raise Refused(ErrorCode.unknown_topic_or_partition, f"{topic[:NAME_LENGTH_MAX]}-{partition} is not here")
        return found

    def leader(self, topic: str, partition: int) -> Partition:
        """The partition, to be asked or written to as its leader; Refused when this broker does not lead it."""
        found = self._partitions.get((topic, partition))
        if found is None:
            found = self.get(topic, partition)
        if found.leading is None:
            raise Refused(ErrorCode.not_leader_or_follower, f"{topic}-{partition} is led by another broker")
        return found

    def on_refused(self, topic: str | UUID, partition: int, records: memoryview, code: ErrorCode) -> None:
        """A batch was refused and will be sent again: nothing that was sent after it is to overtake it."""
        name = self._topic_names.get(topic, "") if isinstance(topic, UUID) else topic
        found = self._partitions.get((name, partition))
        if found is not None:
            found.on_refused(records, code)
        else:
            self._refused.add(topic, partition, records, code)

    def topic_name(self, topic_id: UUID) -> str:
        """The name behind a topic id; Refused when there is none."""
        name = self._topic_names.get(topic_id)
        if name is None:
            raise Refused(ErrorCode.unknown_topic_id, f"no topic has the id {topic_id}")
        return name

    def topic_id(self, topic: str) -> UUID | None:
        image = self._topics.get(topic)
        return image.topic_id if image is not None else None

    @property
    def leader_quota(self) -> ReplicationQuota:
        """For what this broker sends to followers that are not in sync."""
        return self._replication.quotas.leader

    def log_dir_description(self) -> LogDirDescription:
        return self._logs.describe()

    async def store_log_starts(self) -> None:
        """Make the log start offsets durable, before a client is told that its records are gone."""
        await self._logs.checkpoint()

    def store_producers(self) -> None:
        """Take snapshots before a clean stop, so that the next start has nothing to replay."""
        for partition in self._partitions.values():
            if partition.log.failure is None:
                partition.store_producers()

    def expire_producers(self) -> None:
        """Forget producers that have been silent for too long."""
        now_ms = self._clock.now_ms()
        for partition in self._partitions.values():
            partition.producers.expire(now_ms, self._config.producer_id_expiration_ms)

    def _high_watermark_of(self, topic_partition: TopicPartition) -> Offset:
        partition = self._partitions.get(topic_partition)
        if partition is None:  # Its log could be opened, and no more: nothing is known to be committed.
            return self._logs.logs[topic_partition].log_start
        return partition.high_watermark

    def _last_stable_offset_of(self, topic_partition: TopicPartition) -> Offset:
        partition = self._partitions.get(topic_partition)
        return self._high_watermark_of(topic_partition) if partition is None else partition.last_stable_offset

    def _replicated_high_watermarks(self) -> dict[TopicPartition, Offset]:
        """Of the partitions with other replicas: alone, a log says by itself how far it is committed."""
        return {
            partition.topic_partition: partition.high_watermark
            for partition in self._partitions.values()
            if partition.leading is None or not partition.leading.is_alone
        }

    async def stop(self) -> None:
        """Open no more partitions."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)

    # Roles

    def begin_roles(self) -> None:
        """The broker is registered and the image knows it: lead and follow as that says."""
        self._has_roles = True
        for topic in self._topics.values():
            for state in topic.partitions:
                self._take_role(topic, state)

    def end_roles(self) -> None:
        """The broker's registration is lost: somebody else may lead by now."""
        self._has_roles = False
        for partition in self._partitions.values():
            partition.resign()
            self._replication.stop_following(partition)

    def commit_again(self) -> None:
        """The lease may be acted on again, after a while in which nothing was promised."""
        for partition in self._partitions.values():
            partition.commit_again()

    def _take_role(self, topic: TopicImage, state: PartitionState) -> None:
        partition = self._partitions.get((topic.name, state.partition))
        if partition is None or not self._has_roles or self._own is None:
            return
        if state.leader == self._own.node_id and not state.is_led_by(self._own):
            # A former registration of ours was elected. The controller decides anew: our log may be another by now.
            partition.resign()
            self._replication.stop_following(partition)
            return
        partition.take_role(state)
        self._replication.follow(partition, state)

    # Following the image

    def apply(self, image: ClusterImage) -> None:
        """Open, update and delete partitions until they are as the image says."""
        is_followed, self._is_followed = self._is_followed, False
        self._own = image.brokers.get(self._config.node_id)
        config = image.broker_config(self._config)
        self._note_unusable(image)
        self._replication.quotas.set_rates(
            leader=config.leader_replication_throttled_rate, follower=config.follower_replication_throttled_rate
        )
        defaults = config.topic_defaults
        defaults_changed, self._defaults = defaults != self._defaults, defaults
        for name in [name for name in self._topics if name not in image.topics]:
            self._remove_topic(self._topics[name])
        for name, topic in image.topics.items():
            current = self._topics.get(name)
            if current is topic and not defaults_changed:
                continue
            if current is not None and current.topic_id != topic.topic_id:
                self._remove_topic(current)
            self._apply_topic(topic)
        # Before the broker serves anybody it opens all that it has.
        self._open_in_slices(OPEN_SLICE_S if self._has_roles else float("inf"))
        self._is_followed = is_followed

    def _apply_topic(self, topic: TopicImage) -> None:
        config = self._topic_config(topic)
        for error in unusable(self._defaults, topic.config).values():
            log.error("a setting of a topic cannot be used, and is left out", topic=topic.name, error=error)
        before = self._topics.get(topic.name)
        self._topics[topic.name] = topic
        self._topic_names[topic.topic_id] = topic.name
        self._replication.quotas.set_topic(
            topic.name,
            leader=config.leader_replication_throttled_replicas,
            follower=config.follower_replication_throttled_replicas,
        )
        for state in topic.partitions:
            key = (topic.name, state.partition)
            existing = self._partitions.get(key)
            if self._config.node_id not in state.replicas:
                self._remove(key, ErrorCode.not_leader_or_follower)  # Its replicas are elsewhere now.
            elif existing is None and key not in self._unopened:
                self._queued[key] = None
            elif existing is not None:
                existing.take_config(config)
                if before is None or before.partitions[state.partition : state.partition + 1] != (state,):
                    self._take_role(topic, state)

    def _open_in_slices(self, first_s: float = OPEN_SLICE_S) -> None:
        """Open what is queued, the first slice now."""
        self._open_some(first_s)
        if self._queued and self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open_rest(), name="opening partitions")

    def _open_some(self, seconds: float) -> None:
        deadline = self._clock.monotonic() + seconds
        while self._queued:
            self._open_queued(next(iter(self._queued)))
            if self._clock.monotonic() >= deadline:
                return

    async def _open_rest(self) -> None:
        try:
            while self._queued:
                self._demand_left_s = OPEN_SLICE_S
                await asyncio.sleep(0)
                self._open_some(OPEN_SLICE_S)
        finally:
            self._opening = None

    def _open_on_demand(self, key: tuple[str, int]) -> Partition:
        """Open what is queued, now; Refused when others have asked for too much already, a follower for thousands."""
        if self._demand_left_s <= 0:
            raise Refused(ErrorCode.not_leader_or_follower, "the partition is about to be opened")
        begun_s = self._clock.monotonic()
        self._open_queued(key)
        self._demand_left_s -= self._clock.monotonic() - begun_s
        return self.get(*key)

    def _open_queued(self, key: tuple[str, int]) -> None:
        del self._queued[key]
        self._open_key(key)

    def _open_key(self, key: tuple[str, int]) -> None:
        topic = self._topics[key[0]]
        self._open(topic, topic.partitions[key[1]], self._topic_config(topic))

    def _note_unusable(self, image: ClusterImage) -> None:
        """Tell of settings of brokers that are left out, once."""
        overrides = image.broker_overrides(self._config.node_id)
        if overrides != self._broker_overrides:
            self._broker_overrides = overrides
            for error in unusable(self._config, overrides).values():
                log.error("a setting of the cluster for its brokers cannot be used, and is left out", error=error)

    def _topic_config(self, topic: TopicImage) -> TopicConfig:
        return with_stored(self._defaults, topic.config)

    def _open(self, topic: TopicImage, state: PartitionState, config: TopicConfig) -> None:
        topic_partition = TopicPartition(topic.name, state.partition)
        assert topic_partition not in self._partitions, f"{topic_partition} is open already"
        try:
            # If it was the rest that could not be opened, its log is here, perhaps with files that wait for their sync.
            partition_log = self._logs.logs.get(topic_partition)
            if partition_log is None:
                partition_log = self._logs.open(topic_partition, topic.topic_id, config)
            partition_log.config = config
            partition = self._partition(topic, partition_log)
        except Exception as error:
            # Of whatever kind: the fault of one keeps no other shut, and who takes the journal away has to hear of it.
            # The topic exists all the same: clients are told, and it is tried again (`try_unopened`).
            if topic_partition not in self._unopened:
                report = log.error if isinstance(error, OSError) else log.exception
                report("partition cannot be opened", partition=topic_partition, error=error)
                self._unopened[topic_partition] = None
            return
        for header, code in self._refused.take(topic.name, topic.topic_id, state.partition):
            partition.producers.on_refused(header, code)
        self._unopened.pop(topic_partition, None)
        self._partitions[topic_partition] = partition
        self._take_role(topic, state)

    def _reopen(self, key: tuple[str, int]) -> Partition:
        """What could not be opened before; Refused while it still cannot be."""
        self.try_unopened()
        if key in self._queued:
            return self._open_on_demand(key)
        if key not in self._partitions:
            raise Refused(ErrorCode.kafka_storage_error, "the partition cannot be opened: see the broker's log")
        return self._partitions[key]

    @property
    def unopened(self) -> list[LogKey]:
        """What the journal knows the logs by that are ours and not open; OSError when we cannot tell."""
        if not self._is_followed:
            raise OSError(
                "the cluster's metadata could not be followed, for the reason above: what is ours is not known"
            )
        not_open = self._unopened | self._queued
        return [LogKey(self._topics[topic].topic_id, partition) for topic, partition in not_open]

    def try_unopened(self) -> None:
        """Try again to open what could not be opened, at most once in a while."""
        now_s = self._clock.monotonic()
        if not self._unopened or now_s - self._reopened_at_s < REOPEN_INTERVAL_S:
            return
        self._reopened_at_s = now_s
        key = next(iter(self._unopened))
        self._queued.pop(key, None)  # By an earlier try; it must not be opened twice.
        self._open_key(key)
        if key in self._unopened:
            # Behind the others, next time: what keeps this one shut may be its own affair. Or the disk is as full as
            # before: no need to ask it for all the others.
            del self._unopened[key]
            self._unopened[key] = None
        else:
            self._queued |= self._unopened
            self._open_in_slices()

    def _partition(self, topic: TopicImage, partition_log: Log) -> Partition:
        partition = Partition(
            topic_partition=partition_log.topic_partition,
            topic_id=topic.topic_id,
            node_id=self._config.node_id,
            partition_log=partition_log,
            logs=self._logs,
            fs=self._fs,
            clock=self._clock,
            decompressed_bytes_max=self._config.max_decompressed_message_bytes,
            may_lead=self._may_lead,
            look_at_isr=self._look_at_isr,
        )
        partition.open(self._logs.noted_high_watermark(partition_log.topic_partition))
        return partition

    def _remove_topic(self, topic: TopicImage) -> None:
        # First the names: who waits for a partition asks for it again as soon as it is woken.
        del self._topics[topic.name]
        self._topic_names.pop(topic.topic_id, None)
        self._replication.quotas.set_topic(topic.name)
        for state in topic.partitions:
            self._remove((topic.name, state.partition), ErrorCode.unknown_topic_or_partition)

    def _remove(self, key: tuple[str, int], code: ErrorCode) -> None:
        """Delete a partition that is not ours any more; who waits for it hears `code`."""
        self._unopened.pop(key, None)
        self._queued.pop(key, None)
        partition = self._partitions.pop(key, None)
        if partition is not None:
            self._replication.stop_following(partition)
            partition.fail_uncommitted(code)
            partition.resign()  # Who holds it still, as coordinators do, must not take it for led.
            partition.waiters.wake_all()
        if TopicPartition(*key) in self._logs.logs:
            self._logs.delete(TopicPartition(*key))
