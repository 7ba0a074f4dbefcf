"""Who leads once brokers have come or gone: nobody who lacks what was committed, unless that is asked for."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.base.types import NO_NODE, LeaderEpoch, NodeId
from penstock.cluster.election import elect, elect_preferred, is_unclean
from penstock.cluster.image import PartitionState

NODES = [NodeId(number) for number in range(1, 6)]


def state(replicas: list[int], isr: list[int], leader: int, epoch: int = 3) -> PartitionState:
    nodes = tuple(map(NodeId, replicas)), tuple(map(NodeId, isr))
    return PartitionState(0, *nodes, NodeId(leader), LeaderEpoch(epoch), 8)


@st.composite
def states(draw: st.DrawFn) -> PartitionState:
    replicas = draw(st.lists(st.sampled_from(NODES), min_size=1, max_size=4, unique=True))
    isr = draw(st.lists(st.sampled_from(replicas), min_size=1, unique=True))
    leader = draw(st.sampled_from([*isr, NO_NODE]))
    return state(list(replicas), list(isr), leader)


alive = st.frozensets(st.sampled_from(NODES))


def test_the_first_replica_in_sync_takes_over() -> None:
    after = elect(state([1, 2, 3], [3, 1, 2], leader=1), {NODES[1], NODES[2]})
    assert (after.leader, after.isr, after.leader_epoch, after.partition_epoch) == (2, (3, 2), 4, 9)


def test_a_leader_that_stays_keeps_its_epoch_and_loses_a_dead_follower() -> None:
    after = elect(state([1, 2, 3], [1, 2, 3], leader=1), {NODES[0], NODES[1]})
    assert (after.leader, after.isr, after.leader_epoch, after.partition_epoch) == (1, (1, 2), 3, 9)


def test_rule_9_without_a_replica_in_sync_nobody_leads_and_the_last_ones_are_remembered() -> None:
    after = elect(state([1, 2, 3], [1], leader=1), {NODES[1], NODES[2]})
    assert (after.leader, after.isr, after.leader_epoch) == (NO_NODE, (1,), 4)
    again = elect(after, {NODES[0], NODES[1], NODES[2]})
    assert (again.leader, again.isr, again.leader_epoch) == (1, (1,), 5)


def test_rule_9_an_unclean_leader_is_the_only_one_in_sync_and_can_be_told() -> None:
    before = state([1, 2, 3], [1], leader=1)
    after = elect(before, {NODES[2]}, unclean=True)
    assert (after.leader, after.isr, after.leader_epoch) == (3, (3,), 4)
    assert is_unclean(before, after)
    assert not is_unclean(before, elect(before, {NODES[0]}, unclean=True))


def test_the_preferred_replica_leads_if_it_is_in_sync() -> None:
    before = state([1, 2, 3], [2, 1], leader=2)
    assert elect_preferred(before, set(NODES)).leader == 1
    assert elect_preferred(before, {NODES[1]}) is before
    assert elect_preferred(state([3, 2, 1], [2, 1], leader=2), set(NODES)).leader == 2


@given(states(), alive)
def test_whoever_leads_is_in_sync_and_fit(before: PartitionState, fit: frozenset[NodeId]) -> None:
    after = elect(before, fit)
    assert set(after.isr) <= set(before.isr)
    assert after.isr
    assert after.leader == NO_NODE or (after.leader in after.isr and after.leader in fit)
    assert (after.leader == NO_NODE) == (not set(before.isr) & fit)
    assert not is_unclean(before, after)


@given(states(), alive, st.booleans())
def test_epochs_tell_every_change(before: PartitionState, fit: frozenset[NodeId], unclean: bool) -> None:
    after = elect(before, fit, unclean=unclean)
    assert (after.leader_epoch > before.leader_epoch) == (after.leader != before.leader)
    assert (after.partition_epoch > before.partition_epoch) == (after != before)
    assert elect(after, fit, unclean=unclean) is after
