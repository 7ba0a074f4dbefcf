"""Who leads a partition, and who is left in sync, once brokers have come or gone. Pure: the controller writes it down.

The leader is the first replica, in order of preference, that is in sync and fit to lead. Nobody else has all that was
committed; with `unclean` any replica will do, and what it lacks is lost. The in-sync replicas (ISR) are never emptied:
the last ones to go are the only ones who may lead again.
"""

from collections.abc import Collection

from penstock.base.types import NO_NODE, LeaderEpoch, NodeId
from penstock.cluster.image import PartitionState


def elect(state: PartitionState, fit: Collection[NodeId], *, unclean: bool = False) -> PartitionState:
    """The partition when only the brokers in `fit` may lead and be in sync: alive, and not about to stop."""
    isr = tuple(node_id for node_id in state.isr if node_id in fit)
    if state.leader in isr:
        return _changed(state, state.leader, isr)
    leader = _first(state.replicas, isr)
    if leader != NO_NODE:
        return _changed(state, leader, isr)
    if unclean and (leader := _first(state.replicas, fit)) != NO_NODE:
        return _changed(state, leader, (leader,))
    return _changed(state, NO_NODE, state.isr)


def elect_preferred(state: PartitionState, fit: Collection[NodeId]) -> PartitionState:
    """The partition led by its first replica, if that is in sync and fit; else as it is."""
    preferred = state.replicas[0]
    if preferred not in state.isr or preferred not in fit:
        return state
    return _changed(state, preferred, state.isr)


def is_unclean(before: PartitionState, after: PartitionState) -> bool:
    """Whether an election gave up what only the former in-sync replicas have."""
    return after.leader != NO_NODE and after.leader not in before.isr


def _first(replicas: Collection[NodeId], candidates: Collection[NodeId]) -> NodeId:
    return next((node_id for node_id in replicas if node_id in candidates), NO_NODE)


def _changed(state: PartitionState, leader: NodeId, isr: tuple[NodeId, ...]) -> PartitionState:
    if (leader, isr) == (state.leader, state.isr):
        return state
    # Every change of the leader begins an epoch, also to nobody: who led must not go on in the old one.
    leader_epoch = state.leader_epoch if leader == state.leader else LeaderEpoch(state.leader_epoch + 1)
    return state._replace(leader=leader, isr=isr, leader_epoch=leader_epoch, partition_epoch=state.partition_epoch + 1)
