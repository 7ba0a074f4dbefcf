"""DescribeTopicPartitions: topics with their partitions, a page at a time (KIP-966).

No topics in the request means all. Topics come sorted by name; a page ends after `response_partition_limit` partitions,
2000 at most, and its cursor says where the next one begins. A cursor into a topic that has since been deleted begins at
the topic after it. Eligible leader replicas are not kept, and answered as none.
"""

from collections.abc import Sequence

from penstock.base.errors import ErrorCode
from penstock.cluster.image import ClusterImage
from penstock.server.api import ApiKey, RequestHeader, handler
from penstock.server.context import Context
from penstock.server.topic_view import partition_struct, refused_topic_struct, topic_struct
from penstock.wire.codec import Struct

PARTITIONS_PER_PAGE_MAX = 2000  # Kafka's: a reply of about 100 kB.


@handler(ApiKey.DESCRIBE_TOPIC_PARTITIONS, versions=range(1))
def describe_topic_partitions(context: Context, header: RequestHeader, request: Struct) -> Struct:
    image = context.metadata.image
    names = sorted({topic.name for topic in request.topics} if request.topics else image.topics)
    first = 0
    if request.cursor is not None:
        names = [name for name in names if name >= request.cursor.topic_name]
        if names and names[0] == request.cursor.topic_name:
            first = max(request.cursor.partition_index, 0)
    limit = max(1, min(request.response_partition_limit, PARTITIONS_PER_PAGE_MAX))
    topics, next_cursor = _page(image, names, first, limit)
    return Struct(topics=topics, next_cursor=next_cursor)


def _page(image: ClusterImage, names: Sequence[str], first: int, limit: int) -> tuple[list[Struct], Struct | None]:
    """Topics with `limit` partitions at most, and where to go on. `first` is the partition to begin the first at."""
    topics: list[Struct] = []
    for name in names:
        topic = image.topics.get(name)
        if topic is None:
            topics.append(refused_topic_struct(ErrorCode.unknown_topic_or_partition, name))
            continue
        if limit == 0:
            return topics, Struct(topic_name=name, partition_index=0)
        end = first + limit
        partitions = [
            partition_struct(state, image.brokers, eligible_leader_replicas=(), last_known_elr=())
            for state in topic.partitions[first:end]
        ]
        topics.append(topic_struct(topic, partitions, include_operations=True))
        if end < len(topic.partitions):
            return topics, Struct(topic_name=name, partition_index=end)
        limit -= len(partitions)
        first = 0
    return topics, None
