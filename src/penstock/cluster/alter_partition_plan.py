"""Leaders that ask for other in-sync replicas (KIP-497), and whether they may have them.

Pure: an image and what a broker asks in; store writes and one result per partition out. Checked in Kafka's order. The
sender must be the leader in the current epoch and know the current state, so what it asks for was decided from that.
"""

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from penstock.base.errors import ErrorCode, Refused
from penstock.base.types import LeaderEpoch, NodeId
from penstock.cluster.image import BrokerRegistration, ClusterImage, PartitionState, TopicImage
from penstock.cluster.plan import Plan, change_state

UNCHECKED_EPOCH = -1  # Of a broker, where the sender does not know it.


class AlterPartition(NamedTuple):
    topic_id: UUID
    partition: int
    leader_epoch: LeaderEpoch
    partition_epoch: int
    isr: Sequence[tuple[NodeId, int]]  # Brokers, each with the epoch by which the leader knows it.
    is_recovering: bool = False


class AlterPartitionResult(NamedTuple):
    topic_id: UUID
    partition: int
    code: ErrorCode = ErrorCode.none
    message: str | None = None
    state: PartitionState | None = None  # As it is now; None when refused.


def plan_alter_partitions(
    image: ClusterImage, sender: NodeId, sender_epoch: int, changes: Sequence[AlterPartition]
) -> Plan[AlterPartitionResult]:
    """Partitions changed and refused. Refused as a whole when the sender is not who it was."""
    broker = image.brokers.get(sender)
    if broker is None or broker.epoch != sender_epoch:
        raise Refused(ErrorCode.stale_broker_epoch, f"Broker {sender} is not registered with epoch {sender_epoch}")
    plan: Plan[AlterPartitionResult] = Plan()
    changed: dict[tuple[UUID, int], PartitionState] = {}  # So that a partition is not changed twice.
    for change in changes:
        key = change.topic_id, change.partition
        try:
            topic, before = _find(image, change)
            after = _altered(image, broker, changed.get(key, before), change)
        except Refused as error:
            plan.results.append(AlterPartitionResult(*key, error.code, error.message))
            continue
        changed[key] = after
        change_state(plan, topic.name, before, after)
        plan.results.append(AlterPartitionResult(*key, state=after))
    return plan


def _find(image: ClusterImage, change: AlterPartition) -> tuple[TopicImage, PartitionState]:
    topic = image.topic_by_id(change.topic_id)
    if topic is None:
        raise Refused(ErrorCode.unknown_topic_id, "There is no such topic")
    if not 0 <= change.partition < len(topic.partitions):
        raise Refused(ErrorCode.unknown_topic_or_partition, "There is no such partition")
    return topic, topic.partitions[change.partition]


def _altered(
    image: ClusterImage, sender: BrokerRegistration, state: PartitionState, change: AlterPartition
) -> PartitionState:
    if change.leader_epoch > state.leader_epoch or change.partition_epoch > state.partition_epoch:
        raise Refused(ErrorCode.not_controller, "The sender knows more than this broker, which may have been replaced")
    if change.leader_epoch < state.leader_epoch:
        raise Refused(ErrorCode.fenced_leader_epoch, f"The leader epoch is {state.leader_epoch}")
    if not state.is_led_by(sender):
        raise Refused(ErrorCode.invalid_request, f"Broker {sender.node_id} is not the leader")
    if change.partition_epoch < state.partition_epoch:
        raise Refused(ErrorCode.invalid_update_version, f"The partition epoch is {state.partition_epoch}")
    isr = tuple(node_id for node_id, _ in change.isr)
    if len(set(isr)) != len(isr) or not set(isr) <= set(state.replicas):
        raise Refused(ErrorCode.invalid_request, "The in-sync replicas are not replicas, each at most once")
    if state.leader not in isr:
        raise Refused(ErrorCode.invalid_request, "The leader is not among the in-sync replicas")
    if change.is_recovering and (len(isr) > 1 or not state.is_recovering):
        raise Refused(ErrorCode.invalid_request, "The leader cannot be recovering")
    for node_id, epoch in change.isr:
        if node_id != state.leader:
            _check_eligible(image, node_id, epoch)
    return state._replace(
        isr=isr,
        isr_epochs=tuple(image.brokers[node_id].epoch for node_id in isr),
        is_recovering=change.is_recovering,
        partition_epoch=state.partition_epoch + 1,
    )


def _check_eligible(image: ClusterImage, node_id: NodeId, epoch: int) -> None:
    broker = image.brokers.get(node_id)
    if broker is None:
        raise Refused(ErrorCode.ineligible_replica, f"Broker {node_id} is not there")
    if broker.is_stopping:
        raise Refused(ErrorCode.ineligible_replica, f"Broker {node_id} is about to stop")
    if epoch not in (broker.epoch, UNCHECKED_EPOCH):
        raise Refused(ErrorCode.ineligible_replica, f"Broker {node_id} has epoch {broker.epoch}, not {epoch}")
