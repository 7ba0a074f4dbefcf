"""How far groups have read: what they committed, where the partitions end, and how fast the gap closes."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.cli.connection import TIMEOUT_S, kafka_admin
from penstock.cli.offsets import Offsets, Partition, offsets_at, partitions_by_topic

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

GROUPS_AT_ONCE = 100  # Each group is a request of its own; all at once would be as many replies in memory.


class PartitionLag(NamedTuple):
    topic: str
    partition: int
    committed: int | None  # None: the group has committed nothing there.
    end: int | None  # None: the topic is gone, or its partition has no leader.

    @property
    def lag(self) -> int | None:
        return None if self.committed is None or self.end is None else self.end - self.committed


Lags = list[PartitionLag]


def total_lag(lags: Iterable[PartitionLag]) -> int:
    """The sum of all lags that are known."""
    return sum(lag.lag or 0 for lag in lags)


def committed_offsets(admin: "AdminClient", groups: Sequence[str]) -> dict[str, Offsets]:
    """What each group has committed; nothing for a group that does not exist."""
    from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException

    found: dict[str, Offsets] = {}
    for start in range(0, len(groups), GROUPS_AT_ONCE):
        some = groups[start : start + GROUPS_AT_ONCE]
        # confluent-kafka takes one group a call.
        futures = {
            group: admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)], request_timeout=TIMEOUT_S)[
                group
            ]
            for group in some
        }
        for group, future in futures.items():
            offsets: Offsets = {}
            for partition in future.result().topic_partitions:
                if partition.error is not None:
                    raise KafkaException(partition.error)
                if partition.offset >= 0:
                    offsets[partition.topic, partition.partition] = partition.offset
            found[group] = offsets
    return found


def group_lags(admin: "AdminClient", groups: Mapping[str, Iterable[Partition]]) -> dict[str, Lags]:
    """Of each group the lag of every partition that it has committed, or that its members were given, in order."""
    committed = committed_offsets(admin, list(groups))
    wanted = {group: sorted({*committed[group], *assigned}) for group, assigned in groups.items()}
    led = {partition for of_topic in partitions_by_topic(admin).values() for partition in of_topic}
    asked = {partition for partitions in wanted.values() for partition in partitions} & led
    ends = offsets_at(admin, asked, kafka_admin().OffsetSpec.latest())
    return {
        group: [PartitionLag(*p, committed[group].get(p), ends.get(p)) for p in partitions]
        for group, partitions in wanted.items()
    }


class LagChange(NamedTuple):
    per_second: float | None  # Below zero: the group catches up. None: not known yet.
    catch_up_s: float | None  # At this rate. None: never, or not known.


def lag_change(before: int | None, now: int | None, elapsed_s: float | None) -> LagChange:
    """How fast a lag changes, and when it will be gone."""
    if before is None or now is None or elapsed_s is None:
        return LagChange(None, 0.0 if now == 0 else None)
    per_second = (now - before) / elapsed_s
    if now <= 0:
        return LagChange(per_second, 0.0)
    return LagChange(per_second, now / -per_second if per_second < 0 else None)
