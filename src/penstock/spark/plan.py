"""Which offsets a query reads, and how its tasks share them. Pure: offsets in, ranges out.

Offsets are by partition, {("orders", 0): 42}; in a checkpoint they look as Kafka's connector writes them,
{"orders": {"0": 42}}. Ranges are half-open. Every offset of [start, end) is in exactly one range, whatever the split.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

TopicPartition = tuple[str, int]
Offsets = Mapping[TopicPartition, int]
OffsetsJson = dict[str, dict[str, int]]


class OffsetRange(NamedTuple):
    topic: str
    partition: int
    start: int
    end: int  # May count more than there are records: compaction and transaction markers leave gaps.

    @property
    def size(self) -> int:
        return self.end - self.start


def to_json(offsets: Offsets) -> OffsetsJson:
    """For the checkpoint. Sorted, because Spark compares offsets by their text."""
    found: OffsetsJson = {}
    for topic, partition in sorted(offsets):
        found.setdefault(topic, {})[str(partition)] = offsets[topic, partition]
    return found


def from_json(offsets: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    return {
        (topic, int(partition)): int(offset)
        for topic, partitions in offsets.items()
        for partition, offset in partitions.items()
    }


def ranges(start: Offsets, end: Offsets) -> Iterator[OffsetRange]:
    """One range for each partition with something to read, sorted."""
    for topic, partition in sorted(end):
        first, last = start[topic, partition], end[topic, partition]
        if first < last:
            yield OffsetRange(topic, partition, first, last)


def split(whole: Iterable[OffsetRange], *, parts_min: int | None, records_max: int | None) -> list[OffsetRange]:
    """Ranges of at most `records_max` offsets, about `parts_min` of them; the larger are cut into more pieces.

    As Kafka's connector does for `minPartitions` and `maxRecordsPerPartition`: with neither, a task for each partition.
    """
    pieces = [each for each in whole if each.size > 0]
    if records_max is not None:
        pieces = [part for each in pieces for part in _cut(each, math.ceil(each.size / records_max))]
    if parts_min is None or len(pieces) >= parts_min:
        return pieces
    total = sum(each.size for each in pieces)
    # Small ranges stay whole; what the others share must not be diluted by them.
    small = [each for each in pieces if _share(each.size, total, parts_min) == 1]
    large_total = total - sum(each.size for each in small)
    large_parts = max(parts_min - len(small), 1)
    return [
        part
        for each in pieces
        for part in _cut(each, 1 if each in small else _share(each.size, large_total, large_parts))
    ]


def _share(size: int, total: int, parts: int) -> int:
    return max(round(size / total * parts), 1)


def _cut(whole: OffsetRange, parts: int) -> Iterator[OffsetRange]:
    start = whole.start
    for left in range(parts, 0, -1):
        end = start + (whole.end - start) // left
        if start < end:
            yield whole._replace(start=start, end=end)
        start = end


def admit(start: Offsets, latest: Offsets, rows_max: int) -> dict[TopicPartition, int]:
    """Where a batch ends that takes about `rows_max` offsets of what there is, from each partition its share.

    A partition with something to read always gets at least one offset, so none starves behind a larger one.
    """
    waiting = {key: latest[key] - start[key] for key in latest if latest[key] > start[key]}
    total = sum(waiting.values())
    if total <= rows_max:
        return dict(latest)
    # Integers: a share computed in floating point can be off by one, or lose a partition of 2**53 offsets.
    return {
        key: min(end, start[key] + max(rows_max * waiting[key] // total, 1)) if key in waiting else end
        for key, end in latest.items()
    }


def waiting_count(start: Offsets, latest: Offsets) -> int:
    return sum(max(latest[key] - start.get(key, 0), 0) for key in latest)
