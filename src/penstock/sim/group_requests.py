"""The requests of a group's member, in the newest versions that the classic protocol has, written and read by kio."""

import struct
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import NamedTuple

from kio.schema.find_coordinator.v4 import request as find_request
from kio.schema.find_coordinator.v4.response import FindCoordinatorResponse
from kio.schema.heartbeat.v4 import request as heartbeat_request
from kio.schema.heartbeat.v4.response import HeartbeatResponse
from kio.schema.join_group.v9 import request as join_request
from kio.schema.join_group.v9.response import JoinGroupResponse
from kio.schema.leave_group.v5 import request as leave_request
from kio.schema.leave_group.v5.response import LeaveGroupResponse
from kio.schema.offset_commit.v8 import request as commit_request
from kio.schema.offset_commit.v8.response import OffsetCommitResponse
from kio.schema.offset_fetch.v8 import request as offsets_request
from kio.schema.offset_fetch.v8.response import OffsetFetchResponse
from kio.schema.sync_group.v5 import request as sync_request
from kio.schema.sync_group.v5.response import SyncGroupResponse
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i8, i32, i32Timedelta, i64

from penstock.base.errors import ErrorCode
from penstock.base.types import TopicPartition
from penstock.sim.client import SimClient

PROTOCOL_TYPE = "consumer"
PROTOCOL_NAME = "range"
ANSWER_S_MAX = 5.0  # What waits for nothing but the disk: as long as the slowest sync, many times over.

Offsets = Mapping[TopicPartition, int]


class Identity(NamedTuple):
    """Who speaks: a member as the coordinator knows it."""

    group: str
    member_id: str
    instance_id: str | None
    generation: int


async def find_coordinator(client: SimClient, group: str) -> ErrorCode:
    request = find_request.FindCoordinatorRequest(key_type=i8(0), coordinator_keys=(group,))
    reply = await client.ask(request, FindCoordinatorResponse, within_s=ANSWER_S_MAX)
    return ErrorCode(reply.coordinators[0].error_code.value)


async def join_group(
    client: SimClient, who: Identity, *, topics: Iterable[str], session_s: float, rebalance_s: float, within_s: float
) -> JoinGroupResponse:
    request = join_request.JoinGroupRequest(
        group_id=GroupId(who.group),
        session_timeout=i32Timedelta.parse(timedelta(seconds=session_s)),
        rebalance_timeout=i32Timedelta.parse(timedelta(seconds=rebalance_s)),
        member_id=who.member_id,
        group_instance_id=who.instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocols=(join_request.JoinGroupRequestProtocol(name=PROTOCOL_NAME, metadata=subscription(topics)),),
        reason=None,
    )
    return await client.ask(request, JoinGroupResponse, within_s=within_s)


async def sync_group(
    client: SimClient, who: Identity, assignments: Mapping[str, bytes], *, within_s: float
) -> SyncGroupResponse:
    request = sync_request.SyncGroupRequest(
        group_id=GroupId(who.group),
        generation_id=i32(who.generation),
        member_id=who.member_id,
        group_instance_id=who.instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=PROTOCOL_NAME,
        assignments=tuple(
            sync_request.SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
            for member_id, assignment in assignments.items()
        ),
    )
    return await client.ask(request, SyncGroupResponse, within_s=within_s)


async def heartbeat(client: SimClient, who: Identity) -> ErrorCode:
    request = heartbeat_request.HeartbeatRequest(
        group_id=GroupId(who.group),
        generation_id=i32(who.generation),
        member_id=who.member_id,
        group_instance_id=who.instance_id,
    )
    reply = await client.ask(request, HeartbeatResponse, within_s=ANSWER_S_MAX)
    return ErrorCode(reply.error_code.value)


async def leave_group(client: SimClient, who: Identity) -> ErrorCode:
    identity = leave_request.MemberIdentity(member_id=who.member_id, group_instance_id=who.instance_id, reason=None)
    request = leave_request.LeaveGroupRequest(group_id=GroupId(who.group), members=(identity,))
    reply = await client.ask(request, LeaveGroupResponse, within_s=ANSWER_S_MAX)
    code = ErrorCode(reply.error_code.value)
    return code if code is not ErrorCode.none else ErrorCode(reply.members[0].error_code.value)


async def commit_offsets(client: SimClient, who: Identity, offsets: Offsets) -> ErrorCode:
    """The code that all partitions got: they are of one topic and one member, so they share their fate."""
    (topic,) = {partition.topic for partition in offsets}
    partitions = tuple(
        commit_request.OffsetCommitRequestPartition(
            partition_index=i32(partition.partition), committed_offset=i64(offset), committed_metadata=None
        )
        for partition, offset in offsets.items()
    )
    request = commit_request.OffsetCommitRequest(
        group_id=GroupId(who.group),
        generation_id_or_member_epoch=i32(who.generation),
        member_id=who.member_id,
        group_instance_id=who.instance_id,
        topics=(commit_request.OffsetCommitRequestTopic(name=TopicName(topic), partitions=partitions),),
    )
    reply = await client.ask(request, OffsetCommitResponse, within_s=ANSWER_S_MAX)
    (code,) = {ErrorCode(partition.error_code.value) for partition in reply.topics[0].partitions}
    return code


async def fetch_offsets(client: SimClient, group: str, topic: str, count: int) -> dict[TopicPartition, int] | ErrorCode:
    """The committed offset of each of the topic's partitions, -1 where there is none; or why it is not to be had."""
    asked = offsets_request.OffsetFetchRequestTopics(
        name=TopicName(topic), partition_indexes=tuple(map(i32, range(count)))
    )
    request = offsets_request.OffsetFetchRequest(
        groups=(offsets_request.OffsetFetchRequestGroup(group_id=GroupId(group), topics=(asked,)),),
        require_stable=True,
    )
    reply = (await client.ask(request, OffsetFetchResponse, within_s=ANSWER_S_MAX)).groups[0]
    code = ErrorCode(reply.error_code.value)
    if code is not ErrorCode.none:
        return code
    return {TopicPartition(topic, p.partition_index): p.committed_offset for p in reply.topics[0].partitions}


# Kafka's ConsumerProtocol: what members tell each other through the coordinator, which does not read it.


def subscription(topics: Iterable[str]) -> bytes:
    names = [_string(topic) for topic in topics]
    return struct.pack(">hi", 0, len(names)) + b"".join(names) + struct.pack(">i", -1)


def assignment_of(partitions: Iterable[TopicPartition]) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for topic, number in partitions:
        by_topic.setdefault(topic, []).append(number)
    parts = [
        _string(topic) + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
        for topic, numbers in by_topic.items()
    ]
    return struct.pack(">hi", 0, len(parts)) + b"".join(parts) + struct.pack(">i", -1)


def assigned(data: bytes) -> frozenset[TopicPartition]:
    """The partitions in an assignment; none in an empty one."""
    if not data:
        return frozenset()
    _, topics = struct.unpack_from(">hi", data)
    position = 6
    found: set[TopicPartition] = set()
    for _ in range(topics):
        (length,) = struct.unpack_from(">h", data, position)
        topic = data[position + 2 : position + 2 + length].decode()
        position += 2 + length
        (count,) = struct.unpack_from(">i", data, position)
        numbers = struct.unpack_from(f">{count}i", data, position + 4)
        position += 4 + 4 * count
        found.update(TopicPartition(topic, number) for number in numbers)
    return frozenset(found)


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack(">h", len(raw)) + raw
