"""CreateTopics: make topics, or with validate_only find out whether they could be made.

v4 accepts -1 for the broker's default counts (KIP-464); it is accepted in older versions too. v5 adds the counts and
the settings in force to the reply (KIP-525), v7 the topic id. Each topic is made or refused on its own; those that are
made are made in one commit. `timeout_ms` is not looked at: the reply leaves when the controller has them.
"""

from penstock.base.errors import ErrorCode
from penstock.cluster.topic_plan import NewTopic, TopicResult
from penstock.server.api import ApiKey, RequestHeader, handler
from penstock.server.config_view import ConfigValue, topic_configs
from penstock.server.context import Context
from penstock.wire.codec import ZERO_UUID, Struct


@handler(ApiKey.CREATE_TOPICS, versions=range(2, 8), is_at_controller=True)
async def create_topics(context: Context, header: RequestHeader, request: Struct) -> Struct:
    topics = [
        NewTopic(
            name=topic.name,
            partition_count=topic.num_partitions,
            replication_factor=topic.replication_factor,
            assignment=[(item.partition_index, item.broker_ids) for item in topic.assignments],
            config={item.name: item.value for item in topic.configs},
        )
        for topic in request.topics
    ]
    results = await context.controller.create_topics(topics, validate_only=request.validate_only)
    return Struct(topics=[_topic(context, result, request.validate_only) for result in results])


def _topic(context: Context, result: TopicResult, validate_only: bool) -> Struct:
    if result.code is not ErrorCode.none or result.topic is None:
        return Struct(
            name=result.name, topic_id=ZERO_UUID, error_code=result.code, error_message=result.message, configs=()
        )
    topic = result.topic
    values = topic_configs(context.metadata.image, topic.config, context.config)
    return Struct(
        name=topic.name,
        topic_id=ZERO_UUID if validate_only else topic.topic_id,
        error_code=ErrorCode.none,
        error_message=None,
        topic_config_error_code=ErrorCode.none,
        num_partitions=len(topic.partitions),
        replication_factor=topic.replication_factor,
        configs=[_config(value) for value in values],
    )


def _config(value: ConfigValue) -> Struct:
    return Struct(
        name=value.name,
        value=value.value,
        read_only=value.is_read_only,
        config_source=value.source,
        is_sensitive=False,
    )
