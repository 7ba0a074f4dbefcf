"""Computing what every member shall have, and the records of what became different."""

from uuid import UUID

from penstock.coordinator.group.consumer.assignors.by_name import ASSIGNORS
from penstock.coordinator.group.consumer.assignors.spec import MemberSpec
from penstock.coordinator.group.consumer.draft import Draft
from penstock.coordinator.group.consumer.group import ConsumerGroup
from penstock.coordinator.group.consumer.records import (
    ConsumerGroupMetadata,
    ConsumerGroupTargetAssignmentMember,
    ConsumerGroupTargetAssignmentMetadata,
)

EPOCH_MAX = 2**31 - 1


def bump_epoch(draft: Draft) -> None:
    group = draft.group
    assert group.epoch < EPOCH_MAX, f"{group.group_id!r} has used up its epochs"
    draft.write(ConsumerGroupMetadata(group_id=group.group_id, epoch=group.epoch + 1))


def update_target(draft: Draft, default_assignor: str) -> None:
    """The target of the group's epoch. The epoch's record comes last: a log that ends before it has the old one."""
    group = draft.group
    name = group.preferred_assignor(default_assignor)
    counts = {topic.topic_id: topic.partition_count for topic in group.topics.values()}
    targets = ASSIGNORS.get(name, ASSIGNORS[default_assignor])(_specs(group), counts)
    for member_id, partitions in targets.items():
        if partitions != group.target(member_id):
            draft.write(
                ConsumerGroupTargetAssignmentMember(group_id=group.group_id, member_id=member_id, partitions=partitions)
            )
    draft.write(ConsumerGroupTargetAssignmentMetadata(group_id=group.group_id, epoch=group.epoch))


def _specs(group: ConsumerGroup) -> list[MemberSpec]:
    seen: dict[tuple[tuple[str, ...], str | None], frozenset[UUID]] = {}
    specs = []
    for member in group.members.values():
        key = member.metadata.topic_names, member.metadata.topic_regex
        topic_ids = seen.get(key)
        if topic_ids is None:
            topic_ids = frozenset(group.topics[name].topic_id for name in group.names_of(member) & group.topics.keys())
            seen[key] = topic_ids
        specs.append(MemberSpec(member.member_id, member.instance_id, topic_ids, group.target(member.member_id)))
    return specs
