"""What the group coordinator is asked to do: the requests of all versions in one shape each."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from penstock.base.types import NO_EPOCH, LeaderEpoch, Offset
from penstock.coordinator.decision import TransactionalProducer
from penstock.wire.codec import ZERO_UUID

NO_GENERATION = -1
NO_RETENTION = -1  # The broker's own.


class Protocol(NamedTuple):
    """A way to assign partitions that a member can take part in, with what it tells the leader for it."""

    name: str
    metadata: bytes


class JoinGroup(NamedTuple):
    group_id: str
    session_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]  # The member's preference first.
    version: int  # v4 on: MEMBER_ID_REQUIRED; v9 on: a leader can skip the assignment.
    member_id: str = ""  # Empty: not a member yet.
    instance_id: str | None = None  # group.instance.id: a static member.
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1  # -1, from v0: the session timeout.


class SyncGroup(NamedTuple):
    group_id: str
    member_id: str
    generation_id: int
    instance_id: str | None = None
    protocol_type: str | None = None  # v5 on.
    protocol_name: str | None = None  # v5 on.
    assignments: Mapping[str, bytes] = MappingProxyType({})  # By member id; from the leader only.


class Heartbeat(NamedTuple):
    group_id: str
    member_id: str
    generation_id: int
    instance_id: str | None = None


class LeavingMember(NamedTuple):
    """By member id; or, to remove a static member from outside, by instance id alone."""

    member_id: str
    instance_id: str | None = None


class LeaveGroup(NamedTuple):
    group_id: str
    members: tuple[LeavingMember, ...]


class PartitionCommit(NamedTuple):
    partition: int
    offset: Offset
    leader_epoch: LeaderEpoch = NO_EPOCH
    metadata: str | None = None


class TopicCommit(NamedTuple):
    name: str
    partitions: tuple[PartitionCommit, ...]
    topic_id: UUID = ZERO_UUID


class CommitOffsets(NamedTuple):
    group_id: str
    topics: tuple[TopicCommit, ...]
    version: int
    member_id: str = ""
    generation_id: int = NO_GENERATION
    instance_id: str | None = None
    retention_ms: int = NO_RETENTION  # v2 to v4.


class CommitTxnOffsets(NamedTuple):
    group_id: str
    topics: tuple[TopicCommit, ...]
    producer: TransactionalProducer
    member_id: str = ""  # v3 on, as generation and instance (KIP-447): before, nobody asked whose offsets these are.
    generation_id: int = NO_GENERATION
    instance_id: str | None = None


class TopicPartitions(NamedTuple):
    name: str
    partitions: tuple[int, ...]
    topic_id: UUID = ZERO_UUID


class FetchOffsets(NamedTuple):
    group_id: str
    topics: tuple[TopicPartitions, ...] | None  # None: all that the group has.
    member_id: str | None = None  # v9 on, as the epoch: a member of a consumer group.
    member_epoch: int = NO_GENERATION
    require_stable: bool = False  # v7 on: not what an open transaction may change.


class DeleteOffsets(NamedTuple):
    group_id: str
    topics: tuple[TopicPartitions, ...]


class DeleteGroups(NamedTuple):
    group_ids: tuple[str, ...]
