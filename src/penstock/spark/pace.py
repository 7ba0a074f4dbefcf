"""How fast a replay goes. Pure: positions and seconds in, positions out.

Positions are offsets of each partition, and a step goes from one to the next. Gaps between offsets count as records:
which of them are there is known only once they are read.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from penstock.spark import plan
from penstock.spark.plan import Offsets, TopicPartition

BURST_S = 10.0  # After a pause (a batch that took long) so much is made up for, not more: others rely on the rate.

# The timestamps (milliseconds) of a partition's next records, from a position on, by their offsets: both ascending in
# offset; and the offset up to which that is all there is.
Upcoming = tuple[list[int], list[int], int]


class Speed(NamedTuple):
    """What was asked for; neither: as fast as it goes."""

    records_per_second: float | None = None
    multiple: float | None = None  # 2: twice as fast as they came.


def read_speed(text: str) -> Speed:
    """`max`, `1000/s` (records a second) or `2x` (twice as fast as they came)."""
    found = re.fullmatch(r"max|(\d+(?:\.\d+)?)\s*(/s|x)", text.strip().lower())
    number = float(found[1]) if found and found[1] else 0.0
    if not found or (found[1] and not number):
        raise ValueError(f"speed is max, or such as 1000/s (records a second) or 2x (twice as they came), not {text!r}")
    if not number:
        return Speed()
    return Speed(records_per_second=number) if found[2] == "/s" else Speed(multiple=number)


class Pace(Protocol):
    def due(self, start: Offsets, end: Offsets, now_s: float) -> dict[TopicPartition, int]:
        """How far to go from `start`, not beyond `end`. Called with ascending times."""


@dataclass
class Unbounded:
    step: int  # Offsets in a batch.

    def due(self, start: Offsets, end: Offsets, now_s: float) -> dict[TopicPartition, int]:
        return plan.admit(start, end, self.step)


class RecordsPerSecond:
    def __init__(self, rate: float, step: int) -> None:
        self._rate, self._step = rate, step
        self._credit = 0.0  # Records that may go; below zero when more went, since each partition gets at least one.
        self._last_s: float | None = None

    def due(self, start: Offsets, end: Offsets, now_s: float) -> dict[TopicPartition, int]:
        if self._last_s is not None:
            self._credit += (now_s - self._last_s) * self._rate
        self._last_s = now_s
        self._credit = min(self._credit, max(self._rate * BURST_S, 1.0))
        if self._credit < 1:
            return dict(start)
        chosen = plan.admit(start, end, min(int(self._credit), self._step))
        self._credit -= plan.waiting_count(start, chosen)
        return chosen


class RealTime:
    """Records are due as long after the first one as they were then, divided by `speed`."""

    def __init__(self, speed: float, upcoming: Callable[[TopicPartition, int, int], Upcoming]) -> None:
        """`upcoming(partition, start, end)`: what comes in [start, end), or the first part of it."""
        self._speed = speed
        self._upcoming = upcoming
        self._began: tuple[float, int] | None = None  # When, and at which timestamp.

    def due(self, start: Offsets, end: Offsets, now_s: float) -> dict[TopicPartition, int]:
        coming = {key: self._upcoming(key, start[key], end[key]) for key in end if start[key] < end[key]}
        if self._began is None:
            first = [timestamps[0] for _, timestamps, _ in coming.values() if timestamps]
            if not first:
                return {**start, **{key: known for key, (_, _, known) in coming.items()}}
            self._began = now_s, min(first)
        then_s, then_ms = self._began
        now_ms = then_ms + (now_s - then_s) * 1000 * self._speed
        return {**start, **{key: _due(each, now_ms) for key, each in coming.items()}}


def _due(coming: Upcoming, now_ms: float) -> int:
    """The first that is not yet due; those behind it wait, whatever their timestamps: order comes first."""
    offsets, timestamps, known = coming
    for offset, timestamp in zip(offsets, timestamps, strict=True):
        if timestamp > now_ms:
            return offset
    return known


def is_further(start: Offsets, end: Mapping[TopicPartition, int]) -> bool:
    return any(end[key] > start.get(key, -1) for key in end)
