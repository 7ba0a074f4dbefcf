"""OffsetForLeaderEpoch: where an epoch ended, so that a client can tell whether the log was cut since (KIP-320).

v2 adds the check of the current epoch, v3 the replica id (ignored: our followers learn it from Fetch), v4 is flexible.
"""

from penstock.base.errors import ErrorCode, Refused
from penstock.base.types import NO_EPOCH, NO_OFFSET, LeaderEpoch
from penstock.server.api import ApiKey, RequestHeader, handler
from penstock.server.context import Context
from penstock.wire.codec import Struct


@handler(ApiKey.OFFSET_FOR_LEADER_EPOCH, versions=range(2, 5))
def offset_for_leader_epoch(context: Context, header: RequestHeader, request: Struct) -> Struct:
    return Struct(
        topics=[
            Struct(topic=topic.topic, partitions=[_end_offset(context, topic.topic, item) for item in topic.partitions])
            for topic in request.topics
        ]
    )


def _end_offset(context: Context, topic: str, item: Struct) -> Struct:
    try:
        partition = context.partitions.leader(topic, item.partition)
        partition.check_epoch(item.current_leader_epoch)
        epoch, end = partition.end_offset_for(LeaderEpoch(item.leader_epoch))
        code = ErrorCode.none
    except Refused as refused:
        epoch, end, code = NO_EPOCH, NO_OFFSET, refused.code
    return Struct(partition=item.partition, error_code=code, leader_epoch=epoch, end_offset=end)
