"""Which replicas go where when brokers come and go. Pure: the same partitions and brokers give the same plan.

A partition never gets two replicas on one broker, and never fewer racks than it had, as far as the brokers that are
left allow it. As few replicas move as can be. The first replica is the preferred leader. To lead costs no copying, so
leaders are evened out by order alone.
"""

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice, pairwise
from typing import NamedTuple

# Of a broker, for each move: more would take a minute where there are 10,000 topics.
TOPICS_COMPARED_MAX = 200

Racks = Mapping[int, str | None]  # Of the brokers that there are.


class Partition(NamedTuple):
    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"


# A set that is gone through in the same order each time. Not a dict: its first is slow to find once many were removed.
Ordered = OrderedDict[Partition, None]
Layout = Mapping[Partition, tuple[int, ...]]  # Where each partition's replicas are, or are on their way to.


class TooFewBrokers(Exception):
    """A partition would need more brokers than there are; the message says how many."""


def plan_drain(layout: Layout, racks: Racks, leaving: int) -> dict[Partition, tuple[int, ...]]:
    """New replicas for all partitions that have one on the broker that leaves."""
    staying = {node: rack for node, rack in racks.items() if node != leaving}
    load = _Load(layout, staying)
    plan = {}
    for partition, replicas in sorted(layout.items()):
        if leaving not in replicas:
            continue
        others = [node for node in replicas if node != leaving]
        node = load.best(partition.topic, staying.keys() - others, others)
        if node is None:
            raise TooFewBrokers(
                f"{partition} has {len(replicas)} replicas, "
                f"and without broker {leaving} there are {len(staying)} brokers"
            )
        target = tuple(node if item == leaving else item for item in replicas)
        load.add(partition.topic, node)
        if replicas[0] == leaving:
            target = _led_by(min(target, key=lambda item: (load.leads[item], item)), target)
            load.leads[target[0]] += 1
        plan[partition] = target
    return plan


def plan_rebalance(layout: Layout, racks: Racks) -> dict[Partition, tuple[int, ...]]:
    """New replicas, or a new order of them, that give each broker as many replicas and leaders as the next.

    Replicas on brokers that are away stay where they are.
    """
    layout_after = dict(sorted(layout.items()))
    _even_out_replicas(layout_after, racks)
    _even_out_leaders(layout_after, racks)
    return {partition: replicas for partition, replicas in layout_after.items() if replicas != layout[partition]}


def plan_factor(layout: Layout, racks: Racks, factor: int, topic: str) -> dict[Partition, tuple[int, ...]]:
    """New replicas for the partitions of a topic, so that each has `factor` of them; all others count as they are."""
    if factor > len(racks):
        raise TooFewBrokers(f"{factor} replicas need {factor} brokers, and there are {len(racks)}")
    load = _Load(layout, racks)
    plan = {}
    for partition, replicas in sorted(layout.items()):
        if partition.topic != topic or len(replicas) == factor:
            continue
        target = list(replicas)
        while len(target) < factor:
            node = load.best(topic, racks.keys() - target, target)
            assert node is not None, f"{target=} {racks=}"
            target.append(node)
            load.add(topic, node)
        while len(target) > factor:
            # Never the first, which leads; those that are away before others, then of the fullest rack and broker.
            node = max(target[1:], key=lambda item: (item not in racks, load.crowd(item, target), load.replicas[item]))
            target.remove(node)
            load.remove(topic, node)
        plan[partition] = tuple(target)
    return plan


class _Load:
    """What brokers have, while a plan is being made."""

    def __init__(self, layout: Layout, racks: Racks) -> None:
        self._racks = racks
        self.replicas = Counter(node for replicas in layout.values() for node in replicas)
        self.leads = Counter(replicas[0] for replicas in layout.values() if replicas)
        self._of_topic = Counter((partition.topic, node) for partition in layout for node in layout[partition])

    def best(self, topic: str, candidates: Collection[int], others: Collection[int]) -> int | None:
        """The broker for one more replica beside `others`: of the rack with the fewest, with the least to do."""
        if not candidates:
            return None
        return min(
            candidates,
            key=lambda node: (self.crowd(node, others), self.replicas[node], self._of_topic[topic, node], node),
        )

    def crowd(self, node: int, others: Iterable[int]) -> int:
        """How many of the others share a rack with the broker."""
        return _crowd(node, others, self._racks)

    def add(self, topic: str, node: int) -> None:
        self.replicas[node] += 1
        self._of_topic[topic, node] += 1

    def remove(self, topic: str, node: int) -> None:
        self.replicas[node] -= 1
        self._of_topic[topic, node] -= 1


def _crowd(node: int, others: Iterable[int], racks: Racks) -> int:
    rack = racks.get(node)
    if rack is None:
        return 0  # Brokers without a rack are not known to share one.
    return sum(1 for other in others if other != node and racks.get(other) == rack)


def _even_out_replicas(layout: dict[Partition, tuple[int, ...]], racks: Racks) -> None:
    """Move one replica at a time from a broker with more to one with at least two fewer, while there is such a pair."""
    held: dict[int, OrderedDict[str, Ordered]] = {node: OrderedDict() for node in racks}
    counts = dict.fromkeys(racks, 0)
    for partition, replicas in layout.items():
        for node in replicas:
            if node in racks:
                held[node].setdefault(partition.topic, OrderedDict())[partition] = None
                counts[node] += 1
    while (step := _next_move(layout, racks, held, counts)) is not None:
        partition, source, target = step
        layout[partition] = tuple(target if node == source else node for node in layout[partition])
        left = held[source]
        del left[partition.topic][partition]
        left.move_to_end(partition.topic)  # Other topics are compared the next time.
        if not left[partition.topic]:
            del left[partition.topic]
        held[target].setdefault(partition.topic, OrderedDict())[partition] = None
        counts[source] -= 1
        counts[target] += 1


def _next_move(
    layout: Layout, racks: Racks, held: Mapping[int, OrderedDict[str, Ordered]], counts: Mapping[int, int]
) -> tuple[Partition, int, int] | None:
    by_count = sorted(counts, key=lambda node: (counts[node], node))
    for source in reversed(by_count):
        for target in by_count:
            if counts[source] - counts[target] < 2:
                break
            unfit: list[Partition] = []
            found = None
            for partition in _candidates(held[source], held[target]):
                if _fits(layout[partition], source, target, racks):
                    found = partition
                    break
                unfit.append(partition)
            for partition in unfit:  # Not the first to be looked at the next time.
                held[source][partition.topic].move_to_end(partition)
                held[source].move_to_end(partition.topic)
            if found is not None:
                return found, source, target
    return None


def _fits(replicas: tuple[int, ...], source: int, target: int, racks: Racks) -> bool:
    """Whether a replica can go from source to target, and share its rack with no more others there."""
    if target in replicas:
        return False
    return _crowd(target, (node for node in replicas if node != source), racks) <= _crowd(source, replicas, racks)


def _candidates(source: Mapping[str, Ordered], target: Mapping[str, Ordered]) -> Iterator[Partition]:
    """Partitions of the source, those first of which it has most more of the same topic than the target."""
    compared = islice(source, TOPICS_COMPARED_MAX)
    first = max(compared, key=lambda topic: len(source[topic]) - len(target.get(topic, ())), default="")
    yield from source.get(first, ())
    for topic, partitions in source.items():
        if topic != first:
            yield from partitions


def _even_out_leaders(layout: dict[Partition, tuple[int, ...]], racks: Racks) -> None:
    """Hand on leads along the shortest way from a broker with more to one with at least two fewer."""
    leads = dict.fromkeys(racks, 0)
    ways: dict[int, dict[int, Ordered]] = {node: defaultdict(OrderedDict) for node in racks}
    for partition, replicas in layout.items():
        if replicas and replicas[0] in racks:
            leads[replicas[0]] += 1
            _note_ways(ways, partition, replicas, racks)
    while (path := _way_down(leads, ways)) is not None:
        for giver, taker in pairwise(path):
            partition = next(iter(ways[giver][taker]))
            for node in layout[partition]:
                if node in racks and node != giver:
                    del ways[giver][node][partition]
            layout[partition] = _led_by(taker, layout[partition])
            _note_ways(ways, partition, layout[partition], racks)
        leads[path[0]] -= 1
        leads[path[-1]] += 1


def _note_ways(
    ways: dict[int, dict[int, Ordered]], partition: Partition, replicas: tuple[int, ...], racks: Racks
) -> None:
    for node in replicas[1:]:
        if node in racks:
            ways[replicas[0]][node][partition] = None


def _way_down(leads: Mapping[int, int], ways: Mapping[int, Mapping[int, Ordered]]) -> list[int] | None:
    """Brokers of which each can hand a lead to the next, and the last leads at least two fewer than the first."""
    for source in sorted(leads, key=lambda node: (-leads[node], node)):
        came_from: dict[int, int | None] = {source: None}
        queue = deque([source])
        while queue:
            node = queue.popleft()
            if leads[source] - leads[node] >= 2:
                path = [node]
                while (before := came_from[path[-1]]) is not None:
                    path.append(before)
                return path[::-1]
            for neighbour in sorted(ways[node]):
                if neighbour not in came_from and ways[node][neighbour]:
                    came_from[neighbour] = node
                    queue.append(neighbour)
    return None


def _led_by(leader: int, replicas: tuple[int, ...]) -> tuple[int, ...]:
    return (leader, *(node for node in replicas if node != leader))
