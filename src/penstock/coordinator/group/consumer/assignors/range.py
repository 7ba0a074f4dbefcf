"""The `range` assignor: of every topic, each subscriber gets a run of neighbouring partitions.

Members with the same subscriptions stand in the same order for every topic, so that equal partitions of equally sized
topics meet in one member: what a join of streams needs. Static members are ordered by their instance id, which outlives
a restart.
"""

from collections import defaultdict
from collections.abc import Sequence
from uuid import UUID

from penstock.coordinator.group.consumer.assignors.spec import MemberSpec, PartitionCounts, Targets


def assign_range(members: Sequence[MemberSpec], counts: PartitionCounts) -> Targets:
    subscribers: defaultdict[UUID, list[str]] = defaultdict(list)
    for member in sorted(members, key=lambda member: (member.instance_id or member.member_id, member.member_id)):
        for topic_id in member.topic_ids:
            subscribers[topic_id].append(member.member_id)
    shares: dict[str, dict[UUID, frozenset[int]]] = {member.member_id: {} for member in members}
    for topic_id, member_ids in subscribers.items():
        quota, extra = divmod(counts[topic_id], len(member_ids))
        start = 0
        for number, member_id in enumerate(member_ids):
            end = start + quota + (number < extra)
            if start == end:
                break
            shares[member_id][topic_id] = frozenset(range(start, end))
            start = end
    return dict(shares)
