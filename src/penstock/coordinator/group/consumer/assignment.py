"""Which partitions: topic ids to partition numbers. An assignment is a value, shared and never changed."""

from collections.abc import Iterable, Mapping
from uuid import UUID

Assignment = Mapping[UUID, frozenset[int]]  # No topic is without partitions.

NOTHING: Assignment = {}


def assignment_of(partitions: Iterable[tuple[UUID, int]]) -> Assignment:
    topics: dict[UUID, set[int]] = {}
    for topic_id, partition in partitions:
        topics.setdefault(topic_id, set()).add(partition)
    return {topic_id: frozenset(numbers) for topic_id, numbers in topics.items()}


def partition_count(assignment: Assignment) -> int:
    return sum(map(len, assignment.values()))


def is_within(inner: Assignment, outer: Assignment) -> bool:
    """Whether `outer` has every partition of `inner`."""
    return all(numbers <= outer.get(topic_id, frozenset()) for topic_id, numbers in inner.items())


def overlap(one: Assignment, other: Assignment) -> bool:
    return any(not numbers.isdisjoint(other.get(topic_id, ())) for topic_id, numbers in one.items())
