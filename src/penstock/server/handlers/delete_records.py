"""DeleteRecords: move a partition's start forward; -1 means up to the high watermark.

The new start is durable before the answer leaves. The segments below it go with the next retention pass.
"""

from penstock.base.errors import ErrorCode, Refused
from penstock.base.types import NO_OFFSET, Offset
from penstock.server.api import ApiKey, RequestHeader, handler
from penstock.server.context import Context
from penstock.wire.codec import Struct


@handler(ApiKey.DELETE_RECORDS, versions=range(3))
async def delete_records(context: Context, header: RequestHeader, request: Struct) -> Struct:
    topics = [
        Struct(name=topic.name, partitions=[_delete(context, topic.name, item) for item in topic.partitions])
        for topic in request.topics
    ]
    try:
        await context.partitions.store_log_starts()
    except OSError:
        for topic in topics:
            for item in topic.partitions:
                item.low_watermark, item.error_code = NO_OFFSET, ErrorCode.kafka_storage_error
    return Struct(topics=topics)


def _delete(context: Context, topic: str, item: Struct) -> Struct:
    try:
        low_watermark = context.partitions.leader(topic, item.partition_index).delete_records(Offset(item.offset))
        code = ErrorCode.none
    except Refused as refused:
        low_watermark, code = NO_OFFSET, refused.code
    return Struct(partition_index=item.partition_index, low_watermark=low_watermark, error_code=code)
