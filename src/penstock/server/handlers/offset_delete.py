"""OffsetDelete: forget how far a group has read of topics that it is not subscribed to (KIP-496)."""

from penstock.base.errors import Refused
from penstock.coordinator.group.commands import DeleteOffsets, TopicPartitions
from penstock.coordinator.group.replies import DeleteOffsetsReply
from penstock.server.api import ApiKey, RequestHeader, handler
from penstock.server.context import Context
from penstock.wire.codec import Struct


@handler(ApiKey.OFFSET_DELETE, versions=range(1))
async def offset_delete(context: Context, header: RequestHeader, request: Struct) -> Struct:
    topics = tuple(
        TopicPartitions(topic.name, tuple(item.partition_index for item in topic.partitions))
        for topic in request.topics
    )
    command = DeleteOffsets(group_id=request.group_id, topics=topics)
    try:
        reply = await context.groups.call(
            request.group_id, lambda shard, token, now: shard.delete_offsets(command, token)
        )
    except Refused as refused:
        reply = DeleteOffsetsReply(error_code=refused.code)
    assert isinstance(reply, DeleteOffsetsReply)
    return Struct(
        error_code=reply.error_code,
        topics=[
            Struct(
                name=topic.name,
                partitions=[Struct(partition_index=partition, error_code=code) for partition, code in topic.partitions],
            )
            for topic in reply.topics
        ],
    )
