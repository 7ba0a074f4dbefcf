"""OffsetFetch: how far groups have read; -1 where nothing was committed.

v2 allows all partitions (null), v7 adds require_stable (KIP-447: UNSTABLE_OFFSET_COMMIT while an open transaction is to
decide), v8 asks for many groups at once (KIP-709), v9 has the member epoch of a consumer group (KIP-848), v10 names
topics by id.
"""

from penstock.base.errors import ErrorCode, Refused
from penstock.coordinator.group.commands import NO_GENERATION, FetchOffsets, TopicPartitions
from penstock.coordinator.group.replies import FetchReply
from penstock.server.api import ApiKey, RequestHeader, handler
from penstock.server.context import Context
from penstock.wire.codec import ZERO_UUID, Struct

BATCH_VERSION = 8
MEMBER_VERSION = 9
TOPIC_ID_VERSION = 10


@handler(ApiKey.OFFSET_FETCH, versions=range(1, 11))
async def offset_fetch(context: Context, header: RequestHeader, request: Struct) -> Struct:
    if header.version < BATCH_VERSION:
        answer = await _fetch(context, header.version, request, request.require_stable)
        # The reply for one group has topics of a shape of its own, without ids.
        topics = [Struct(name=topic.name, partitions=topic.partitions) for topic in answer.topics]
        return Struct(topics=topics, error_code=answer.error_code)
    return Struct(
        groups=[await _fetch(context, header.version, group, request.require_stable) for group in request.groups]
    )


async def _fetch(context: Context, version: int, group: Struct, require_stable: bool) -> Struct:
    image = context.metadata.image
    wanted, unknown = None, []
    if group.topics is not None:
        wanted = []
        for topic in group.topics:
            name = image.topic_names.get(topic.topic_id) if version >= TOPIC_ID_VERSION else topic.name
            if name is None:
                unknown.append(topic)
            else:
                wanted.append(TopicPartitions(name, tuple(topic.partition_indexes)))
    command = FetchOffsets(
        group_id=group.group_id,
        topics=None if wanted is None else tuple(wanted),
        member_id=group.member_id if version >= MEMBER_VERSION else None,
        member_epoch=group.member_epoch if version >= MEMBER_VERSION else NO_GENERATION,
        require_stable=require_stable,
    )
    try:
        reply = await context.groups.call(group.group_id, lambda shard, token, now: shard.fetch_offsets(command, token))
    except Refused as refused:
        reply = FetchReply(error_code=refused.code)
    assert isinstance(reply, FetchReply)
    topics = [
        Struct(
            name=topic.name,
            topic_id=image.topics[topic.name].topic_id if topic.name in image.topics else ZERO_UUID,
            partitions=[
                _partition(item.partition, item.offset, item.leader_epoch, item.metadata, item.error_code)
                for item in topic.partitions
            ],
        )
        for topic in reply.topics
    ]
    topics += [
        Struct(
            name="",
            topic_id=topic.topic_id,
            partitions=[
                _partition(partition, -1, -1, "", ErrorCode.unknown_topic_id) for partition in topic.partition_indexes
            ],
        )
        for topic in unknown
    ]
    return Struct(group_id=group.group_id, topics=topics, error_code=reply.error_code)


def _partition(partition: int, offset: int, leader_epoch: int, metadata: str, code: ErrorCode) -> Struct:
    return Struct(
        partition_index=partition,
        committed_offset=offset,
        committed_leader_epoch=leader_epoch,
        metadata=metadata,
        error_code=code,
    )
