"""Who leads once brokers have come or gone: nobody who lacks what was committed, unless that is asked for."""

from collections.abc import Collection

from hypothesis import given
from hypothesis import strategies as st

from penstock.base.types import NO_NODE, LeaderEpoch, NodeId
from penstock.cluster.election import Standing, elect, elect_preferred, is_unclean
from penstock.cluster.image import PartitionState

NODES = [NodeId(number) for number in range(1, 6)]


def state(replicas: list[int], isr: list[int], leader: int, epoch: int = 3) -> PartitionState:
    """In sync are brokers of epoch 1."""
    nodes = tuple(map(NodeId, replicas)), tuple(map(NodeId, isr))
    return PartitionState(0, *nodes, NodeId(leader), LeaderEpoch(epoch), 8, isr_epochs=(1,) * len(isr))


def there(fit: Collection[int], stopping: Collection[int] = (), returned: Collection[int] = ()) -> Standing:
    """Brokers that have been there all the time, and such as were away."""
    epochs = {NodeId(node): 1 for node in fit} | {NodeId(node): 2 for node in returned}
    return Standing(epochs, {NodeId(node): 1 for node in stopping})


@st.composite
def states(draw: st.DrawFn) -> PartitionState:
    replicas = draw(st.lists(st.sampled_from(NODES), min_size=1, max_size=4, unique=True))
    isr = draw(st.lists(st.sampled_from(replicas), min_size=1, unique=True))
    leader = draw(st.sampled_from([*isr, NO_NODE]))
    drawn = state(list(replicas), list(isr), leader)
    return drawn if draw(st.booleans()) else drawn._replace(isr_epochs=())


@st.composite
def standings(draw: st.DrawFn) -> Standing:
    kinds = draw(st.lists(st.sampled_from(["away", "fit", "stopping", "returned"]), min_size=5, max_size=5))
    of = {kind: [node for node, is_kind in zip(NODES, kinds, strict=True) if is_kind == kind] for kind in set(kinds)}
    return there(of.get("fit", ()), of.get("stopping", ()), of.get("returned", ()))


def test_the_first_replica_in_sync_takes_over() -> None:
    after = elect(state([1, 2, 3], [3, 1, 2], leader=1), there([2, 3]))
    assert (after.leader, after.isr, after.leader_epoch, after.partition_epoch) == (2, (3, 2), 4, 9)


def test_a_leader_that_stays_keeps_its_epoch_and_loses_a_dead_follower() -> None:
    after = elect(state([1, 2, 3], [1, 2, 3], leader=1), there([1, 2]))
    assert (after.leader, after.isr, after.leader_epoch, after.partition_epoch) == (1, (1, 2), 3, 9)


def test_rule_9_without_a_replica_in_sync_nobody_leads_and_the_last_ones_are_remembered() -> None:
    after = elect(state([1, 2, 3], [1], leader=1), there([2, 3]))
    assert (after.leader, after.isr, after.leader_epoch) == (NO_NODE, (1,), 4)
    again = elect(after, there([2, 3], returned=[1]))
    assert (again.leader, again.isr, again.isr_epochs, again.leader_epoch) == (1, (1,), (2,), 5)


def test_rule_9_an_unclean_leader_is_the_only_one_in_sync_and_can_be_told() -> None:
    before = state([1, 2, 3], [1], leader=1)
    after = elect(before, there([3]), unclean=True)
    assert (after.leader, after.isr, after.leader_epoch, after.is_recovering) == (3, (3,), 4, True)
    assert is_unclean(before, after)
    clean = elect(before, there([], returned=[1, 2]), unclean=True)
    assert (clean.leader, clean.is_recovering, is_unclean(before, clean)) == (1, False, False)


def test_a_broker_that_is_about_to_stop_hands_over() -> None:
    after = elect(state([1, 2, 3], [1, 2, 3], leader=1), there([2, 3], stopping=[1]))
    assert (after.leader, after.isr) == (2, (2, 3))
    after = elect(state([1, 2], [1, 2], leader=1), there([1], stopping=[2]))
    assert (after.leader, after.isr, after.leader_epoch) == (1, (1,), 3)


def test_a_broker_that_is_about_to_stop_leads_what_nobody_else_can() -> None:
    before = state([1, 2], [1], leader=1)
    assert elect(before, there([2], stopping=[1])) is before
    assert elect(before, there([2], stopping=[1]), unclean=True) is before
    assert elect(state([1, 2], [1, 2], leader=1), there([], stopping=[1, 2])).isr == (1,)
    assert elect(before, there([2])).leader == NO_NODE


def test_rule_10_a_leader_that_was_away_gives_way_to_who_was_there() -> None:
    after = elect(state([1, 2, 3], [1, 2, 3], leader=1), there([2, 3], returned=[1]))
    assert (after.leader, after.isr, after.leader_epoch) == (2, (2, 3), 4)


def test_rule_2_a_leader_that_was_away_and_is_the_only_one_leads_in_a_new_epoch() -> None:
    after = elect(state([1, 2, 3], [1, 2], leader=1), there([3], returned=[1, 2]))
    assert (after.leader, after.isr, after.isr_epochs, after.leader_epoch) == (1, (1,), (2,), 4)


def test_the_only_replica_goes_on_where_it_was() -> None:
    before = state([1], [1], leader=1)
    assert elect(before, there([], returned=[1])) is before


def test_the_preferred_replica_leads_if_it_is_in_sync() -> None:
    before = state([1, 2, 3], [2, 1], leader=2)
    assert elect_preferred(before, there(NODES)).leader == 1
    assert elect_preferred(before, there([2])) is before
    assert elect_preferred(before, there([2], stopping=[1])) is before
    assert elect_preferred(before, there([2], returned=[1])) is before
    assert elect_preferred(state([3, 2, 1], [2, 1], leader=2), there(NODES)).leader == 2


@given(states(), standings())
def test_whoever_leads_was_in_sync_and_is_there(before: PartitionState, brokers: Standing) -> None:
    after = elect(before, brokers)
    assert after.isr
    assert set(after.isr) <= set(before.isr) <= set(after.replicas)
    assert after.leader == NO_NODE or after.leader in after.isr
    fit = set(brokers.fit) & set(before.isr)
    assert after.leader in fit or not {node_id for node_id in fit if brokers.fit[node_id] == 1}
    assert after.leader in fit or after.leader == before.leader in brokers.stopping or after.leader == NO_NODE
    assert after.leader != NO_NODE or not fit
    assert not is_unclean(before, after)


@given(states(), standings())
def test_unclean_is_only_what_could_not_be_clean(before: PartitionState, brokers: Standing) -> None:
    clean, after = elect(before, brokers), elect(before, brokers, unclean=True)
    assert after.isr
    assert after == clean or clean.leader == NO_NODE
    assert is_unclean(before, after) == (after != clean)
    assert after.leader == NO_NODE or after.leader in after.isr


@given(states(), standings(), st.booleans())
def test_epochs_tell_every_change(before: PartitionState, brokers: Standing, unclean: bool) -> None:
    after = elect(before, brokers, unclean=unclean)
    if after.leader != before.leader:
        assert after.leader_epoch > before.leader_epoch
    if before.leader in brokers.fit and before.isr_epochs and len(before.replicas) > 1:
        is_away = brokers.fit[before.leader] != 1
        assert (after.leader_epoch > before.leader_epoch) == is_away  # Also if it is the leader once more.
    assert (after.partition_epoch > before.partition_epoch) == (after != before)
    assert after.leader_epoch >= before.leader_epoch
    assert elect(after, brokers, unclean=unclean) is after
    if after.isr_epochs:
        assert len(after.isr_epochs) == len(after.isr)
