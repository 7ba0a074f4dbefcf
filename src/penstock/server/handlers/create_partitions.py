"""CreatePartitions: give topics more partitions. `count` is the total that a topic is to have.

Keys hash to other partitions afterwards, which is the client's to know. `timeout_ms` is not looked at: the reply leaves
when the controller has them.
"""

from penstock.cluster.topic_plan import NewPartitions
from penstock.server.api import ApiKey, RequestHeader, handler
from penstock.server.context import Context
from penstock.wire.codec import Struct


@handler(ApiKey.CREATE_PARTITIONS, versions=range(4), is_at_controller=True)
async def create_partitions(context: Context, header: RequestHeader, request: Struct) -> Struct:
    topics = [
        NewPartitions(
            name=topic.name,
            total_count=topic.count,
            assignment=None if topic.assignments is None else [item.broker_ids for item in topic.assignments],
        )
        for topic in request.topics
    ]
    results = await context.controller.create_partitions(topics, validate_only=request.validate_only)
    return Struct(
        results=[Struct(name=result.name, error_code=result.code, error_message=result.message) for result in results]
    )
