"""Members go: they leave, their session ends, or they did not give up in time what they had to."""

from collections.abc import Collection

from penstock.coordinator.group.consumer.draft import Draft
from penstock.coordinator.group.consumer.records import ConsumerGroupTombstone, RecordKind
from penstock.coordinator.group.consumer.subscription_metadata import maybe_refresh
from penstock.coordinator.group.consumer.target_assignment import bump_epoch
from penstock.coordinator.group.consumer.topics import Topics
from penstock.coordinator.group.decision import Now

_MEMBER_KINDS = (RecordKind.CURRENT_ASSIGNMENT, RecordKind.TARGET_MEMBER, RecordKind.MEMBER)


def remove_members(draft: Draft, member_ids: Collection[str], topics: Topics, now: Now) -> None:
    """The group is older by an epoch; the next heartbeat of anyone finds a new target for those who are left."""
    for member_id in member_ids:
        write_removal(draft, member_id)
    maybe_refresh(draft, topics, now)
    bump_epoch(draft)


def write_removal(draft: Draft, member_id: str) -> None:
    for kind in _MEMBER_KINDS:
        draft.write(ConsumerGroupTombstone(kind=kind, group_id=draft.group.group_id, subject=member_id))


def write_group_removal(draft: Draft) -> None:
    """Everything that the group has in the log; its own tombstone is the last."""
    group = draft.group
    for kind, subjects in (
        (RecordKind.CURRENT_ASSIGNMENT, list(group.members)),
        (RecordKind.TARGET_MEMBER, list(group.targets)),
        (RecordKind.MEMBER, list(group.members)),
        (RecordKind.REGULAR_EXPRESSION, list(group.regexes)),
    ):
        for subject in subjects:
            draft.write(ConsumerGroupTombstone(kind=kind, group_id=group.group_id, subject=subject))
    for kind in (RecordKind.TARGET_EPOCH, RecordKind.PARTITION_METADATA, RecordKind.GROUP):
        draft.write(ConsumerGroupTombstone(kind=kind, group_id=group.group_id))
