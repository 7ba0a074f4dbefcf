"""Where `groups reset` moves a group: offsets in, a plan out. No I/O, no clock."""

from typing import NamedTuple

from penstock.cli.offsets import Offsets, Partition
from penstock.cli.start_at import Kind, StartAt, start_offset


class Shift(NamedTuple):
    by: int  # Records forward from what is committed, or back.


class Move(NamedTuple):
    topic: str
    partition: int
    committed: int | None
    to: int
    clamped_from: int | None  # The offset that was asked for, when the partition does not reach there.


class NothingToShift(Exception):
    """The group has committed no offset of `partition`."""

    def __init__(self, partition: Partition) -> None:
        super().__init__(partition)
        self.partition = partition


def plan_reset(
    target: StartAt | Shift,
    partitions: list[Partition],
    *,
    committed: Offsets,
    starts: Offsets,
    ends: Offsets,
    at_time: Offsets,
) -> list[Move]:
    """A move for each partition. An offset out of range becomes the nearest there is, as with Kafka's tool."""
    moves = []
    for partition in partitions:
        start, end = starts[partition], ends[partition]
        if isinstance(target, Shift):
            if partition not in committed:
                raise NothingToShift(partition)
            asked = committed[partition] + target.by
        elif target.kind is Kind.OFFSET:
            asked = target.number
        else:
            asked = start_offset(target, start, end, at_time.get(partition))
        to = min(max(asked, start), end)
        moves.append(Move(*partition, committed.get(partition), to, asked if asked != to else None))
    return moves


def parse_partitions(text: str) -> tuple[str, list[int] | None]:
    """`orders:0,2` as the topic and its partitions, None for all; ValueError when it is neither form."""
    topic, colon, numbers = text.partition(":")
    if not topic:
        raise ValueError("there is no topic's name")
    if not colon:
        return topic, None
    parts = numbers.split(",")
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise ValueError(f"'{numbers}' is not a list of partitions")
    return topic, sorted({int(part) for part in parts})
