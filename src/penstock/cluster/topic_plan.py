"""Decisions about topics: create, delete, add partitions.

Pure: an image and commands in; store writes and one result per topic out. Each item is accepted or refused on its own.
The controller drives it, and commits the writes only if the checked keys are still as in the image.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from penstock.base.config import BrokerConfig
from penstock.base.config_key import InvalidConfig
from penstock.base.errors import ErrorCode, Refused
from penstock.base.topic_config import parse_topic_config
from penstock.base.types import LeaderEpoch, NodeId
from penstock.cluster import records
from penstock.cluster.image import NO_OVERRIDES, ClusterImage, PartitionState, TopicImage
from penstock.cluster.placement import place
from penstock.cluster.plan import Plan, put_state
from penstock.cluster.store.base import Check, Delete, Put
from penstock.cluster.topic_names import colliding, why_illegal

# Kafka's bound on one request. A partition costs a directory, two open files and about 2 kB of metadata, so this is
# also the most that one client can make the broker work on at once.
PARTITIONS_MAX = 10_000
DEFAULT = -1  # In place of a count: the broker's default.


class NewTopic(NamedTuple):
    name: str
    partition_count: int = DEFAULT
    replication_factor: int = DEFAULT
    assignment: Sequence[tuple[int, Sequence[int]]] = ()  # Partitions with their replicas, instead of counts.
    config: Mapping[str, str | None] = NO_OVERRIDES


class DeleteTopic(NamedTuple):
    """The topic to delete, by name or by id."""

    name: str | None
    topic_id: UUID | None = None


class NewPartitions(NamedTuple):
    name: str
    total_count: int  # Partitions that the topic is to have.
    assignment: Sequence[Sequence[int]] | None = None  # Replicas of each new partition; None: the broker's choice.


class TopicResult(NamedTuple):
    name: str | None
    code: ErrorCode = ErrorCode.none
    message: str | None = None
    topic: TopicImage | None = None  # As it is now, or for a deleted one as it was; None when refused.
    topic_id: UUID | None = None  # Of a topic that was asked for by id.


def plan_create_topics(
    image: ClusterImage, topics: Sequence[NewTopic], config: BrokerConfig, new_topic_id: Callable[[], UUID]
) -> Plan[TopicResult]:
    """Topics made and refused. A name that is in the request twice is refused once and made never."""
    config = image.broker_config(config)
    plan: Plan[TopicResult] = Plan()
    counts = Counter(topic.name for topic in topics)
    made: dict[str, TopicImage] = {}
    partitions_left = PARTITIONS_MAX
    for topic in {topic.name: topic for topic in topics}.values():
        try:
            if counts[topic.name] > 1:
                raise Refused(ErrorCode.invalid_request, "The topic is in the request more than once")
            _check_name(image, topic.name, made)
            replicas = _replicas(image, topic, config, partitions_left, first=len(image.topics) + len(made))
            overrides = _overrides(topic.config, config)
        except Refused as error:
            plan.results.append(TopicResult(topic.name, error.code, error.message))
            continue
        partitions_left -= len(replicas)
        partitions = _new_partitions(image, replicas, first=0)
        made[topic.name] = new = TopicImage(topic.name, new_topic_id(), partitions, overrides)
        plan.checks.append(Check(records.topic_key(topic.name), 0))
        plan.before += [put_state(new.name, state) for state in partitions]
        plan.writes.append(_put_topic(new))
        if overrides:
            plan.writes.append(Put(records.topic_config_key(topic.name), records.encode(overrides)))
        plan.results.append(TopicResult(topic.name, topic=new))
    return plan


def plan_delete_topics(image: ClusterImage, topics: Sequence[DeleteTopic]) -> Plan[TopicResult]:
    """Topics deleted, each with all of its keys."""
    plan: Plan[TopicResult] = Plan()
    found = [_find(image, topic) for topic in topics]
    counts = Counter(topic.name for topic in found if topic is not None)
    for command, topic in zip(topics, found, strict=True):
        if topic is None:
            plan.results.append(_not_found(command))
        elif counts[topic.name] > 1:
            message = "The topic is in the request more than once"
            plan.results.append(TopicResult(command.name, ErrorCode.invalid_request, message, None, command.topic_id))
        else:
            plan.checks.append(Check(records.topic_key(topic.name), topic.version))
            plan.writes.append(Delete(records.topic_key(topic.name)))
            plan.writes.append(Delete(records.topic_config_key(topic.name)))
            plan.after += [Delete(records.partition_state_key(topic.name, p.partition)) for p in topic.partitions]
            plan.results.append(TopicResult(topic.name, topic=topic, topic_id=topic.topic_id))
    return plan


def plan_create_partitions(image: ClusterImage, topics: Sequence[NewPartitions]) -> Plan[TopicResult]:
    """Topics with more partitions than before. Fewer is not possible this way."""
    plan: Plan[TopicResult] = Plan()
    counts = Counter(topic.name for topic in topics)
    partitions_left = PARTITIONS_MAX
    for command in {topic.name: topic for topic in topics}.values():
        try:
            if counts[command.name] > 1:
                raise Refused(ErrorCode.invalid_request, "The topic is in the request more than once")
            topic = existing_topic(image, command.name)
            replicas = _more_replicas(image, topic, command, partitions_left)
        except Refused as error:
            plan.results.append(TopicResult(command.name, error.code, error.message))
            continue
        partitions_left -= len(replicas)
        added = _new_partitions(image, replicas, first=len(topic.partitions))
        new = TopicImage(topic.name, topic.topic_id, topic.partitions + added, topic.config, 0, topic.config_version)
        plan.checks.append(Check(records.topic_key(topic.name), topic.version))
        plan.before += [put_state(new.name, state) for state in added]
        plan.writes.append(_put_topic(new))
        plan.results.append(TopicResult(topic.name, topic=new))
    return plan


# Checks of one item ---------------------------------------------------------------------------------------------------


def _check_name(image: ClusterImage, name: str, made: Mapping[str, TopicImage]) -> None:
    reason = why_illegal(name)
    if reason is not None:
        raise Refused(ErrorCode.invalid_topic_exception, reason)
    if name in image.topics:
        raise Refused(ErrorCode.topic_already_exists, f"Topic '{name}' already exists.")
    other = colliding(name, image.topics) or colliding(name, made)
    if other is not None:
        raise Refused(ErrorCode.invalid_topic_exception, f"Topic '{name}' collides with existing topic: {other}")


def existing_topic(image: ClusterImage, name: str) -> TopicImage:
    """The topic; Refused when there is none, or when none can have that name."""
    topic = image.topics.get(name)
    if topic is None:
        reason = why_illegal(name)
        if reason is not None:
            raise Refused(ErrorCode.invalid_topic_exception, reason)
        raise Refused(ErrorCode.unknown_topic_or_partition, "There is no such topic")
    return topic


def _not_found(command: DeleteTopic) -> TopicResult:
    if command.topic_id is not None:
        return TopicResult(None, ErrorCode.unknown_topic_id, "There is no such topic", topic_id=command.topic_id)
    reason = why_illegal(command.name or "")
    if reason is not None:
        return TopicResult(command.name, ErrorCode.invalid_topic_exception, reason)
    return TopicResult(command.name, ErrorCode.unknown_topic_or_partition, "There is no such topic")


def _find(image: ClusterImage, topic: DeleteTopic) -> TopicImage | None:
    if topic.topic_id is not None:
        return image.topic_by_id(topic.topic_id)
    return image.topics.get(topic.name or "")


def _overrides(given: Mapping[str, str | None], config: BrokerConfig) -> dict[str, str]:
    overrides = {}
    for name, value in given.items():
        if value is None:
            raise Refused(ErrorCode.invalid_config, f"{name[:100]!a} has no value")
        overrides[name] = value
    try:
        parse_topic_config(overrides, config.topic_defaults)
    except InvalidConfig as error:
        raise Refused(ErrorCode.invalid_config, str(error)) from None
    return overrides


def _replicas(
    image: ClusterImage, topic: NewTopic, config: BrokerConfig, partitions_left: int, first: int
) -> list[tuple[NodeId, ...]]:
    if topic.assignment:
        if topic.partition_count != DEFAULT or topic.replication_factor != DEFAULT:
            raise Refused(ErrorCode.invalid_request, "With an assignment both counts must be -1")
        return _checked_assignment(image, topic.assignment, partitions_left)
    count = config.num_partitions if topic.partition_count == DEFAULT else topic.partition_count
    if not 1 <= count <= partitions_left:
        raise Refused(
            ErrorCode.invalid_partitions,
            f"{count} partitions, allowed are 1 to {PARTITIONS_MAX} in one request, or -1 for the default",
        )
    factor = config.default_replication_factor if topic.replication_factor == DEFAULT else topic.replication_factor
    if not 1 <= factor <= len(image.brokers):
        raise Refused(
            ErrorCode.invalid_replication_factor,
            f"Replication factor {factor}, allowed are -1 and 1 to {len(image.brokers)}, the number of brokers",
        )
    return place(_racks(image, factor), count, factor, first)


def _racks(image: ClusterImage, factor: int) -> dict[NodeId, str | None]:
    """The brokers to choose from, each with its rack: not those that are about to stop, if there are enough others."""
    staying = {node_id: broker.rack for node_id, broker in image.brokers.items() if not broker.is_stopping}
    if len(staying) >= factor:
        return staying
    return {node_id: broker.rack for node_id, broker in image.brokers.items()}


def _checked_assignment(
    image: ClusterImage, assignment: Sequence[tuple[int, Sequence[int]]], partitions_left: int
) -> list[tuple[NodeId, ...]]:
    if len(assignment) > partitions_left:
        raise Refused(ErrorCode.invalid_partitions, f"More than {PARTITIONS_MAX} partitions in one request")
    ordered = sorted(assignment, key=lambda item: item[0])
    if [partition for partition, _ in ordered] != list(range(len(ordered))):
        raise Refused(ErrorCode.invalid_replica_assignment, "Partitions must be numbered from 0, each once")
    replicas = [checked_replicas(image, nodes) for _, nodes in ordered]
    if len({len(nodes) for nodes in replicas}) != 1:
        raise Refused(ErrorCode.invalid_replica_assignment, "All partitions must have the same number of replicas")
    return replicas


def checked_replicas(image: ClusterImage, nodes: Sequence[int]) -> tuple[NodeId, ...]:
    """The replicas that somebody asks for; Refused when a partition cannot be on them."""
    replicas = tuple(NodeId(node) for node in nodes)
    if not replicas:
        raise Refused(ErrorCode.invalid_replica_assignment, "A partition has no replicas")
    if len(set(replicas)) != len(replicas):
        raise Refused(ErrorCode.invalid_replica_assignment, "A broker is in one partition's replicas twice")
    unknown = [node for node in replicas if node not in image.brokers]
    if unknown:
        raise Refused(ErrorCode.invalid_replica_assignment, f"There is no broker {unknown[0]}")
    return replicas


def _more_replicas(
    image: ClusterImage, topic: TopicImage, command: NewPartitions, partitions_left: int
) -> list[tuple[NodeId, ...]]:
    had = len(topic.partitions)
    added = command.total_count - had
    if added <= 0:
        raise Refused(
            ErrorCode.invalid_partitions, f"Topic has {had} partitions, {command.total_count} would not be an increase"
        )
    if added > partitions_left or command.total_count > PARTITIONS_MAX:
        raise Refused(
            ErrorCode.invalid_partitions, f"Allowed are {PARTITIONS_MAX} partitions in a topic and in one request"
        )
    factor = topic.replication_factor
    if command.assignment is None:
        if factor > len(image.brokers):
            raise Refused(
                ErrorCode.invalid_replication_factor,
                f"Replication factor {factor}, but only {len(image.brokers)} brokers are there",
            )
        return place(_racks(image, factor), added, factor, first=had)
    if len(command.assignment) != added:
        raise Refused(
            ErrorCode.invalid_replica_assignment,
            f"{len(command.assignment)} assignments for {added} new partitions",
        )
    replicas = [checked_replicas(image, nodes) for nodes in command.assignment]
    if any(len(nodes) != factor for nodes in replicas):
        raise Refused(ErrorCode.invalid_replica_assignment, f"All partitions of this topic have {factor} replicas")
    return replicas


# Writes ---------------------------------------------------------------------------------------------------------------


def _new_partitions(
    image: ClusterImage, replicas: Sequence[tuple[NodeId, ...]], first: int
) -> tuple[PartitionState, ...]:
    """New partitions, led by their first replica; every replica starts in sync, for there is nothing to catch up on."""
    return tuple(
        PartitionState(
            first + index,
            nodes,
            isr=nodes,
            leader=nodes[0],
            leader_epoch=LeaderEpoch(0),
            partition_epoch=0,
            isr_epochs=tuple(image.brokers[node_id].epoch for node_id in nodes),
        )
        for index, nodes in enumerate(replicas)
    )


def _put_topic(topic: TopicImage) -> Put:
    record = records.TopicRecord(topic.topic_id, tuple(partition.replicas for partition in topic.partitions))
    return Put(records.topic_key(topic.name), records.encode_topic(record))
