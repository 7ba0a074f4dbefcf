"""Who leads a partition, and who is left in sync, once brokers have come or gone. Pure: the controller writes it down.

The leader is the first replica, in order of preference, that is in sync and fit to lead. Nobody else has all that was
committed; with `unclean` any replica will do, and what it lacks is lost. The in-sync replicas (ISR) are never emptied:
the last ones to go are the only ones who may lead again.

A broker that was away and is back has another epoch. What it had not yet synced may be gone, and others may have it: it
leaves the ISR like one that is still away, and if it is the only one who can lead, then in a new leader epoch, so that
the others cut what they have too much (KIP-279).
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from penstock.base.types import NO_NODE, LeaderEpoch, NodeId
from penstock.cluster.image import BrokerRegistration, PartitionState

Epochs = Mapping[NodeId, int]  # Brokers, each with the epoch of its registration.


class Standing(NamedTuple):
    """The brokers that are there."""

    fit: Epochs  # May lead, and be in sync.
    stopping: Epochs  # Are about to go: they lead only what nobody else can.


def standing(brokers: Mapping[NodeId, BrokerRegistration]) -> Standing:
    fit = {node_id: broker.epoch for node_id, broker in brokers.items() if not broker.is_stopping}
    return Standing(fit, {node_id: broker.epoch for node_id, broker in brokers.items() if broker.is_stopping})


def elect(state: PartitionState, brokers: Standing, *, unclean: bool = False) -> PartitionState:
    """The partition with these brokers; `state` itself if nothing is to be changed."""
    fit, stopping = brokers
    if state.leader in fit and tuple(map(fit.get, state.isr)) == state.isr_epochs:
        return state  # So with nearly all partitions at nearly all times.
    in_sync = _in_sync(state)
    isr = {node_id: epoch for node_id, epoch in in_sync.items() if _is_same(state, fit.get(node_id), epoch)}
    if isr:
        leader = state.leader if state.leader in isr else _first(state.replicas, isr)
        return _changed(state, leader, isr)
    if state.leader != NO_NODE and _is_same(state, stopping.get(state.leader), in_sync[state.leader]):
        return _changed(state, state.leader, {state.leader: stopping[state.leader]})
    returned = _first(state.replicas, [node_id for node_id in in_sync if node_id in fit])
    if returned != NO_NODE:
        return _changed(state, returned, {returned: fit[returned]})
    if unclean and (leader := _first(state.replicas, fit)) != NO_NODE:
        return _changed(state, leader, {leader: fit[leader]})._replace(is_recovering=True)
    return _changed(state, NO_NODE, in_sync)


def elect_preferred(state: PartitionState, brokers: Standing) -> PartitionState:
    """The partition led by its first replica, if that is in sync and fit; else as it is."""
    preferred, in_sync = state.replicas[0], _in_sync(state)
    if preferred not in in_sync or not _is_same(state, brokers.fit.get(preferred), in_sync[preferred]):
        return state
    return _changed(state, preferred, in_sync)


def with_replicas(
    state: PartitionState,
    replicas: tuple[NodeId, ...],
    adding: tuple[NodeId, ...] = (),
    removing: tuple[NodeId, ...] = (),
) -> PartitionState:
    """The partition on other replicas, of which one must be in sync. A leader that is not among them gives way."""
    in_sync = {node_id: epoch for node_id, epoch in _in_sync(state).items() if node_id in replicas}
    assert in_sync, f"nobody in sync would be left: {state=} {replicas=}"
    leader = state.leader if state.leader in (NO_NODE, *in_sync) else _first(replicas, in_sync)
    seated = _changed(state, leader, in_sync)
    return seated._replace(
        replicas=replicas, adding=adding, removing=removing, partition_epoch=state.partition_epoch + 1
    )


def is_unclean(before: PartitionState, after: PartitionState) -> bool:
    """Whether an election gave up what only the former in-sync replicas have."""
    return after.leader != NO_NODE and after.leader not in before.isr


UNKNOWN_EPOCH = -1  # In states that were written before epochs were kept.


def _in_sync(state: PartitionState) -> dict[NodeId, int]:
    if not state.isr_epochs:
        return dict.fromkeys(state.isr, UNKNOWN_EPOCH)
    return dict(zip(state.isr, state.isr_epochs, strict=True))


def _is_same(state: PartitionState, epoch: int | None, epoch_in_sync: int) -> bool:
    """Whether a broker, registered with `epoch` if at all, has been there ever since it came into sync."""
    if epoch is None:
        return False
    return epoch == epoch_in_sync or epoch_in_sync == UNKNOWN_EPOCH or len(state.replicas) == 1


def _first(replicas: Collection[NodeId], candidates: Collection[NodeId]) -> NodeId:
    return next((node_id for node_id in replicas if node_id in candidates), NO_NODE)


def _changed(state: PartitionState, leader: NodeId, in_sync: Epochs) -> PartitionState:
    isr = tuple(in_sync)
    isr_epochs = () if UNKNOWN_EPOCH in in_sync.values() else tuple(in_sync.values())
    if (leader, isr, isr_epochs) == (state.leader, state.isr, state.isr_epochs):
        return state
    # Every change of the leader begins an epoch, also to nobody: who led must not go on in the old one. Nor must who
    # led and was away.
    is_same = leader == state.leader and (
        leader == NO_NODE or not state.isr_epochs or in_sync[leader] == state.isr_epochs[state.isr.index(leader)]
    )
    return state._replace(
        leader=leader,
        isr=isr,
        isr_epochs=isr_epochs,
        leader_epoch=state.leader_epoch if is_same else LeaderEpoch(state.leader_epoch + 1),
        partition_epoch=state.partition_epoch + 1,
    )
