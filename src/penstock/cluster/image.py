"""The cluster as one broker knows it: an immutable value, replaced as a whole with every commit of the store.

`apply` is the only way to a new image. A commit copies the map of topics once, however many topics it changes, and the
partitions of the topics it touches; everything else is shared with the image before, so that `changed_topics` compares
by identity.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from penstock.base.config import BrokerConfig
from penstock.base.config_key import usable, with_stored
from penstock.base.topic_config import TopicConfig
from penstock.base.types import NO_NODE, LeaderEpoch, NodeId, TopicPartition
from penstock.cluster import records
from penstock.cluster.quota_entity import QuotaEntity
from penstock.cluster.store.base import Change, Entry
from penstock.cluster.topic_names import is_internal

Overrides = Mapping[str, str]
NO_OVERRIDES: Overrides = {}


class BrokerRegistration(NamedTuple):
    node_id: NodeId
    host: str
    port: int
    rack: str | None
    epoch: int  # Grows with every registration of this broker.
    secret: str = ""  # See BrokerRecord.
    is_stopping: bool = False


class PartitionState(NamedTuple):
    partition: int
    replicas: tuple[NodeId, ...]  # The preferred leader first.
    isr: tuple[NodeId, ...]
    leader: NodeId  # NO_NODE while there is none.
    leader_epoch: LeaderEpoch  # Grows with every change of the leader.
    partition_epoch: int  # Grows with every change of this state.
    version: int = 0  # Of the state's key in the store.
    isr_epochs: tuple[int, ...] = ()  # Of the brokers in `isr`, in its order, when they came in. Empty: not known.
    adding: tuple[NodeId, ...] = ()  # Of the replicas: those that a reassignment brings in (KIP-455).
    removing: tuple[NodeId, ...] = ()  # Those that leave once all the others are in sync.
    is_recovering: bool = False  # An unclean leader has yet to say that it has the partition in order (KIP-704).

    def is_led_by(self, broker: BrokerRegistration) -> bool:
        """Whether this very registration was elected. One that was lost in between may have lost records with it.

        Alone with its records a broker has nobody to disagree with, and goes on where it was.
        """
        if self.leader != broker.node_id:
            return False
        if len(self.replicas) == 1 or not self.isr_epochs:
            return True
        return self.isr_epochs[self.isr.index(self.leader)] == broker.epoch


@dataclass(frozen=True, slots=True)
class TopicImage:
    name: str
    topic_id: UUID
    partitions: tuple[PartitionState, ...]  # Partition n is at index n.
    config: Overrides = field(
        default_factory=dict
    )  # Text, under Kafka's names; only what differs from the broker's defaults.
    version: int = 0  # Of the topic's key in the store.
    config_version: int = 0  # Of the overrides' key; 0: there are none.

    @property
    def is_internal(self) -> bool:
        return is_internal(self.name)

    @property
    def replication_factor(self) -> int:
        first = self.partitions[0]
        return len(first.replicas) - len(first.removing)


class ConfigImage(NamedTuple):
    overrides: Overrides
    version: int


NO_CONFIG = ConfigImage(NO_OVERRIDES, 0)


class QuotasImage(NamedTuple):
    limits: Mapping[str, float]  # By Kafka's names: producer_byte_rate and so on.
    version: int


NO_QUOTAS = QuotasImage({}, 0)


@dataclass(frozen=True, slots=True)
class ClusterImage:
    cluster_id: str = ""
    controller_id: NodeId = NO_NODE
    controller_epoch: int = 0
    controller_epoch_version: int = 0  # Of the key in the store: every write of a controller checks it.
    brokers: Mapping[NodeId, BrokerRegistration] = field(default_factory=dict)
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    topic_names: Mapping[UUID, str] = field(default_factory=dict)  # By topic id.
    # States of partitions that no topic has, by topic and partition: of a large one that is being made, and which
    # appears as a whole when its own key comes; or left behind by one that was deleted or never finished.
    unplaced: Mapping[str, Mapping[int, PartitionState]] = field(default_factory=dict)
    broker_configs: Mapping[str, ConfigImage] = field(default_factory=dict)  # By node id as text, or ALL_BROKERS.
    client_quotas: Mapping[QuotaEntity, QuotasImage] = field(default_factory=dict)

    def topic_by_id(self, topic_id: UUID) -> TopicImage | None:
        name = self.topic_names.get(topic_id)
        return None if name is None else self.topics[name]

    def partition(self, topic_partition: TopicPartition) -> PartitionState | None:
        topic = self.topics.get(topic_partition.topic)
        if topic is None or not 0 <= topic_partition.partition < len(topic.partitions):
            return None
        return topic.partitions[topic_partition.partition]

    def broker_overrides(self, node_id: NodeId) -> dict[str, str]:
        """Settings of a broker that were changed at run time: its own over those of all brokers."""
        everyone, own = self._broker_levels(node_id)
        return {**everyone, **own}

    def _broker_levels(self, node_id: NodeId) -> list[Mapping[str, str]]:
        levels = (records.ALL_BROKERS, str(node_id))
        return [self.broker_configs.get(level, NO_CONFIG).overrides for level in levels]

    def broker_config(self, static: BrokerConfig) -> BrokerConfig:
        """The settings in force on a broker whose properties gave `static`."""
        if not self.broker_configs:
            return static
        # Each by itself: what a broker cannot use of its own leaves it what all brokers have.
        everyone, own = (usable(static, level) for level in self._broker_levels(static.node_id))
        overrides = {**everyone, **own}
        return static.with_overrides(overrides) if overrides else static

    def topic_config(self, name: str, static: BrokerConfig) -> TopicConfig:
        """The settings in force for topic `name` on a broker whose properties gave `static`."""
        return with_stored(self.broker_config(static).topic_defaults, self.topics[name].config)


EMPTY_IMAGE = ClusterImage()


def changed_topics(old: ClusterImage, new: ClusterImage) -> list[str]:
    """Names of topics that were made, deleted, made anew, or changed in a partition or a setting."""
    if old.topics is new.topics:
        return []
    changed = [name for name, topic in new.topics.items() if old.topics.get(name) is not topic]
    return changed + [name for name in old.topics if name not in new.topics]


def apply(image: ClusterImage, changes: Iterable[Change]) -> ClusterImage:
    """The image after `changes` of the store; keys that it does not know are passed over."""
    topics = _TopicChanges()
    brokers: dict[NodeId, BrokerRegistration] | None = None
    configs: dict[str, ConfigImage] | None = None
    quotas: dict[QuotaEntity, QuotasImage] | None = None
    scalars: dict[str, str | int] = {}
    for key, entry in changes:
        if key.startswith(records.TOPICS):
            topics.add(key, entry)
        elif key.startswith(records.TOPIC_CONFIGS):
            topics.configs[key.removeprefix(records.TOPIC_CONFIGS)] = entry
        elif key.startswith(records.BROKERS):
            brokers = dict(image.brokers) if brokers is None else brokers
            _apply_broker(brokers, NodeId(int(key.removeprefix(records.BROKERS))), entry)
        elif key.startswith(records.BROKER_CONFIGS):
            configs = dict(image.broker_configs) if configs is None else configs
            configs.pop(key.removeprefix(records.BROKER_CONFIGS), None)
            if entry is not None:
                configs[key.removeprefix(records.BROKER_CONFIGS)] = _config(entry)
        elif key.startswith(records.QUOTAS):
            quotas = dict(image.client_quotas) if quotas is None else quotas
            quotas.pop(records.parse_quota_key(key), None)
            if entry is not None:
                quotas[records.parse_quota_key(key)] = QuotasImage(records.decode_quotas(entry.value), entry.version)
        else:
            scalars.update(_scalars(key, entry))
    replacements: dict[str, object] = dict(scalars)
    if brokers is not None:
        replacements["brokers"] = brokers
    if configs is not None:
        replacements["broker_configs"] = configs
    if quotas is not None:
        replacements["client_quotas"] = quotas
    if topics.names():
        replacements["topics"], replacements["topic_names"], replacements["unplaced"] = topics.applied_to(image)
    return dataclasses.replace(image, **replacements) if replacements else image  # type: ignore[arg-type]


def _scalars(key: str, entry: Entry | None) -> dict[str, str | int]:
    fields = records.decode(entry.value) if entry else {}
    if key == records.CLUSTER_ID:
        return {"cluster_id": fields.get("id", "")}
    if key == records.CONTROLLER:
        return {"controller_id": fields.get("node", NO_NODE)}
    if key == records.CONTROLLER_EPOCH:
        return {
            "controller_epoch": fields.get("epoch", 0),
            "controller_epoch_version": entry.version if entry else 0,
        }
    return {}


def _apply_broker(brokers: dict[NodeId, BrokerRegistration], node_id: NodeId, entry: Entry | None) -> None:
    if entry is None:
        brokers.pop(node_id, None)
    else:
        record = records.decode_broker(entry.value)
        brokers[node_id] = BrokerRegistration(
            node_id, record.host, record.port, record.rack, entry.created, record.secret, record.is_stopping
        )


def _config(entry: Entry | None) -> ConfigImage:
    if entry is None:
        return NO_CONFIG
    return ConfigImage(records.decode_config(entry.value), entry.version)


class _TopicChanges:
    """Changes to topics, gathered by topic so that each is rebuilt once."""

    def __init__(self) -> None:
        self.topics: dict[str, Entry | None] = {}
        self.states: dict[str, dict[int, Entry | None]] = {}
        self.configs: dict[str, Entry | None] = {}

    def add(self, key: str, entry: Entry | None) -> None:
        path = records.parse_topic_path(key)
        if isinstance(path, str):
            self.topics[path] = entry
        else:
            self.states.setdefault(path.topic, {})[path.partition] = entry

    def names(self) -> list[str]:
        return list({**self.topics, **self.states, **self.configs})

    def applied_to(
        self, image: ClusterImage
    ) -> tuple[dict[str, TopicImage], dict[UUID, str], Mapping[str, Mapping[int, PartitionState]]]:
        topics = dict(image.topics)
        topic_names = dict(image.topic_names)
        unplaced: dict[str, dict[int, PartitionState]] = {}
        for name in self.names():
            old = topics.pop(name, None)
            if old is not None:
                topic_names.pop(old.topic_id, None)
            new, unplaced[name] = self._topic(name, old, image.unplaced.get(name, {}))
            if new is not None:
                topics[name] = new
                topic_names[new.topic_id] = name
        if not image.unplaced and not any(unplaced.values()):
            return topics, topic_names, image.unplaced
        all_unplaced = {**image.unplaced, **unplaced}
        return topics, topic_names, {name: states for name, states in all_unplaced.items() if states}

    def _topic(
        self, name: str, old: TopicImage | None, unplaced: Mapping[int, PartitionState]
    ) -> tuple[TopicImage | None, dict[int, PartitionState]]:
        """The topic, and the states under its name that it has no partition for."""
        topic = _topic(name, self.topics[name], old) if name in self.topics else old
        written = self.states.get(name, {})
        waiting = {partition: state for partition, state in unplaced.items() if partition not in written}
        waiting.update({number: _state(number, entry) for number, entry in written.items() if entry is not None})
        if topic is not None and waiting:
            partitions = list(topic.partitions)
            for partition in [number for number in waiting if number < len(partitions)]:
                state = waiting.pop(partition)
                replicas = state.replicas or partitions[partition].replicas
                partitions[partition] = state._replace(replicas=replicas)
            topic = dataclasses.replace(topic, partitions=tuple(partitions))
        if old is not None and (topic is None or topic.topic_id != old.topic_id):
            kept = 0 if topic is None else len(topic.partitions)
            left_behind = {state.partition: state for state in old.partitions[kept:] if state.version}
            waiting = {**{number: left_behind[number] for number in left_behind if number not in written}, **waiting}
        if topic is None:
            return None, waiting
        if name in self.configs:
            config = _config(self.configs[name])
            topic = dataclasses.replace(topic, config=config.overrides, config_version=config.version)
        return topic, waiting


def _topic(name: str, entry: Entry | None, old: TopicImage | None) -> TopicImage | None:
    """The topic of `entry`. Partitions that it had keep their state; new ones have none until it comes."""
    if entry is None:
        return None
    topic_id, assignment = records.decode_topic(entry.value)
    if old is None or old.topic_id != topic_id:
        old = TopicImage(name, topic_id, ())
    partitions = list(old.partitions[: len(assignment)])
    for partition in range(len(partitions), len(assignment)):
        partitions.append(PartitionState(partition, assignment[partition], (), NO_NODE, LeaderEpoch(0), 0))
    return dataclasses.replace(old, partitions=tuple(partitions), version=entry.version)


def _state(partition: int, entry: Entry) -> PartitionState:
    record = records.decode_partition_state(entry.value)
    return PartitionState(
        partition,
        record.replicas,
        record.isr,
        record.leader,
        record.leader_epoch,
        record.partition_epoch,
        entry.version,
        record.isr_epochs,
        record.adding,
        record.removing,
        record.is_recovering,
    )
