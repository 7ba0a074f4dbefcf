"""Groups as DescribeGroups and ListGroups show them."""

from typing import NamedTuple

from penstock.coordinator.group.classic_group import ClassicGroup
from penstock.coordinator.group.consumer.group import ConsumerGroup
from penstock.coordinator.group.states import GroupState
from penstock.coordinator.group.subscription import CONSUMER_PROTOCOL

CLASSIC_TYPE = "classic"
CONSUMER_TYPE = "consumer"


class MemberView(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class GroupView(NamedTuple):
    group_id: str
    state: str
    protocol_type: str
    protocol_name: str  # As `protocol_data` on the wire.
    members: tuple[MemberView, ...]


class ListedGroup(NamedTuple):
    group_id: str
    protocol_type: str
    state: str
    group_type: str


def describe(group: ClassicGroup) -> GroupView:
    """Protocol and metadata are shown of a stable group only: until then they are the last generation's, or none."""
    is_stable = group.state is GroupState.STABLE
    protocol = group.protocol_name if is_stable else None
    return GroupView(
        group.group_id,
        group.state.value,
        group.protocol_type or "",
        protocol or "",
        tuple(
            MemberView(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.metadata(protocol) if is_stable else b"",
                member.assignment,
            )
            for member in group.members.values()
        ),
    )


def listed(group: ClassicGroup) -> ListedGroup:
    return ListedGroup(group.group_id, group.protocol_type or "", group.state.value, CLASSIC_TYPE)


def listed_consumer(group: ConsumerGroup) -> ListedGroup:
    return ListedGroup(group.group_id, CONSUMER_PROTOCOL, group.state.value, CONSUMER_TYPE)
