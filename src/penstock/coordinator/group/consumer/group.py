"""One group of the new protocol (KIP-848): the state that its records describe, and nothing else that must survive.

Inputs: `apply` with every record of it, in the order of the log. Invariants beside the fields. What decides about it
(`heartbeat`, `removal`, `classic_member`, `conversion`) works on a Draft: a copy that is ahead by the records of the
decision. Sessions and other deadlines are the shard's.

    epoch          grows when members or what they subscribe to change
    target_epoch   the epoch that the target assignment was made for; it follows `epoch` with the next heartbeat
    member epochs  follow target_epoch, each when the member has given up what it had to
"""

from collections import Counter
from enum import Enum
from uuid import UUID

from penstock.coordinator.group.consumer.assignment import NOTHING, Assignment
from penstock.coordinator.group.consumer.member import ConsumerMember
from penstock.coordinator.group.consumer.records import (
    ConsumerGroupCurrentMemberAssignment,
    ConsumerGroupMemberMetadata,
    ConsumerGroupMetadata,
    ConsumerGroupPartitionMetadata,
    ConsumerGroupRegularExpression,
    ConsumerGroupTargetAssignmentMember,
    ConsumerGroupTargetAssignmentMetadata,
    ConsumerGroupTombstone,
    ConsumerRecord,
    RecordKind,
    TopicMetadata,
)
from penstock.coordinator.group.protocol_plan import ProtocolCounts


class ConsumerGroupState(Enum):
    """Named as ConsumerGroupDescribe and ListGroups show them."""

    EMPTY = "Empty"  # No members.
    ASSIGNING = "Assigning"  # The target assignment is older than the group. Leaves by: any heartbeat.
    RECONCILING = "Reconciling"  # A member is on its way to its target.
    STABLE = "Stable"  # Everyone has what it shall have.


class ConsumerGroup:
    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.target_epoch = 0  # <= epoch
        self.members: dict[str, ConsumerMember] = {}
        self.targets: dict[str, Assignment] = {}  # By member id. No partition is in two of them.
        self.topics: dict[str, TopicMetadata] = {}  # Subscribed and there, when the epoch was last decided.
        self.regexes: dict[str, ConsumerGroupRegularExpression] = {}

        # Read off the members.
        self.static_ids: dict[str, str] = {}  # Instance id to member id.
        self.owners: dict[UUID, dict[int, str]] = {}  # Who has a partition, or still has to give it up. One at a time.
        self.topic_counts: Counter[str] = Counter()  # Members that name the topic.
        self.regex_counts: Counter[str] = Counter()
        self.assignor_counts: Counter[str] = Counter()
        self.classic_count = 0
        self.classic_protocols = ProtocolCounts()

        # Soft: topics that changed since `topics` was last looked through; None: any may have.
        self.changed_topics: set[str] | None = None
        self.empty_since_ms: int | None = None  # Wall clock, as far as this broker saw it.
        self.assigned_ms: int | None = None  # Timer clock, when the target was last computed here.

    def copy(self) -> "ConsumerGroup":
        """Another group of the same state. Members, assignments and records are values, and shared."""
        other = ConsumerGroup(self.group_id)
        other.epoch, other.target_epoch = self.epoch, self.target_epoch
        other.members, other.targets = self.members.copy(), self.targets.copy()
        other.topics, other.regexes = self.topics, self.regexes.copy()
        other.static_ids = self.static_ids.copy()
        other.owners = {topic_id: partitions.copy() for topic_id, partitions in self.owners.items()}
        other.topic_counts, other.regex_counts = self.topic_counts.copy(), self.regex_counts.copy()
        other.assignor_counts = self.assignor_counts.copy()
        other.classic_count, other.classic_protocols = self.classic_count, self.classic_protocols.copy()
        other.changed_topics, other.assigned_ms = self.changed_topics, self.assigned_ms
        return other

    # Questions ----------------------------------------------------------------------------------------------------

    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(member.is_reconciled_to(self.target_epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    @property
    def is_known(self) -> bool:
        """Whether it has a record, or is only the memory of one whose tombstones come one by one."""
        return bool(self.epoch or self.members or self.targets)

    @property
    def is_up_to_date(self) -> bool:
        """Whether nothing happened since the target was computed."""
        return self.epoch == self.target_epoch and self.changed_topics is not None and not self.changed_topics

    def target(self, member_id: str) -> Assignment:
        return self.targets.get(member_id, NOTHING)

    def owner(self, topic_id: UUID, partition: int) -> str | None:
        return self.owners.get(topic_id, {}).get(partition)

    def preferred_assignor(self, default: str) -> str:
        """The one that most members ask for."""
        return max(sorted(self.assignor_counts), key=lambda name: self.assignor_counts[name], default=default)

    def subscribed_names(self) -> set[str]:
        """What members subscribe to, by name or by regular expression, whether it exists or not."""
        return set(self.topic_counts).union(*(resolved.topics for resolved in self.regexes.values()))

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.topic_counts or any(topic in resolved.topics for resolved in self.regexes.values())

    def names_of(self, member: ConsumerMember) -> frozenset[str]:
        regex = member.metadata.topic_regex
        resolved = self.regexes.get(regex) if regex else None
        return frozenset(member.metadata.topic_names) | (frozenset() if resolved is None else resolved.topics)

    # The log ------------------------------------------------------------------------------------------------------

    def apply(self, record: ConsumerRecord) -> None:
        match record:
            case ConsumerGroupMetadata():
                self.epoch = record.epoch
            case ConsumerGroupPartitionMetadata():
                self.topics = {topic.name: topic for topic in record.topics}
            case ConsumerGroupMemberMetadata():
                self._set_metadata(record)
            case ConsumerGroupTargetAssignmentMetadata():
                self.target_epoch = record.epoch
            case ConsumerGroupTargetAssignmentMember():
                self.targets[record.member_id] = record.partitions
            case ConsumerGroupCurrentMemberAssignment():
                self._set_current(record)
            case ConsumerGroupRegularExpression():
                self.regexes[record.regex] = record
            case ConsumerGroupTombstone():
                self._remove(record)

    def _remove(self, tombstone: ConsumerGroupTombstone) -> None:
        match tombstone.kind:
            case RecordKind.GROUP:
                self.epoch = 0
            case RecordKind.PARTITION_METADATA:
                self.topics = {}
            case RecordKind.MEMBER:
                self._remove_member(tombstone.subject)
            case RecordKind.TARGET_EPOCH:
                self.target_epoch = 0
            case RecordKind.TARGET_MEMBER:
                self.targets.pop(tombstone.subject, None)
            case RecordKind.CURRENT_ASSIGNMENT:
                if tombstone.subject in self.members:
                    self._set_current(_no_assignment(self.group_id, tombstone.subject))
            case RecordKind.REGULAR_EXPRESSION:
                self.regexes.pop(tombstone.subject, None)

    def _set_metadata(self, record: ConsumerGroupMemberMetadata) -> None:
        old = self.members.get(record.member_id)
        if old is not None:
            self._uncount(old.metadata)
        current = _no_assignment(self.group_id, record.member_id) if old is None else old.current
        self.members[record.member_id] = ConsumerMember(record, current)
        self._count(record)

    def _set_current(self, record: ConsumerGroupCurrentMemberAssignment) -> None:
        """Compaction may leave it before the member's metadata: `forget_unnamed` drops those whose never came."""
        old = self.members.get(record.member_id)
        if old is None:
            metadata = ConsumerGroupMemberMetadata(group_id=self.group_id, member_id=record.member_id)
        else:
            metadata = old.metadata
            self._disown(old)
        self.members[record.member_id] = ConsumerMember(metadata, record)
        for assignment in (record.assigned, record.to_revoke):
            for topic_id, partitions in assignment.items():
                self.owners.setdefault(topic_id, {}).update(dict.fromkeys(partitions, record.member_id))

    def _remove_member(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        if member is not None:
            self._uncount(member.metadata)
            self._disown(member)

    def _disown(self, member: ConsumerMember) -> None:
        for assignment in (member.current.assigned, member.current.to_revoke):
            for topic_id, partitions in assignment.items():
                owners = self.owners.get(topic_id, {})
                for partition in partitions:
                    if owners.get(partition) == member.member_id:
                        del owners[partition]
                if not owners:
                    self.owners.pop(topic_id, None)

    def _count(self, metadata: ConsumerGroupMemberMetadata) -> None:
        self.topic_counts.update(metadata.topic_names)
        if metadata.topic_regex:
            self.regex_counts[metadata.topic_regex] += 1
        if metadata.server_assignor is not None:
            self.assignor_counts[metadata.server_assignor] += 1
        if metadata.classic is not None:
            self.classic_count += 1
            self.classic_protocols.add(metadata.classic.protocols)
        if metadata.instance_id is not None:
            self.static_ids[metadata.instance_id] = metadata.member_id

    def _uncount(self, metadata: ConsumerGroupMemberMetadata) -> None:
        for name in metadata.topic_names:
            _decrease(self.topic_counts, name)
        if metadata.topic_regex:
            _decrease(self.regex_counts, metadata.topic_regex)
        if metadata.server_assignor is not None:
            _decrease(self.assignor_counts, metadata.server_assignor)
        if metadata.classic is not None:
            self.classic_count -= 1
            self.classic_protocols.remove(metadata.classic.protocols)
        if self.static_ids.get(metadata.instance_id or "") == metadata.member_id:
            del self.static_ids[metadata.instance_id or ""]

    def forget_unnamed(self) -> list[ConsumerMember]:
        """After all records were applied: without metadata there is no member. Gives those that were none."""
        unnamed = [member for member in self.members.values() if member.metadata.rebalance_timeout_ms < 0]
        for member in unnamed:
            self._remove_member(member.member_id)
        for member_id in self.targets.keys() - self.members.keys():
            del self.targets[member_id]
        return unnamed


def _no_assignment(group_id: str, member_id: str) -> ConsumerGroupCurrentMemberAssignment:
    return ConsumerGroupCurrentMemberAssignment(group_id=group_id, member_id=member_id)


def _decrease(counter: Counter[str], key: str) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
