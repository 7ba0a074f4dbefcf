"""Uniform among members that subscribe to different topics: as even as the subscriptions allow, and sticky.

First everyone keeps what it has and still subscribes to. What is left goes to the subscriber that has least, topics
with few subscribers first, as those have no choice. Then partitions move from a member to another that subscribes to
their topic and has at least two less, until there is no such pair. Each move makes the sum of the squared sizes
smaller, so this ends; how far it goes at most is bounded all the same.

Topics with the same subscribers are one class: what is looked at is a class, not a topic.
"""

import heapq
from collections import defaultdict
from collections.abc import Sequence
from uuid import UUID

from penstock.coordinator.group.consumer.assignors.spec import MemberSpec, PartitionCounts, Targets

PASSES_MAX = 32  # Over all classes. Each pass makes one class even; a few passes settle any but a contrived group.

_Partition = tuple[UUID, int]


class _Class:
    """Topics that the same members subscribe to."""

    def __init__(self, subscribers: tuple[int, ...]) -> None:
        self.subscribers = subscribers
        self.topic_ids: list[UUID] = []
        self.held: dict[int, list[_Partition]] = {number: [] for number in subscribers}


def assign_mixed(members: Sequence[MemberSpec], counts: PartitionCounts) -> Targets:
    ordered = sorted(members)
    sizes = [0] * len(ordered)
    classes = _classes(ordered)
    for one in classes:
        _fill(one, _keep(one, ordered, counts, sizes), sizes)
    for _ in range(PASSES_MAX):
        moves = [_even_out(one, sizes) for one in classes]
        if not any(moves):
            break
    shares: list[defaultdict[UUID, set[int]]] = [defaultdict(set) for _ in ordered]
    for one in classes:
        for number, partitions in one.held.items():
            for topic_id, partition in partitions:
                shares[number][topic_id].add(partition)
    return {
        member.member_id: {topic_id: frozenset(partitions) for topic_id, partitions in share.items()}
        for member, share in zip(ordered, shares, strict=True)
    }


def _classes(members: Sequence[MemberSpec]) -> list[_Class]:
    subscribers: defaultdict[UUID, list[int]] = defaultdict(list)
    for number, member in enumerate(members):
        for topic_id in member.topic_ids:
            subscribers[topic_id].append(number)
    classes: dict[tuple[int, ...], _Class] = {}
    for topic_id in sorted(subscribers):
        key = tuple(subscribers[topic_id])
        if key not in classes:
            classes[key] = _Class(key)
        classes[key].topic_ids.append(topic_id)
    return sorted(classes.values(), key=lambda one: len(one.subscribers))


def _keep(one: _Class, members: Sequence[MemberSpec], counts: PartitionCounts, sizes: list[int]) -> list[_Partition]:
    """Give everyone what it has; what nobody has comes back."""
    rest = []
    for topic_id in one.topic_ids:
        is_taken = bytearray(counts[topic_id])
        for number in one.subscribers:
            for partition in members[number].target.get(topic_id, ()):
                if partition < len(is_taken) and not is_taken[partition]:
                    is_taken[partition] = 1
                    one.held[number].append((topic_id, partition))
                    sizes[number] += 1
        rest += [(topic_id, partition) for partition, taken in enumerate(is_taken) if not taken]
    return rest


def _fill(one: _Class, rest: list[_Partition], sizes: list[int]) -> None:
    heap = [(sizes[number], number) for number in one.subscribers]
    heapq.heapify(heap)
    for partition in rest:
        size, number = heap[0]
        one.held[number].append(partition)
        sizes[number] = size + 1
        heapq.heapreplace(heap, (size + 1, number))


def _even_out(one: _Class, sizes: list[int]) -> bool:
    """Move partitions of this class from those who have most to those who have least; gives whether one moved."""
    least = [(sizes[number], number) for number in one.subscribers]
    most = [(-sizes[number], number) for number in one.subscribers if one.held[number]]
    heapq.heapify(least)
    heapq.heapify(most)
    has_moved = False
    while most:
        size, giver = -most[0][0], most[0][1]
        if not one.held[giver] or size != sizes[giver]:
            heapq.heappop(most)
            if one.held[giver]:
                heapq.heappush(most, (-sizes[giver], giver))
            continue
        while least[0][0] != sizes[least[0][1]]:
            _, number = heapq.heappop(least)
            heapq.heappush(least, (sizes[number], number))
        least_size, taker = least[0]
        if size - least_size < 2:
            break
        one.held[taker].append(one.held[giver].pop())
        sizes[giver] -= 1
        sizes[taker] += 1
        heapq.heapreplace(most, (-sizes[giver], giver))
        heapq.heapreplace(least, (sizes[taker], taker))
        heapq.heappush(least, (sizes[giver], giver))
        heapq.heappush(most, (-sizes[taker], taker))
        has_moved = True
    return has_moved
