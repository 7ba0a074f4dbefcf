"""Consumer groups as ConsumerGroupDescribe shows them."""

from typing import NamedTuple

from penstock.coordinator.group.consumer.assignment import Assignment
from penstock.coordinator.group.consumer.group import ConsumerGroup
from penstock.coordinator.group.consumer.records import ConsumerGroupMemberMetadata


class ConsumerMemberView(NamedTuple):
    metadata: ConsumerGroupMemberMetadata
    epoch: int
    assigned: Assignment
    target: Assignment


class ConsumerGroupView(NamedTuple):
    group_id: str
    state: str
    epoch: int
    target_epoch: int
    assignor: str
    members: tuple[ConsumerMemberView, ...]


def describe(group: ConsumerGroup, default_assignor: str) -> ConsumerGroupView:
    return ConsumerGroupView(
        group.group_id,
        group.state.value,
        group.epoch,
        group.target_epoch,
        group.preferred_assignor(default_assignor),
        tuple(
            ConsumerMemberView(member.metadata, member.epoch, member.current.assigned, group.target(member.member_id))
            for member in group.members.values()
        ),
    )
