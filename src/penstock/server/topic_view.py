"""Topics and partitions as Metadata and DescribeTopicPartitions show them."""

from collections.abc import Mapping
from typing import Any

from penstock.base.errors import ErrorCode
from penstock.base.types import NO_NODE, NodeId
from penstock.cluster.image import BrokerRegistration, PartitionState, TopicImage
from penstock.wire.codec import ZERO_UUID, Struct

NOT_ASKED = -(2**31)  # Authorized operations that nobody asked for.
# Bits by Kafka's AclOperation codes. Without ACLs everyone may do everything that the resource knows.
TOPIC_OPERATIONS = sum(1 << code for code in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS = sum(1 << code for code in (5, 7, 8, 9, 10, 11, 12))

Brokers = Mapping[NodeId, BrokerRegistration]


def partition_struct(state: PartitionState, brokers: Brokers, **more: Any) -> Struct:
    """A partition; LEADER_NOT_AVAILABLE with all that is known while its leader is away."""
    leader_there = state.leader in brokers
    return Struct(
        error_code=ErrorCode.none if leader_there else ErrorCode.leader_not_available,
        partition_index=state.partition,
        leader_id=state.leader if leader_there else NO_NODE,
        leader_epoch=state.leader_epoch,
        replica_nodes=state.replicas,
        isr_nodes=state.isr,
        offline_replicas=[node for node in state.replicas if node not in brokers],
        **more,
    )


def topic_struct(topic: TopicImage, partitions: list[Struct], include_operations: bool) -> Struct:
    return Struct(
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=partitions,
        topic_authorized_operations=TOPIC_OPERATIONS if include_operations else NOT_ASKED,
    )


def refused_topic_struct(code: ErrorCode, name: str | None, topic_id: Any = ZERO_UUID) -> Struct:
    return Struct(error_code=code, name=name, topic_id=topic_id, is_internal=False, partitions=())
