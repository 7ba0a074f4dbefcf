"""Metadata: the brokers, the controller, and topics with their partitions and leaders.

v0 takes an empty list as "all topics"; from v1 on null means all and empty means none. v4 lets the client forbid
auto-creation (v0 to v3 always allow it). v10 adds topic ids to the reply, v12 asks by id. v8 to v10 can ask for the
cluster's authorized operations (later: DescribeCluster). v13 adds a top-level error code (KIP-1102).

A topic that is created on the way is answered in full: its partitions exist when the controller returns, so there is no
round of LEADER_NOT_AVAILABLE as with Kafka. Internal topics are made by their coordinators, never here.
"""

from collections.abc import Awaitable, Iterable
from uuid import UUID

from penstock.base.errors import ErrorCode
from penstock.cluster.image import ClusterImage
from penstock.cluster.topic_names import is_internal, why_illegal
from penstock.cluster.topic_plan import NewTopic, TopicResult
from penstock.server.api import ApiKey, RequestHeader, handler
from penstock.server.context import Context
from penstock.server.topic_view import (
    CLUSTER_OPERATIONS,
    NOT_ASKED,
    partition_struct,
    refused_topic_struct,
    topic_struct,
)
from penstock.wire.codec import ZERO_UUID, Struct

ASKED_BY_ID_VERSION = 12


@handler(ApiKey.METADATA, versions=range(14))
def metadata(context: Context, header: RequestHeader, request: Struct) -> Struct | Awaitable[Struct]:
    image = context.metadata.image
    if request.topics is None or (header.version == 0 and not request.topics):
        return _reply(image, request, [_topic(image, name, {}, request) for name in sorted(image.topics)])
    names = dict.fromkeys(topic.name for topic in request.topics if topic.name is not None and not _id(header, topic))
    missing = [name for name in names if name not in image.topics]
    if missing and request.allow_auto_topic_creation and image.broker_config(context.config).auto_create_topics_enable:
        return _create_and_reply(context, header, request, missing)
    return _reply(image, request, _asked_for(image, header, request, {}))


async def _create_and_reply(context: Context, header: RequestHeader, request: Struct, missing: list[str]) -> Struct:
    wanted = [NewTopic(name=name) for name in missing if why_illegal(name) is None and not is_internal(name)]
    results = await context.topic_creator.create(wanted) if wanted else []
    image = context.metadata.image
    return _reply(image, request, _asked_for(image, header, request, {str(item.name): item for item in results}))


def _asked_for(
    image: ClusterImage, header: RequestHeader, request: Struct, created: dict[str, TopicResult]
) -> list[Struct]:
    """One answer for each topic in the request, however often it is in there."""
    by_id = header.version >= ASKED_BY_ID_VERSION
    answers: dict[str | UUID, Struct] = {}
    for topic in request.topics:
        topic_id = _id(header, topic)
        if topic_id is not None:
            answers[topic_id] = _topic_by_id(image, topic_id, request)
        elif topic.name is not None:
            answers[topic.name] = _topic(image, topic.name, created, request)
        else:
            # Before v12 the reply cannot say null.
            answers[ZERO_UUID] = refused_topic_struct(ErrorCode.invalid_request, None if by_id else "")
    return list(answers.values())


def _id(header: RequestHeader, topic: Struct) -> UUID | None:
    """The id that the topic is asked for by, if it is: Java's consumers send an empty name with it, and no null."""
    topic_id: UUID = topic.topic_id
    return None if header.version < ASKED_BY_ID_VERSION or topic_id == ZERO_UUID else topic_id


def _topic(image: ClusterImage, name: str, created: dict[str, TopicResult], request: Struct) -> Struct:
    topic = image.topics.get(name)
    if topic is not None:
        partitions = [partition_struct(state, image.brokers) for state in topic.partitions]
        return topic_struct(topic, partitions, request.include_topic_authorized_operations)
    if why_illegal(name) is not None:
        return refused_topic_struct(ErrorCode.invalid_topic_exception, name)
    result = created.get(name)
    if result is not None and result.code is ErrorCode.not_controller:
        # Of the former no client knows what it means here; the latter makes all of them ask again.
        return refused_topic_struct(ErrorCode.leader_not_available, name)
    if result is not None and result.code is not ErrorCode.none:
        return refused_topic_struct(result.code, name)
    return refused_topic_struct(ErrorCode.unknown_topic_or_partition, name)


def _topic_by_id(image: ClusterImage, topic_id: UUID, request: Struct) -> Struct:
    name = image.topic_names.get(topic_id)
    if name is None:
        return refused_topic_struct(ErrorCode.unknown_topic_id, None, topic_id)
    return _topic(image, name, {}, request)


def _reply(image: ClusterImage, request: Struct, topics: Iterable[Struct]) -> Struct:
    asked = request.include_cluster_authorized_operations
    return Struct(
        brokers=[
            Struct(node_id=node_id, host=broker.host, port=broker.port, rack=broker.rack)
            for node_id, broker in sorted(image.brokers.items())
        ],
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        topics=list(topics),
        cluster_authorized_operations=CLUSTER_OPERATIONS if asked else NOT_ASKED,
        error_code=ErrorCode.none,
    )
