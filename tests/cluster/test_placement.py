from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.base.types import NodeId
from penstock.cluster.placement import place

brokers = st.sets(st.integers(0, 10_000), min_size=1, max_size=12).map(lambda ids: [NodeId(i) for i in ids])


def test_the_picture_in_the_module() -> None:
    placed = place(dict.fromkeys(map(NodeId, (4, 2, 3, 1))), 9, 2)
    assert placed == [(1, 2), (2, 3), (3, 4), (4, 1), (1, 3), (2, 4), (3, 1), (4, 2), (1, 4)]
    placed = place({NodeId(1): "a", NodeId(2): "a", NodeId(3): "b", NodeId(4): "b"}, 9, 2)
    assert placed == [(1, 3), (3, 2), (2, 4), (4, 1), (1, 4), (3, 1), (2, 3), (4, 2), (1, 4)]


@given(brokers, st.integers(1, 200), st.integers(1, 12), st.integers(0, 1000))
def test_replicas_differ_and_exist(nodes: list[NodeId], partitions: int, factor: int, first: int) -> None:
    factor = min(factor, len(nodes))
    placed = place(dict.fromkeys(nodes), partitions, factor, first)
    assert len(placed) == partitions
    for replicas in placed:
        assert len(replicas) == len(set(replicas)) == factor
        assert set(replicas) <= set(nodes)


@given(brokers, st.integers(1, 200), st.integers(0, 1000))
def test_leaders_are_spread_to_within_one(nodes: list[NodeId], partitions: int, first: int) -> None:
    leaders = Counter(replicas[0] for replicas in place(dict.fromkeys(nodes), partitions, 1, first))
    counts = [leaders[node] for node in nodes]
    assert max(counts) - min(counts) <= 1


@given(brokers, st.integers(1, 12))
def test_replicas_are_even_after_whole_rounds(nodes: list[NodeId], factor: int) -> None:
    factor = min(factor, len(nodes))
    rounds = max(1, len(nodes) - 1)
    load = Counter(node for replicas in place(dict.fromkeys(nodes), len(nodes) * rounds, factor) for node in replicas)
    assert len(set(load.values())) == 1


racks = st.dictionaries(
    st.integers(0, 100).map(NodeId), st.sampled_from(["a", "b", "c", "d", None]), min_size=1, max_size=12
)


@given(racks, st.integers(1, 60), st.integers(1, 6), st.integers(0, 100))
def test_no_rack_has_two_replicas_while_another_has_none(
    brokers_in: dict[NodeId, str | None], partitions: int, factor: int, first: int
) -> None:
    factor = min(factor, len(brokers_in))
    sizes = Counter(brokers_in.values())
    for replicas in place(brokers_in, partitions, factor, first):
        assert len(replicas) == len(set(replicas)) == factor
        used = Counter(brokers_in[node] for node in replicas)
        for rack, count in used.items():
            for other, size in sizes.items():
                assert count <= used[other] + 1 or used[other] == size, (rack, other)


@given(racks, st.integers(1, 60), st.integers(1, 6), st.integers(0, 100))
def test_leaders_are_even_with_racks_too(
    brokers_in: dict[NodeId, str | None], partitions: int, factor: int, first: int
) -> None:
    placed = place(brokers_in, partitions, min(factor, len(brokers_in)), first)
    leaders = Counter(replicas[0] for replicas in placed)
    counts = [leaders[node] for node in brokers_in]
    assert max(counts) - min(counts) <= 1


@given(st.integers(2, 4), st.integers(1, 4), st.integers(1, 5))
def test_replicas_are_even_in_racks_of_one_size(rack_count: int, size: int, factor: int) -> None:
    brokers_in = {NodeId(number): str(number % rack_count) for number in range(rack_count * size)}
    count = len(brokers_in)
    placed = place(brokers_in, count * max(1, count - 1), min(factor, count))
    load = Counter(node for replicas in placed for node in replicas)
    assert len(set(load.values())) == 1
