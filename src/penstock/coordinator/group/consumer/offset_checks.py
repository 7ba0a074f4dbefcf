"""Whose commits and fetches of offsets a consumer group takes, and which of its offsets nobody needs any more."""

from penstock.base.errors import ErrorCode
from penstock.base.types import NO_TIMESTAMP
from penstock.coordinator.group.commands import CommitOffsets, FetchOffsets
from penstock.coordinator.group.consumer.group import ConsumerGroup
from penstock.coordinator.group.offsets import TopicOffsets
from penstock.coordinator.group.records import OffsetDeleted

MEMBER_EPOCH_FROM = 9  # Before, OffsetCommit knew generations only.


def check_consumer_commit(group: ConsumerGroup, command: CommitOffsets) -> ErrorCode:
    """A member of the new protocol must name its epoch: one that was fenced would undo what the next owner did."""
    if command.generation_id < 0 and not group.members:
        return ErrorCode.none
    member = group.members.get(command.member_id)
    if member is None:
        return ErrorCode.unknown_member_id
    if command.instance_id is not None and group.static_ids.get(command.instance_id) != command.member_id:
        return ErrorCode.fenced_instance_id
    if member.is_classic:
        return ErrorCode.none if command.generation_id == member.epoch else ErrorCode.illegal_generation
    if command.version < MEMBER_EPOCH_FROM:
        return ErrorCode.unsupported_version
    return ErrorCode.none if command.generation_id == member.epoch else ErrorCode.stale_member_epoch


def check_consumer_fetch(group: ConsumerGroup, command: FetchOffsets) -> ErrorCode:
    """Tools ask without a member. A member must be up to date, so that it does not start from an older offset."""
    if command.member_id is None and command.member_epoch < 0:
        return ErrorCode.none
    member = group.members.get(command.member_id or "")
    if member is None:
        return ErrorCode.unknown_member_id
    if member.is_classic:
        return ErrorCode.none if command.member_epoch in (-1, member.epoch) else ErrorCode.illegal_generation
    return ErrorCode.none if command.member_epoch == member.epoch else ErrorCode.stale_member_epoch


def expired_consumer_offsets(
    group: ConsumerGroup, offsets: TopicOffsets, wall_ms: int, retention_ms: int
) -> list[OffsetDeleted]:
    """Of topics that nobody subscribes to, those whose commit is old. An empty group has had that time to come back.

    Its record does not say since when it is empty, so what this broker saw counts: a restart prolongs it.
    """
    if group.members:
        group.empty_since_ms = None
    elif group.empty_since_ms is None:
        group.empty_since_ms = wall_ms
    since_ms = 0 if group.empty_since_ms is None else group.empty_since_ms
    return [
        OffsetDeleted(group_id=group.group_id, topic=topic, partition=partition)
        for topic, partitions in offsets.items()
        if not group.is_subscribed_to(topic)
        for partition, committed in partitions.items()
        if (
            wall_ms >= committed.expire_timestamp_ms
            if committed.expire_timestamp_ms != NO_TIMESTAMP
            else wall_ms - max(since_ms, committed.commit_timestamp_ms) >= retention_ms
        )
    ]
