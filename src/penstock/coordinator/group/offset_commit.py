"""OffsetCommit and OffsetDelete: whose offsets are taken, and which may go.

A commit counts only from a member of the current generation: one that was thought dead and woke up would otherwise
take back what the new owner of its partitions has done. Without a group there is nobody to fence, so tools and
consumers that assign partitions themselves commit without member and generation while the group has no members.
"""

from collections.abc import Callable

from penstock.base.errors import ErrorCode
from penstock.base.types import NO_TIMESTAMP
from penstock.coordinator.group.classic_group import ClassicGroup
from penstock.coordinator.group.commands import (
    NO_RETENTION,
    CommitOffsets,
    DeleteOffsets,
    PartitionCommit,
    TopicCommit,
    TopicPartitions,
)
from penstock.coordinator.group.consumer.group import ConsumerGroup
from penstock.coordinator.group.decision import Decision, Now, Reply, Token
from penstock.coordinator.group.group_config import GroupConfig
from penstock.coordinator.group.records import OffsetCommitted, OffsetDeleted
from penstock.coordinator.group.replies import CommitReply, DeleteOffsetsReply, PartitionResult, TopicResult
from penstock.coordinator.group.states import GroupState
from penstock.coordinator.record_bytes import STRING_BYTES_MAX

GROUP_ID_NOT_FOUND_FROM = 9  # Clients of older versions know ILLEGAL_GENERATION.
TOPIC_NAME_MAX = 249
INT64_MAX = 2**63 - 1

HasOffset = Callable[[str, str, int], bool]  # Of a group, for a topic's partition.


def decide_commit(
    code: ErrorCode, command: CommitOffsets, config: GroupConfig, token: Token, now: Now, out: Decision
) -> None:
    """Take the offsets, or refuse each with `code`."""
    expire_timestamp_ms = _expire_timestamp_ms(command.retention_ms, now)
    commit_topics(command.group_id, command.topics, code, config, token, now, out, expire_timestamp_ms)


def commit_topics(
    group_id: str,
    topics: tuple[TopicCommit, ...],
    code: ErrorCode,
    config: GroupConfig,
    token: Token,
    now: Now,
    out: Decision,
    expire_timestamp_ms: int = NO_TIMESTAMP,
) -> None:
    results = tuple(_commit_topic(group_id, topic, code, config, now, out, expire_timestamp_ms) for topic in topics)
    out.replies_on_commit.append(Reply(token, CommitReply(topics=results)))


def check_and_touch(group: ClassicGroup | None, command: CommitOffsets, now: Now) -> ErrorCode:
    code = check_commit(group, command)
    if code is ErrorCode.none and group is not None and command.member_id in group.members:
        group.touch(group.members[command.member_id], now)  # Who commits lives.
    return code


def check_commit(group: ClassicGroup | None, command: CommitOffsets) -> ErrorCode:
    """Whether these offsets may be taken from whoever sends them."""
    if len(command.group_id.encode()) > STRING_BYTES_MAX:
        return ErrorCode.invalid_group_id
    if group is None:
        if command.generation_id < 0:
            return ErrorCode.none
        is_told = command.version >= GROUP_ID_NOT_FOUND_FROM
        return ErrorCode.group_id_not_found if is_told else ErrorCode.illegal_generation
    if group.state is GroupState.DEAD:
        return ErrorCode.coordinator_not_available
    if command.generation_id < 0 and group.state is GroupState.EMPTY:
        return ErrorCode.none
    if command.generation_id < 0 and not command.member_id and command.instance_id is None:
        return ErrorCode.unknown_member_id
    code = group.check_member(command.member_id, command.instance_id)
    if code is not ErrorCode.none:
        return code
    if command.generation_id != group.generation_id:
        return ErrorCode.illegal_generation
    if group.state is GroupState.COMPLETING_REBALANCE:
        return ErrorCode.rebalance_in_progress
    return ErrorCode.none


def _commit_topic(
    group_id: str,
    topic: TopicCommit,
    code: ErrorCode,
    config: GroupConfig,
    now: Now,
    out: Decision,
    expire_timestamp_ms: int,
) -> TopicResult:
    results = []
    for commit in topic.partitions:
        result = _check_partition(topic.name, commit, config) if code is ErrorCode.none else code
        if result is ErrorCode.none:
            out.records.append(
                OffsetCommitted(
                    group_id=group_id,
                    topic=topic.name,
                    partition=commit.partition,
                    offset=commit.offset,
                    leader_epoch=commit.leader_epoch,
                    metadata=commit.metadata or "",
                    commit_timestamp_ms=now.wall_ms,
                    expire_timestamp_ms=expire_timestamp_ms,
                    topic_id=topic.topic_id,
                )
            )
        results.append(PartitionResult(commit.partition, result))
    return TopicResult(topic.name, tuple(results))


def _check_partition(topic: str, commit: PartitionCommit, config: GroupConfig) -> ErrorCode:
    if not 0 < len(topic) <= TOPIC_NAME_MAX or commit.partition < 0:
        return ErrorCode.unknown_topic_or_partition
    if commit.metadata is not None and len(commit.metadata.encode()) > config.offset_metadata_bytes_max:
        return ErrorCode.offset_metadata_too_large
    return ErrorCode.none


def _expire_timestamp_ms(retention_ms: int, now: Now) -> int:
    return NO_TIMESTAMP if retention_ms == NO_RETENTION else min(now.wall_ms + retention_ms, INT64_MAX)


# OffsetDelete ---------------------------------------------------------------------------------------------------------


def decide_delete(
    group: ClassicGroup | ConsumerGroup | None, has: HasOffset, command: DeleteOffsets, token: Token, out: Decision
) -> None:
    """`has`: whether there is anything to delete, committed or pending."""
    code = _check_delete(group)
    if group is None or code is not ErrorCode.none:
        out.replies_now.append(Reply(token, DeleteOffsetsReply(error_code=code)))
        return
    topics = tuple(_delete_topic(group, has, topic, out) for topic in command.topics)
    out.replies_on_commit.append(Reply(token, DeleteOffsetsReply(topics=topics)))


def _check_delete(group: ClassicGroup | ConsumerGroup | None) -> ErrorCode:
    if isinstance(group, ConsumerGroup):
        return ErrorCode.none  # What its members read is known, so the rest may go.
    if group is None or group.state is GroupState.DEAD:
        return ErrorCode.group_id_not_found
    if group.state is not GroupState.EMPTY and not group.uses_consumer_protocol:
        return ErrorCode.non_empty_group  # What its members read is known to them alone.
    return ErrorCode.none


def _delete_topic(
    group: ClassicGroup | ConsumerGroup, has: HasOffset, topic: TopicPartitions, out: Decision
) -> TopicResult:
    if group.is_subscribed_to(topic.name):
        code = ErrorCode.group_subscribed_to_topic
    else:
        code = ErrorCode.none
        for partition in dict.fromkeys(topic.partitions):
            if has(group.group_id, topic.name, partition):
                out.records.append(OffsetDeleted(group_id=group.group_id, topic=topic.name, partition=partition))
    return TopicResult(topic.name, tuple(PartitionResult(partition, code) for partition in topic.partitions))
