"""Which brokers get a new partition's replicas. Pure: the same brokers and counts give the same answer.

Leaders go round robin, so that each broker leads as many partitions as the next. The other replicas follow the leader
at a distance that grows by one with each round, so that the followers of one broker's partitions are spread over all
the others and not all on its neighbour.

    brokers 1 2 3 4, two replicas:   1,2  2,3  3,4  4,1   then   1,3  2,4  3,1  4,2   then   1,4 ...

No rack gets a second replica of a partition while another has none, and so on. To keep followers even all the same,
racks take turns in the round:

    1 and 2 in rack a, 3 and 4 in rack b:   1,3  3,2  2,4  4,1   then   1,4  3,1  2,3  4,2   then   1,4 ...
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from penstock.base.types import NodeId


def place(
    racks: Mapping[NodeId, str | None], partition_count: int, replication_factor: int, first: int = 0
) -> list[tuple[NodeId, ...]]:
    """The replicas of each partition, the preferred leader first, on brokers given with their racks.

    `first` is the place in the round to begin at: the number of partitions that the topic has, or any number that
    varies from topic to topic, or else broker 1 would lead every topic of one partition.
    """
    count = len(racks)
    assert 1 <= replication_factor <= count, f"{replication_factor=} {count=}"
    round_of_brokers = _by_turns(racks)
    has_racks = len(set(racks.values())) > 1
    placed = []
    for partition in range(first, first + partition_count):
        order = [
            round_of_brokers[_place(partition, replica, count)]
            for replica in range(count if has_racks else replication_factor)
        ]
        placed.append(_spread(order, racks, replication_factor) if has_racks else tuple(order))
    return placed


def _by_turns(racks: Mapping[NodeId, str | None]) -> list[NodeId]:
    """The brokers, one of each rack after the other."""
    turns: Counter[str | None] = Counter()
    keyed = []
    for node_id in sorted(racks):
        rack = racks[node_id]
        keyed.append((turns[rack], rack or "", node_id))
        turns[rack] += 1
    return [node_id for _, _, node_id in sorted(keyed)]


def _spread(order: Sequence[NodeId], racks: Mapping[NodeId, str | None], replication_factor: int) -> tuple[NodeId, ...]:
    """The first in `order`, then each time the next one of a rack that has the fewest so far."""
    chosen: list[NodeId] = []
    used: Counter[str | None] = Counter()
    left = list(order)
    while len(chosen) < replication_factor:
        node_id = left[0] if not chosen else min(left, key=lambda item: used[racks[item]])
        left.remove(node_id)
        chosen.append(node_id)
        used[racks[node_id]] += 1
    return tuple(chosen)


def _place(partition: int, replica: int, count: int) -> int:
    leader = partition % count
    if replica == 0:
        return leader
    shift = (partition // count) % (count - 1)
    return (leader + 1 + (shift + replica - 1) % (count - 1)) % count
