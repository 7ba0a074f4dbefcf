"""What the group coordinator answers, in Kafka's field names; handlers turn it into the version's message."""

from typing import NamedTuple

from penstock.base.errors import ErrorCode
from penstock.base.types import NO_EPOCH, NO_OFFSET, LeaderEpoch, Offset
from penstock.coordinator.group.commands import NO_GENERATION

_TOO_LARGE = frozenset({ErrorCode.message_too_large, ErrorCode.record_list_too_large})


def group_code(code: ErrorCode) -> ErrorCode:
    """A generation that does not fit a record: no code of the group protocol says so, and no retry helps."""
    return ErrorCode.unknown_server_error if code in _TOO_LARGE else code


def _commit_code(code: ErrorCode) -> ErrorCode:
    return ErrorCode.invalid_commit_offset_size if code in _TOO_LARGE else code


class JoinedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinReply(NamedTuple):
    error_code: ErrorCode = ErrorCode.none
    generation_id: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None  # Before v7 the field is not nullable: None is the empty string.
    leader: str = ""
    member_id: str = ""
    members: tuple[JoinedMember, ...] = ()  # For the leader only.
    skip_assignment: bool = False

    def failed(self, code: ErrorCode) -> "JoinReply":
        return JoinReply(error_code=group_code(code))  # Without the member id: it may never have been stored.


class SyncReply(NamedTuple):
    error_code: ErrorCode = ErrorCode.none
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""

    def failed(self, code: ErrorCode) -> "SyncReply":
        return SyncReply(error_code=group_code(code))


class HeartbeatReply(NamedTuple):
    error_code: ErrorCode = ErrorCode.none

    def failed(self, code: ErrorCode) -> "HeartbeatReply":
        return HeartbeatReply(error_code=code)


class LeftMember(NamedTuple):
    member_id: str
    instance_id: str | None
    error_code: ErrorCode


class LeaveReply(NamedTuple):
    error_code: ErrorCode = ErrorCode.none  # Before v3 there is one member, whose error stands here.
    members: tuple[LeftMember, ...] = ()

    def failed(self, code: ErrorCode) -> "LeaveReply":
        return LeaveReply(error_code=group_code(code))


class PartitionResult(NamedTuple):
    partition: int
    error_code: ErrorCode


class TopicResult(NamedTuple):
    name: str
    partitions: tuple[PartitionResult, ...]


class CommitReply(NamedTuple):
    topics: tuple[TopicResult, ...]

    def failed(self, code: ErrorCode) -> "CommitReply":
        return CommitReply(topics=_all_refused(self.topics, _commit_code(code)))


class FetchedOffset(NamedTuple):
    partition: int
    offset: Offset = NO_OFFSET
    leader_epoch: LeaderEpoch = NO_EPOCH
    metadata: str = ""
    error_code: ErrorCode = ErrorCode.none


class FetchedTopic(NamedTuple):
    name: str
    partitions: tuple[FetchedOffset, ...]


class FetchReply(NamedTuple):
    error_code: ErrorCode = ErrorCode.none
    topics: tuple[FetchedTopic, ...] = ()

    def failed(self, code: ErrorCode) -> "FetchReply":
        return FetchReply(error_code=code)


class DeleteOffsetsReply(NamedTuple):
    error_code: ErrorCode = ErrorCode.none
    topics: tuple[TopicResult, ...] = ()

    def failed(self, code: ErrorCode) -> "DeleteOffsetsReply":
        return DeleteOffsetsReply(error_code=code)


class DeletedGroup(NamedTuple):
    group_id: str
    error_code: ErrorCode


class DeleteGroupsReply(NamedTuple):
    groups: tuple[DeletedGroup, ...]

    def failed(self, code: ErrorCode) -> "DeleteGroupsReply":
        groups = tuple(
            DeletedGroup(group_id, code if error is ErrorCode.none else error) for group_id, error in self.groups
        )
        return DeleteGroupsReply(groups=groups)


def _all_refused(topics: tuple[TopicResult, ...], code: ErrorCode) -> tuple[TopicResult, ...]:
    """Every partition that was accepted is refused with `code`; one that was refused keeps its reason."""
    return tuple(
        TopicResult(
            topic.name,
            tuple(
                PartitionResult(partition, code if error is ErrorCode.none else error)
                for partition, error in topic.partitions
            ),
        )
        for topic in topics
    )
