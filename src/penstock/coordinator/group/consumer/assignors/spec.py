"""What an assignor is given and gives. Assignors are pure: who subscribes to what in, targets out.

Racks are not looked at: an assignment that prefers near replicas would move partitions with every change of leader.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from penstock.coordinator.group.consumer.assignment import Assignment


class MemberSpec(NamedTuple):
    member_id: str
    instance_id: str | None
    topic_ids: frozenset[UUID]  # Subscribed, and there.
    target: Assignment  # What it shall have so far.


PartitionCounts = Mapping[UUID, int]
Targets = dict[str, Assignment]  # By member id; every member is in it.
Assignor = Callable[[Sequence[MemberSpec], PartitionCounts], Targets]
