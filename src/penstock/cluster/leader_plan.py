"""What a controller has to put in order by itself: partitions whose leader or in-sync replicas are gone, or that have
arrived where they were moved to, and litter.

Pure: images in; what is due, and the writes of a portion of it, out. The controller drives it and commits each portion,
decided from the image of that moment. Once everything is written, nothing is due.
"""

from collections.abc import Iterable
from typing import NamedTuple

from penstock.base.config import BrokerConfig
from penstock.base.config_key import InvalidConfig
from penstock.base.topic_config import TOPIC_CONFIGS
from penstock.base.types import NO_NODE, NodeId, TopicPartition
from penstock.cluster import records
from penstock.cluster.election import Standing, elect, is_unclean, standing
from penstock.cluster.image import ClusterImage, PartitionState, TopicImage, changed_topics
from penstock.cluster.plan import Plan, change_state, in_commits
from penstock.cluster.reassignment_plan import completed
from penstock.cluster.store.base import Check, Delete

UNCLEAN = "unclean.leader.election.enable"


class Moved(NamedTuple):
    """A partition whose state is changed."""

    partition: TopicPartition
    before: PartitionState
    after: PartitionState

    @property
    def is_new_leader(self) -> bool:
        return self.after.leader != self.before.leader

    @property
    def is_unclean(self) -> bool:
        return is_unclean(self.before, self.after)


def may_be_due(old: ClusterImage, new: ClusterImage) -> bool:
    """Whether there may be something to put in order after `new` has followed `old`. Cheap when nothing is."""
    if (old.controller_id, old.controller_epoch) != (new.controller_id, new.controller_epoch):
        return True
    if old.brokers is not new.brokers or old.broker_configs is not new.broker_configs:
        return True
    if new.unplaced and old.unplaced is not new.unplaced:
        return True
    stopping = {node_id for node_id, broker in new.brokers.items() if broker.is_stopping}
    return any(
        _has_unsettled(old.topics.get(name), new.topics[name], stopping)
        for name in changed_topics(old, new)
        if name in new.topics
    )


def _has_unsettled(old: TopicImage | None, new: TopicImage, stopping: set[NodeId]) -> bool:
    """Whether a state that is new needs a look, or any state after the settings have changed."""
    seen = () if old is None or old.config is not new.config else old.partitions
    for number, state in enumerate(new.partitions):
        if number < len(seen) and seen[number] is state:
            continue
        if state.leader == NO_NODE or state.adding or state.removing or not stopping.isdisjoint(state.isr):
            return True
    return False


def due_partitions(image: ClusterImage, config: BrokerConfig) -> list[TopicPartition]:
    """The partitions whose state is not what it should be."""
    brokers, unclean_default = standing(image.brokers), _unclean_default(image, config)
    due = []
    for name, topic in image.topics.items():
        unclean = _is_unclean_allowed(topic, unclean_default)
        for state in topic.partitions:
            if _settled(state, brokers, unclean) is not state:
                due.append(TopicPartition(name, state.partition))
    return due


def plan_partitions(image: ClusterImage, config: BrokerConfig, partitions: Iterable[TopicPartition]) -> Plan[Moved]:
    """Put `partitions` in order, as far as they are still not."""
    brokers, unclean_default = standing(image.brokers), _unclean_default(image, config)
    plan: Plan[Moved] = Plan()
    for topic_partition in partitions:
        before = image.partition(topic_partition)
        if before is None:
            continue
        unclean = _is_unclean_allowed(image.topics[topic_partition.topic], unclean_default)
        after = _settled(before, brokers, unclean)
        if after is not before:
            change_state(plan, topic_partition.topic, before, after)
            plan.results.append(Moved(topic_partition, before, after))
    return plan


def plan_tidying(image: ClusterImage) -> Plan[Moved]:
    """Delete what topics left behind that were deleted or made halfway, as much of it as goes into one commit.

    Nothing may be in the making meanwhile. Should a topic have been made after all, its key is not as in the image.
    """
    plan: Plan[Moved] = Plan()
    litter = [TopicPartition(name, partition) for name, states in image.unplaced.items() for partition in states]
    plan.writes += next(in_commits([Delete(records.partition_state_key(*item)) for item in litter]), [])
    for name in dict.fromkeys(item.topic for item in litter[: len(plan.writes)]):
        topic = image.topics.get(name)
        plan.checks.append(Check(records.topic_key(name), 0 if topic is None else topic.version))
    return plan


def _settled(state: PartitionState, brokers: Standing, unclean: bool) -> PartitionState:
    if not state.isr:
        return state  # Somebody else's topic, or one of a future version: its state is not ours to make up.
    return completed(elect(state, brokers, unclean=unclean))


def _unclean_default(image: ClusterImage, config: BrokerConfig) -> bool:
    return image.broker_config(config).topic_defaults.unclean_leader_election_enable


def _is_unclean_allowed(topic: TopicImage, default: bool) -> bool:
    text = topic.config.get(UNCLEAN)
    try:
        return default if text is None else bool(TOPIC_CONFIGS[UNCLEAN].parse(text))
    except InvalidConfig:
        return default  # As of all settings that cannot be used.
