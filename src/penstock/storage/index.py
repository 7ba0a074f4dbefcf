"""The two kinds of sparse index, held in file format and searched by bisection.

Indexes are derived data: whatever looks wrong is thrown away and rebuilt from the log, never trusted.
"""

from collections.abc import Callable

from penstock.storage.format import OFFSET_ENTRY, TIME_ENTRY

Buffer = bytes | bytearray | memoryview


class BadIndex(ValueError):
    """The bytes cannot be the index of that segment."""


class OffsetIndex:
    """Relative offset → file position; offsets and positions strictly increase."""

    def __init__(self, entries: Buffer = b"") -> None:
        self.data = bytearray(entries)

    def __len__(self) -> int:
        return len(self.data) // OFFSET_ENTRY.size

    def entry(self, number: int) -> tuple[int, int]:
        offset, position = OFFSET_ENTRY.unpack_from(self.data, number * OFFSET_ENTRY.size)
        return offset, position

    def last(self) -> tuple[int, int] | None:
        return self.entry(len(self) - 1) if len(self) else None

    def append(self, relative_offset: int, position: int) -> None:
        self.data += OFFSET_ENTRY.pack(relative_offset, position)

    def entry_before(self, relative_offset: int) -> tuple[int, int] | None:
        """The entry from which to scan for `relative_offset`: of a batch at or before it; None: from the start."""
        found = last_where(len(self), lambda number: self.entry(number)[0] <= relative_offset)
        return self.entry(found) if found >= 0 else None

    def entry_at(self, position: int) -> tuple[int, int] | None:
        """The entry of the last indexed batch that starts at `position` or before it."""
        found = last_where(len(self), lambda number: self.entry(number)[1] <= position)
        return self.entry(found) if found >= 0 else None

    def truncate(self, position: int) -> None:
        """Keep only entries of batches that start below `position`."""
        kept = last_where(len(self), lambda number: self.entry(number)[1] < position) + 1
        del self.data[kept * OFFSET_ENTRY.size :]

    def check(self, log_bytes: int) -> None:
        """Raise BadIndex unless the entries increase and lie inside the log."""
        if len(self.data) % OFFSET_ENTRY.size:
            raise BadIndex("offset index ends in half an entry")
        previous_offset = previous_position = -1
        for offset, position in OFFSET_ENTRY.iter_unpack(self.data):
            if offset <= previous_offset or position <= previous_position:
                raise BadIndex(f"offset index does not increase at {offset} -> {position}")
            previous_offset, previous_position = offset, position
        if previous_position >= log_bytes > 0:
            raise BadIndex(f"offset index points to {previous_position}, the log ends at {log_bytes}")


class TimeIndex:
    """Timestamp → relative offset; timestamps strictly increase, offsets never decrease."""

    def __init__(self, entries: Buffer = b"") -> None:
        self.data = bytearray(entries)

    def __len__(self) -> int:
        return len(self.data) // TIME_ENTRY.size

    def entry(self, number: int) -> tuple[int, int]:
        timestamp, offset = TIME_ENTRY.unpack_from(self.data, number * TIME_ENTRY.size)
        return timestamp, offset

    def last(self) -> tuple[int, int] | None:
        return self.entry(len(self) - 1) if len(self) else None

    def maybe_append(self, timestamp: int, relative_offset: int) -> bool:
        last = self.last()
        if last is not None and timestamp <= last[0]:
            return False
        self.data += TIME_ENTRY.pack(timestamp, relative_offset)
        return True

    def entry_before(self, timestamp: int) -> tuple[int, int] | None:
        """The entry below whose offset no batch holds a record of `timestamp` or later; None: from the start."""
        found = last_where(len(self), lambda number: self.entry(number)[0] < timestamp)
        return self.entry(found) if found >= 0 else None

    def truncate(self, relative_offset: int) -> None:
        """Keep only entries below `relative_offset`."""
        kept = last_where(len(self), lambda number: self.entry(number)[1] < relative_offset) + 1
        del self.data[kept * TIME_ENTRY.size :]

    def check(self) -> None:
        """Raise BadIndex unless the entries increase."""
        if len(self.data) % TIME_ENTRY.size:
            raise BadIndex("time index ends in half an entry")
        previous_timestamp, previous_offset = -2, -1
        for timestamp, offset in TIME_ENTRY.iter_unpack(self.data):
            if timestamp <= previous_timestamp or offset < previous_offset:
                raise BadIndex(f"time index does not increase at {timestamp} -> {offset}")
            previous_timestamp, previous_offset = timestamp, offset


def last_where(count: int, holds: Callable[[int], bool]) -> int:
    """The last number below `count` for which `holds`, given that it holds for a prefix; -1 when for none."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            low = middle + 1
        else:
            high = middle
    return low - 1
