"""Which brokers get a new partition's replicas. Pure: the same brokers and counts give the same answer.

Leaders go round robin, so that each broker leads as many partitions as the next. The other replicas follow the leader
at a distance that grows by one with each round, so that the followers of one broker's partitions are spread over all
the others and not all on its neighbour. Racks are not looked at yet.

    brokers 1 2 3 4, two replicas:   1,2  2,3  3,4  4,1   then   1,3  2,4  3,1  4,2   then   1,4 ...
"""

from collections.abc import Sequence

from penstock.base.types import NodeId


def place(
    brokers: Sequence[NodeId], partition_count: int, replication_factor: int, first: int = 0
) -> list[tuple[NodeId, ...]]:
    """The replicas of each partition, the preferred leader first.

    `first` is the place in the round to begin at: the number of partitions that the topic has, or any number that
    varies from topic to topic, or else broker 1 would lead every topic of one partition.
    """
    count = len(brokers)
    assert 1 <= replication_factor <= count, f"{replication_factor=} {count=}"
    ordered = sorted(brokers)
    return [
        tuple(ordered[_follower(partition, replica, count)] for replica in range(replication_factor))
        for partition in range(first, first + partition_count)
    ]


def _follower(partition: int, replica: int, count: int) -> int:
    leader = partition % count
    if replica == 0:
        return leader
    shift = (partition // count) % (count - 1)
    return (leader + 1 + (shift + replica - 1) % (count - 1)) % count
