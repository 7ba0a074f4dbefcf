"""DescribeLogDirs: the data directory of this broker and the size of each partition in it.

Null topics mean all. v3 adds a top-level error code, v4 the size of the volume (KIP-827). There is one directory, and
no partition is on its way to another, so no replica is a future one.
"""

from collections.abc import Iterable

from penstock.base.errors import ErrorCode
from penstock.base.types import TopicPartition
from penstock.server.api import ApiKey, RequestHeader, handler
from penstock.server.context import Context
from penstock.wire.codec import Struct


@handler(ApiKey.DESCRIBE_LOG_DIRS, versions=range(1, 6))
def describe_log_dirs(context: Context, header: RequestHeader, request: Struct) -> Struct:
    description = context.partitions.log_dir_description()
    asked = None if request.topics is None else {(t.topic, p) for t in request.topics for p in t.partitions}
    result = Struct(
        error_code=description.error,
        log_dir=description.path,
        topics=_topics(
            (topic_partition, size_bytes)
            for topic_partition, size_bytes in description.partitions
            if asked is None or topic_partition in asked
        ),
        total_bytes=description.total_bytes,
        usable_bytes=description.usable_bytes,
    )
    return Struct(error_code=ErrorCode.none, results=[result])


def _topics(partitions: Iterable[tuple[TopicPartition, int]]) -> list[Struct]:
    topics: dict[str, list[Struct]] = {}
    for (topic, partition), size_bytes in sorted(partitions):
        topics.setdefault(topic, []).append(
            Struct(partition_index=partition, partition_size=size_bytes, offset_lag=0, is_future_key=False)
        )
    return [Struct(name=name, partitions=items) for name, items in topics.items()]
