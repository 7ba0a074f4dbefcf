from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.base.types import NodeId
from penstock.cluster.placement import place

brokers = st.sets(st.integers(0, 10_000), min_size=1, max_size=12).map(lambda ids: [NodeId(i) for i in ids])


def test_the_picture_in_the_module() -> None:
    placed = place([NodeId(4), NodeId(2), NodeId(3), NodeId(1)], 9, 2)
    assert placed == [(1, 2), (2, 3), (3, 4), (4, 1), (1, 3), (2, 4), (3, 1), (4, 2), (1, 4)]


@given(brokers, st.integers(1, 200), st.integers(1, 12), st.integers(0, 1000))
def test_replicas_differ_and_exist(nodes: list[NodeId], partitions: int, factor: int, first: int) -> None:
    factor = min(factor, len(nodes))
    placed = place(nodes, partitions, factor, first)
    assert len(placed) == partitions
    for replicas in placed:
        assert len(replicas) == len(set(replicas)) == factor
        assert set(replicas) <= set(nodes)


@given(brokers, st.integers(1, 200), st.integers(0, 1000))
def test_leaders_are_spread_to_within_one(nodes: list[NodeId], partitions: int, first: int) -> None:
    leaders = Counter(replicas[0] for replicas in place(nodes, partitions, 1, first))
    counts = [leaders[node] for node in nodes]
    assert max(counts) - min(counts) <= 1


@given(brokers, st.integers(1, 12))
def test_replicas_are_even_after_whole_rounds(nodes: list[NodeId], factor: int) -> None:
    factor = min(factor, len(nodes))
    rounds = max(1, len(nodes) - 1)
    load = Counter(node for replicas in place(nodes, len(nodes) * rounds, factor) for node in replicas)
    assert len(set(load.values())) == 1
