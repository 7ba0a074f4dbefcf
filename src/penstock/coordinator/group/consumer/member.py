"""One member of a consumer group: its two records. A value; what changes is which one the group holds."""

from typing import NamedTuple

from penstock.coordinator.group.consumer.member_state import MemberState
from penstock.coordinator.group.consumer.records import (
    ConsumerGroupCurrentMemberAssignment,
    ConsumerGroupMemberMetadata,
)

MEMBER_BYTES = 2_560  # One member without its texts; with five partitions 2,685 were measured.
JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_STATIC_EPOCH = -2  # A static member that will be back: it keeps its partitions for a session.


class ConsumerMember(NamedTuple):
    metadata: ConsumerGroupMemberMetadata
    current: ConsumerGroupCurrentMemberAssignment

    @property
    def member_id(self) -> str:
        return self.metadata.member_id

    @property
    def instance_id(self) -> str | None:
        return self.metadata.instance_id

    @property
    def epoch(self) -> int:
        return self.current.epoch

    @property
    def is_classic(self) -> bool:
        """Whether it speaks JoinGroup and SyncGroup to us."""
        return self.metadata.classic is not None

    @property
    def held_bytes(self) -> int:
        return held_bytes(self.metadata)

    def is_reconciled_to(self, target_epoch: int) -> bool:
        return self.current.state is MemberState.STABLE and self.current.epoch == target_epoch


def held_bytes(metadata: ConsumerGroupMemberMetadata) -> int:
    """About what a member with this metadata takes in memory."""
    held = MEMBER_BYTES + len(metadata.topic_regex or "") + sum(map(len, metadata.topic_names))
    if metadata.classic is not None:
        held += sum(len(protocol.name) + len(protocol.metadata) for protocol in metadata.classic.protocols)
    return held
