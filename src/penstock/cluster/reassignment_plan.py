"""Moving partitions to other brokers while they are in use (KIP-455): begin, cancel, and when it is done.

Pure: an image and commands in; store writes and one result per partition out. While a partition moves it has the
replicas of both ends, the target first; once everybody of the target is in sync, the others go.

    1,2,3 to 3,4:   replicas 3,4,1,2   adding 4   removing 1,2   then, with 3 and 4 in sync:   replicas 3,4
"""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.base.errors import ErrorCode, Refused
from penstock.base.types import NodeId, TopicPartition
from penstock.cluster.election import with_replicas
from penstock.cluster.image import ClusterImage, PartitionState
from penstock.cluster.plan import Plan, change_state
from penstock.cluster.topic_plan import checked_replicas


class Reassign(NamedTuple):
    partition: TopicPartition
    replicas: Sequence[int] | None  # None: stop, and go back to where it was.


class ReassignResult(NamedTuple):
    partition: TopicPartition
    code: ErrorCode = ErrorCode.none
    message: str | None = None


def plan_reassign(
    image: ClusterImage, commands: Sequence[Reassign], *, allow_factor_change: bool = True
) -> Plan[ReassignResult]:
    """Partitions that begin to move or stop it, and refused ones."""
    plan: Plan[ReassignResult] = Plan()
    changed: dict[TopicPartition, PartitionState] = {}  # Of a partition that is in the request twice the last counts.
    for command in commands:
        partition = command.partition
        before = image.partition(partition)
        try:
            if before is None:
                raise Refused(ErrorCode.unknown_topic_or_partition, "There is no such partition")
            state = changed.get(partition, before)
            after = _reverted(state) if command.replicas is None else _begun(image, state, command.replicas)
            if not allow_factor_change and len(_target(after)) != len(_original(before)):
                raise Refused(
                    ErrorCode.invalid_replication_factor, f"The partition has {len(_original(before))} replicas"
                )
        except Refused as error:
            plan.results.append(ReassignResult(partition, error.code, error.message))
            continue
        if after is not state:
            changed[partition] = after
            change_state(plan, partition.topic, before, after)
        plan.results.append(ReassignResult(partition))
    return plan


def completed(state: PartitionState) -> PartitionState:
    """The partition on its target, if it moves and everybody there is in sync; else as it is."""
    if not state.adding and not state.removing:
        return state
    target = _target(state)
    return with_replicas(state, target) if set(target) <= set(state.isr) else state


def _begun(image: ClusterImage, state: PartitionState, nodes: Sequence[int]) -> PartitionState:
    target, original = checked_replicas(image, nodes), _original(state)
    adding = tuple(node_id for node_id in target if node_id not in original)
    removing = tuple(node_id for node_id in original if node_id not in target)
    return _moved(state, target + removing, adding, removing)


def _reverted(state: PartitionState) -> PartitionState:
    if not state.adding and not state.removing:
        raise Refused(ErrorCode.no_reassignment_in_progress, "The partition is not being reassigned")
    return _moved(state, _original(state), (), ())


def _moved(
    state: PartitionState, replicas: tuple[NodeId, ...], adding: tuple[NodeId, ...], removing: tuple[NodeId, ...]
) -> PartitionState:
    if (replicas, adding, removing) == (state.replicas, state.adding, state.removing):
        return state
    if not set(replicas) & set(state.isr):
        # Those that were about to come are the only ones who have everything.
        raise Refused(ErrorCode.invalid_replica_assignment, "No replica would be left that is in sync")
    return with_replicas(state, replicas, adding, removing)


def _target(state: PartitionState) -> tuple[NodeId, ...]:
    return tuple(node_id for node_id in state.replicas if node_id not in state.removing)


def _original(state: PartitionState) -> tuple[NodeId, ...]:
    return tuple(node_id for node_id in state.replicas if node_id not in state.adding)
