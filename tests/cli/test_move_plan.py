"""Plans for brokers that come and go, over generated clusters."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.move_plan import (
    Layout,
    Partition,
    Racks,
    TooFewBrokers,
    plan_drain,
    plan_factor,
    plan_rebalance,
)


@st.composite
def clusters(draw: st.DrawFn, *, empty_brokers: int = 0) -> tuple[dict[Partition, tuple[int, ...]], Racks]:
    count = draw(st.integers(1, 7))
    with_racks = draw(st.booleans())
    nodes = range(1, count + 1 + draw(st.integers(0, empty_brokers)))
    racks = {node: draw(st.sampled_from("abc")) if with_racks else None for node in nodes}
    layout = {}
    for topic in draw(st.lists(st.sampled_from("tuvw"), unique=True, max_size=4)):
        factor = draw(st.integers(1, count))
        for number in range(draw(st.integers(1, 8))):
            order = draw(st.permutations(range(1, count + 1)))
            layout[Partition(topic, number)] = tuple(order[:factor])
    return layout, racks


def after(layout: Layout, plan: Layout) -> Layout:
    return {**layout, **plan}


def rack_count(replicas: tuple[int, ...], racks: Racks) -> int:
    return len({racks[node] or f"broker {node}" for node in replicas})


@given(clusters(), st.integers(1, 7))
def test_a_drain_leaves_nothing_behind(cluster: tuple[Layout, Racks], leaving: int) -> None:
    layout, racks = cluster
    staying = racks.keys() - {leaving}
    largest = max((len(replicas) for replicas in layout.values() if leaving in replicas), default=0)
    if largest > len(staying):
        with pytest.raises(TooFewBrokers, match=f"without broker {leaving} there are"):
            plan_drain(layout, racks, leaving)
        return
    plan = plan_drain(layout, racks, leaving)
    assert plan.keys() == {partition for partition, replicas in layout.items() if leaving in replicas}
    for partition, replicas in plan.items():
        before = layout[partition]
        assert leaving not in replicas
        assert len(set(replicas)) == len(replicas) == len(before)
        assert set(replicas) <= staying
        assert len(set(replicas) - set(before)) == 1  # Nothing else moves.
        possible = len({racks[node] or f"broker {node}" for node in staying})
        assert rack_count(replicas, racks) >= min(rack_count(before, racks), possible)


@given(clusters(empty_brokers=2))
def test_a_rebalance_evens_out_and_keeps_what_it_can(cluster: tuple[Layout, Racks]) -> None:
    layout, racks = cluster
    plan = plan_rebalance(layout, racks)
    result = after(layout, plan)
    assert result.keys() == layout.keys()
    counts = Counter(dict.fromkeys(racks, 0))
    before_counts = Counter(dict.fromkeys(racks, 0))
    moved = 0
    for partition, replicas in result.items():
        before = layout[partition]
        assert len(set(replicas)) == len(replicas) == len(before)
        assert set(replicas) <= racks.keys()
        assert rack_count(replicas, racks) >= rack_count(before, racks)
        counts.update(replicas)
        before_counts.update(before)
        moved += len(set(replicas) - set(before))
    assert max(counts.values()) - min(counts.values()) <= max(
        1, max(before_counts.values()) - min(before_counts.values())
    )
    if all(rack is None for rack in racks.values()):
        assert max(counts.values()) - min(counts.values()) <= 1
        # As few as can be: as many as brokers had too much.
        share, rest = divmod(sum(before_counts.values()), len(racks))
        too_many = sorted((count - share for count in before_counts.values()), reverse=True)
        fewest = sum(max(0, extra - (1 if place < rest else 0)) for place, extra in enumerate(too_many))
        assert moved == fewest
    assert plan_rebalance(result, racks) == {}


@given(clusters(empty_brokers=2))
def test_leaders_are_as_even_as_their_replicas_allow(cluster: tuple[Layout, Racks]) -> None:
    layout, racks = cluster
    result = after(layout, plan_rebalance(layout, racks))
    if all(len(replicas) == len(racks) for replicas in result.values()):
        leads = Counter(dict.fromkeys(racks, 0))
        leads.update(replicas[0] for replicas in result.values())
        assert max(leads.values()) - min(leads.values()) <= 1


@given(clusters(), st.integers(1, 8))
def test_a_replication_factor_is_reached_and_the_leader_stays(cluster: tuple[Layout, Racks], factor: int) -> None:
    layout, racks = cluster
    if factor > len(racks):
        with pytest.raises(TooFewBrokers, match="need"):
            plan_factor(layout, racks, factor, "t")
        return
    plan = plan_factor(layout, racks, factor, "t")
    for partition, replicas in after(layout, plan).items():
        before = layout[partition]
        if partition.topic != "t":
            assert replicas == before
            continue
        assert len(set(replicas)) == len(replicas) == factor
        assert replicas[0] == before[0]
        assert set(replicas) <= set(before) or set(replicas) >= set(before)


def test_a_new_broker_takes_its_share_of_each_topic() -> None:
    layout = {
        Partition(topic, number): ((number % 3) + 1, ((number + 1) % 3) + 1)
        for topic in ("t", "u")
        for number in range(12)
    }
    plan = plan_rebalance(layout, dict.fromkeys((1, 2, 3, 4)))
    result = after(layout, plan)
    for topic in ("t", "u"):
        on_four = [replicas for partition, replicas in result.items() if partition.topic == topic and 4 in replicas]
        assert len(on_four) == 6
    assert Counter(replicas[0] for replicas in result.values()) == {1: 6, 2: 6, 3: 6, 4: 6}


def test_a_replica_in_its_own_rack_is_replaced_in_that_rack_or_another_of_its_own() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    assert plan_drain({Partition("t", 0): (1, 3)}, racks, 3) == {Partition("t", 0): (1, 4)}
    # The partition would have both replicas in rack a: better than none.
    assert plan_drain({Partition("t", 0): (1, 3)}, {1: "a", 2: "a", 3: "b"}, 3) == {Partition("t", 0): (1, 2)}


def test_replicas_on_brokers_that_are_away_stay_there() -> None:
    layout = {Partition("t", number): (1, 9) for number in range(4)}
    result = after(layout, plan_rebalance(layout, {1: None, 2: None}))
    assert all(9 in replicas for replicas in result.values())
    assert Counter(replicas[0] for replicas in result.values()) == {1: 2, 2: 2}
