"""The assignors: everything is assigned once, evenly, and what can stay stays."""

import time
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.coordinator.group.consumer.assignment import partition_count
from penstock.coordinator.group.consumer.assignors.by_name import ASSIGNORS
from penstock.coordinator.group.consumer.assignors.range import assign_range
from penstock.coordinator.group.consumer.assignors.spec import MemberSpec, PartitionCounts, Targets
from penstock.coordinator.group.consumer.assignors.uniform import assign_uniform

T, U, V = UUID(int=1), UUID(int=2), UUID(int=3)
SECONDS_MAX = 0.5  # For 1,000 members and 10,000 partitions; measured are 0.03 s.


def members(*names: str, topics: frozenset[UUID] = frozenset({T})) -> list[MemberSpec]:
    return [MemberSpec(name, None, topics, {}) for name in names]


def again(specs: list[MemberSpec], targets: Targets) -> list[MemberSpec]:
    return [spec._replace(target=targets.get(spec.member_id, {})) for spec in specs]


def moved(before: Targets, after: Targets) -> int:
    """Partitions that a member has now, and another member that is still there had before."""
    had = {(t, p): name for name, target in before.items() for t, numbers in target.items() for p in numbers}
    has = {(t, p): name for name, target in after.items() for t, numbers in target.items() for p in numbers}
    return sum(had.get(place, name) not in (name, None) and had[place] in after for place, name in has.items())


counts_of = st.fixed_dictionaries({T: st.integers(0, 12), U: st.integers(0, 12), V: st.integers(0, 5)})
subscriptions = st.sets(st.sampled_from([T, U, V]), min_size=1).map(frozenset)


@given(counts_of, st.lists(subscriptions, min_size=1, max_size=6), st.sampled_from(sorted(ASSIGNORS)))
def test_every_partition_that_is_subscribed_to_is_assigned_once_to_a_subscriber(
    counts: PartitionCounts, topics: list[frozenset[UUID]], name: str
) -> None:
    specs = [MemberSpec(f"m{number}", None, one, {}) for number, one in enumerate(topics)]
    targets = ASSIGNORS[name](specs, counts)
    assert targets.keys() == {spec.member_id for spec in specs}
    assigned = [(t, p) for target in targets.values() for t, numbers in target.items() for p in numbers]
    subscribed = frozenset().union(*topics)
    assert sorted(assigned) == sorted((t, p) for t in subscribed for p in range(counts[t]))
    for spec in specs:
        assert targets[spec.member_id].keys() <= spec.topic_ids
        assert all(targets[spec.member_id].values()), "a topic without partitions"


@given(counts_of, st.integers(1, 7), st.integers(0, 6))
def test_uniform_is_even_and_moves_no_more_than_it_must(counts: PartitionCounts, number: int, gone: int) -> None:
    topics = frozenset({T, U, V})
    specs = members(*"abcdefg"[:number], topics=topics)
    first = assign_uniform(specs, counts)
    sizes = [partition_count(target) for target in first.values()]
    assert max(sizes) - min(sizes) <= 1
    assert assign_uniform(again(specs, first), counts) == first, "nothing changed"

    left = [spec for position, spec in enumerate(again(specs, first)) if position != gone]
    if left:
        assert moved(first, assign_uniform(left, counts)) == 0, "only what was left behind moves"
    joined = again([*specs, *members("new", topics=topics)], first)
    second = assign_uniform(joined, counts)
    assert moved(first, second) == partition_count(second["new"]), "only what the new one gets moves"


@given(counts_of, st.lists(subscriptions, min_size=2, max_size=6))
def test_uniform_leaves_no_move_that_would_make_it_more_even(
    counts: PartitionCounts, topics: list[frozenset[UUID]]
) -> None:
    specs = [MemberSpec(f"m{number}", None, one, {}) for number, one in enumerate(topics)]
    targets = assign_uniform(specs, counts)
    sizes = {name: partition_count(target) for name, target in targets.items()}
    for spec in specs:
        for topic_id in targets[spec.member_id]:
            others = [other.member_id for other in specs if topic_id in other.topic_ids]
            assert all(sizes[spec.member_id] - sizes[other] < 2 for other in others)
    assert assign_uniform(again(specs, targets), counts) == targets


def test_uniform_takes_a_partition_that_two_claim_from_one_of_them() -> None:
    specs = [spec._replace(target={T: frozenset({0, 1, 2, 3})}) for spec in members("a", "b")]
    targets = assign_uniform(specs, {T: 4})
    assert sorted([*targets["a"][T], *targets["b"][T]]) == [0, 1, 2, 3]


def test_uniform_forgets_partitions_and_topics_that_are_gone() -> None:
    specs = [spec._replace(target={T: frozenset({0, 9}), U: frozenset({0})}) for spec in members("a")]
    assert assign_uniform(specs, {T: 2}) == {"a": {T: frozenset({0, 1})}}


def test_range_gives_runs_and_the_same_ones_of_equal_topics() -> None:
    targets = assign_range(members("b", "a", "c", topics=frozenset({T, U})), {T: 7, U: 7})
    assert targets["a"] == {T: frozenset({0, 1, 2}), U: frozenset({0, 1, 2})}
    assert targets["b"] == {T: frozenset({3, 4}), U: frozenset({3, 4})}
    assert targets["c"] == {T: frozenset({5, 6}), U: frozenset({5, 6})}


def test_range_orders_static_members_by_their_instance() -> None:
    topics = frozenset({T})
    specs = [MemberSpec("z", "1", topics, {}), MemberSpec("a", "2", topics, {})]
    assert assign_range(specs, {T: 2}) == {"z": {T: frozenset({0})}, "a": {T: frozenset({1})}}


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
@pytest.mark.parametrize("topic_count", [1, 100])
def test_a_large_group_is_assigned_in_a_moment(name: str, topic_count: int) -> None:
    counts = {UUID(int=number): 10_000 // topic_count for number in range(topic_count)}
    specs = members(*(f"m{number}" for number in range(1_000)), topics=frozenset(counts))
    specs = again(specs, ASSIGNORS[name](specs, counts))[1:]
    before = time.thread_time()
    ASSIGNORS[name](specs, counts)
    assert time.thread_time() - before < SECONDS_MAX
