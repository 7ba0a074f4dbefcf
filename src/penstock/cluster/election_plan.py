"""Elections that somebody asks for: back to the preferred leader, or to anybody at all (KIP-460).

Pure: an image and partitions in; store writes and one result per partition out.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from penstock.base.errors import ErrorCode, Refused
from penstock.base.types import NO_NODE, TopicPartition
from penstock.cluster.election import Standing, elect, elect_preferred, standing
from penstock.cluster.image import ClusterImage, PartitionState
from penstock.cluster.leader_plan import Moved
from penstock.cluster.plan import Plan, change_state


class ElectionType(IntEnum):
    PREFERRED = 0  # The first replica, if it is in sync.
    UNCLEAN = 1  # For a partition without a leader: whoever is there, and what it lacks is lost.


class ElectionResult(NamedTuple):
    partition: TopicPartition
    code: ErrorCode = ErrorCode.none
    message: str | None = None
    moved: Moved | None = None  # None when refused.


def needing_election(image: ClusterImage, election_type: ElectionType) -> list[TopicPartition]:
    """The partitions that are not led as such an election would have it."""
    return [
        TopicPartition(name, state.partition)
        for name, topic in image.topics.items()
        for state in topic.partitions
        if _is_needed(state, election_type)
    ]


def plan_elections(
    image: ClusterImage, election_type: ElectionType, partitions: Sequence[TopicPartition]
) -> Plan[ElectionResult]:
    """Partitions with another leader, and refused ones."""
    brokers = standing(image.brokers)
    plan: Plan[ElectionResult] = Plan()
    for partition in dict.fromkeys(partitions):
        before = image.partition(partition)
        try:
            if before is None:
                raise Refused(ErrorCode.unknown_topic_or_partition, "There is no such partition")
            after = _elected(before, brokers, election_type)
        except Refused as error:
            plan.results.append(ElectionResult(partition, error.code, error.message))
            continue
        change_state(plan, partition.topic, before, after)
        plan.results.append(ElectionResult(partition, moved=Moved(partition, before, after)))
    return plan


def _is_needed(state: PartitionState, election_type: ElectionType) -> bool:
    if election_type is ElectionType.PREFERRED:
        return state.leader != state.replicas[0]
    return state.leader == NO_NODE


def _elected(state: PartitionState, brokers: Standing, election_type: ElectionType) -> PartitionState:
    if not _is_needed(state, election_type):
        raise Refused(ErrorCode.election_not_needed, f"Broker {state.leader} leads")
    if election_type is ElectionType.PREFERRED:
        after = elect_preferred(state, brokers)
        if after is state:
            raise Refused(ErrorCode.preferred_leader_not_available, f"Broker {state.replicas[0]} cannot lead")
        return after
    after = elect(state, brokers, unclean=True)
    if after is state:
        raise Refused(ErrorCode.eligible_leaders_not_available, "No replica is there")
    return after
