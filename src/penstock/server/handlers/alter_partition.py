"""AlterPartition: a leader asks the controller for other in-sync replicas (KIP-497). From brokers only.

v3 carries the epoch of each broker (KIP-903), so that one which registered anew since it was seen to be in sync is
refused with INELIGIBLE_REPLICA; v2 does not, and they are not compared. The reply leaves when this broker's image has
the change.
"""

from uuid import UUID

from penstock.base.errors import ErrorCode, Refused
from penstock.base.types import LeaderEpoch, NodeId
from penstock.cluster.alter_partition_plan import UNCHECKED_EPOCH, AlterPartition, AlterPartitionResult
from penstock.server.api import ApiKey, RequestHeader, handler
from penstock.server.authentication import require_broker
from penstock.server.context import Context
from penstock.wire.codec import Struct

EPOCHS_VERSION = 3


@handler(ApiKey.ALTER_PARTITION, versions=range(2, 4), is_advertised=False)
async def alter_partition(context: Context, header: RequestHeader, request: Struct) -> Struct:
    image = context.metadata.image
    try:
        sender = require_broker(header.authentication, image)
        if sender.node_id != request.broker_id:
            raise Refused(ErrorCode.cluster_authorization_failed, "a broker can only ask for itself")
        if image.controller_id != context.config.node_id:
            raise Refused(ErrorCode.not_controller)
        results = await context.controller.alter_partitions(
            sender.node_id, request.broker_epoch, _changes(header, request)
        )
    except Refused as refused:
        return Struct(error_code=refused.code, topics=[])
    topics: dict[UUID, list[Struct]] = {}
    for result in results:
        topics.setdefault(result.topic_id, []).append(_partition(result))
    return Struct(
        error_code=ErrorCode.none,
        topics=[Struct(topic_id=topic_id, partitions=partitions) for topic_id, partitions in topics.items()],
    )


def _changes(header: RequestHeader, request: Struct) -> list[AlterPartition]:
    return [
        AlterPartition(
            topic.topic_id,
            partition.partition_index,
            LeaderEpoch(partition.leader_epoch),
            partition.partition_epoch,
            _isr(header, partition),
            is_recovering=partition.leader_recovery_state != 0,
        )
        for topic in request.topics
        for partition in topic.partitions
    ]


def _isr(header: RequestHeader, partition: Struct) -> list[tuple[NodeId, int]]:
    if header.version >= EPOCHS_VERSION:
        return [(NodeId(member.broker_id), member.broker_epoch) for member in partition.new_isr_with_epochs]
    return [(NodeId(node_id), UNCHECKED_EPOCH) for node_id in partition.new_isr]


def _partition(result: AlterPartitionResult) -> Struct:
    state = result.state
    if result.code is not ErrorCode.none or state is None:
        return Struct(
            partition_index=result.partition, error_code=result.code, leader_id=-1, leader_epoch=-1, partition_epoch=-1
        )
    return Struct(
        partition_index=result.partition,
        error_code=ErrorCode.none,
        leader_id=state.leader,
        leader_epoch=state.leader_epoch,
        isr=state.isr,
        leader_recovery_state=int(state.is_recovering),
        partition_epoch=state.partition_epoch,
    )
