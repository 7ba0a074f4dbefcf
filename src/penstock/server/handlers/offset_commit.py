"""OffsetCommit: store how far a group has read; answered when that is durable.

v6 adds leader epochs, v7 static members, v9 errors of the newer group protocol, v10 names topics by id (KIP-848).
Topics that do not exist are refused, as the offset would never be read.
"""

from uuid import UUID

from penstock.base.errors import ErrorCode, Refused
from penstock.coordinator.group.commands import CommitOffsets
from penstock.coordinator.group.replies import CommitReply
from penstock.server.api import ApiKey, RequestHeader, handler
from penstock.server.context import Context
from penstock.server.offset_commits import all_refused, commit_of, fill, refused
from penstock.wire.codec import Struct

TOPIC_ID_VERSION = 10


@handler(ApiKey.OFFSET_COMMIT, versions=range(2, 11))
async def offset_commit(context: Context, header: RequestHeader, request: Struct) -> Struct:
    known, answers = [], []
    for topic in request.topics:
        name, code = _named(context, header.version, topic)
        answer = Struct(name=name, topic_id=topic.topic_id, partitions=[])
        answers.append(answer)
        if code is ErrorCode.none:
            known.append(commit_of(context.metadata.image.topics[name], topic, answer))
        else:
            answer.partitions = all_refused(topic, code)
    command = CommitOffsets(
        group_id=request.group_id,
        member_id=request.member_id,
        generation_id=request.generation_id_or_member_epoch,
        instance_id=request.group_instance_id,
        topics=tuple(known),
        retention_ms=request.retention_time_ms,
        version=header.version,
    )
    try:
        reply = await context.groups.call(
            request.group_id, lambda shard, token, now: shard.commit_offsets(command, token, now)
        )
    except Refused as error:
        reply = refused(command.topics, error.code)
    assert isinstance(reply, CommitReply)
    fill(answers, reply)
    return Struct(topics=answers)


def _named(context: Context, version: int, topic: Struct) -> tuple[str, ErrorCode]:
    topic_id: UUID = topic.topic_id
    if version >= TOPIC_ID_VERSION:
        found = context.metadata.image.topic_by_id(topic_id)
        return ("", ErrorCode.unknown_topic_id) if found is None else (found.name, ErrorCode.none)
    exists = topic.name in context.metadata.image.topics
    return topic.name, ErrorCode.none if exists else ErrorCode.unknown_topic_or_partition
