"""AlterPartitionReassignments: move partitions to other brokers, or stop moving them (KIP-455).

Null replicas stop a move. v1 can forbid that the number of replicas changes (KIP-860). The reply leaves when the move
has begun; ListPartitionReassignments shows it until it is done. `timeout_ms` is not looked at.
"""

from penstock.base.errors import ErrorCode
from penstock.base.types import TopicPartition
from penstock.cluster.reassignment_plan import Reassign
from penstock.server.api import ApiKey, RequestHeader, handler
from penstock.server.context import Context
from penstock.wire.codec import Struct

FACTOR_CHANGE_VERSION = 1


@handler(ApiKey.ALTER_PARTITION_REASSIGNMENTS, versions=range(2), is_at_controller=True)
async def alter_partition_reassignments(context: Context, header: RequestHeader, request: Struct) -> Struct:
    allow_change = request.allow_replication_factor_change if header.version >= FACTOR_CHANGE_VERSION else True
    if context.metadata.image.controller_id != context.config.node_id:
        return Struct(
            allow_replication_factor_change=allow_change,
            error_code=ErrorCode.not_controller,
            error_message="This broker is not the controller",
            responses=[],
        )
    commands = [
        Reassign(TopicPartition(topic.name, partition.partition_index), partition.replicas)
        for topic in request.topics
        for partition in topic.partitions
    ]
    results = await context.controller.reassign_partitions(commands, allow_factor_change=allow_change)
    topics: dict[str, list[Struct]] = {}
    for result in results:
        topics.setdefault(result.partition.topic, []).append(
            Struct(partition_index=result.partition.partition, error_code=result.code, error_message=result.message)
        )
    return Struct(
        allow_replication_factor_change=allow_change,
        error_code=ErrorCode.none,
        error_message=None,
        responses=[Struct(name=name, partitions=partitions) for name, partitions in topics.items()],
    )
