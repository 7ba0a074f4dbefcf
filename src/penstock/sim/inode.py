"""One file's bytes, twice: as a reader sees them, and as they would be found after a power cut.

Driven by `disk.py`; knows no names, no time and no faults but its own. Nothing that was synced is ever touched, but by
an overwrite that was issued.

    content   |----------------------|=========|.....|
              0                   synced          len
                on disk for certain    ^ written before the sync began: the next sync makes it durable
                                                 ^ written while the sync was under way: needs one more

Overwrites are kept apart until a sync covers them. A power cut decides for each of them, and for each sector of it,
whether it reached the disk; the disk owes no order to those that were not synced.
"""

from collections.abc import Iterable
from random import Random
from typing import NamedTuple

SECTOR_BYTES = 512  # What a disk writes as a whole; larger writes reach it in any order.
NEVER = -1


class Write(NamedTuple):
    stamp: int  # When it was issued, on the disk's count of writes.
    end: int  # Where it ended in the file.


class Overwrite(NamedTuple):
    stamp: int
    start: int
    data: bytes

    @property
    def end(self) -> int:
        return self.start + len(self.data)

    def within(self, start: int, end: int) -> "list[Overwrite]":
        """What of it lies there: one piece, or none."""
        start, end = max(start, self.start), min(end, self.end)
        if start >= end:
            return []
        return [Overwrite(self.stamp, start, self.data[start - self.start : end - self.start])]

    def without(self, other: "Overwrite") -> "list[Overwrite]":
        """What of it the other one does not cover."""
        return self.within(self.start, other.start) + self.within(other.end, self.end)


class Inode:
    def __init__(self, modified_ms: int) -> None:
        self.modified_ms = modified_ms
        self.content = bytearray()
        self._durable = bytearray()
        # content[:synced] is on disk. synced <= len(content), synced <= len(durable); the second is a strict "less"
        # only after a truncation that has not been synced.
        self._synced = 0
        self._unsynced: list[Write] = []  # In file order; together they cover content[synced:].
        self._appended = bytearray()  # content[synced:] as it was before it was written over.
        self._overwrites: list[Overwrite] = []  # Not synced, in the order in which they were issued.
        self._cut_stamp = NEVER  # When durable bytes were truncated away.
        self._lost: list[range] = []  # Unsynced parts that a failed sync has dropped and called clean.

    @property
    def durable(self) -> bytes:
        """What a power cut leaves at the least; the old bytes where an overwrite is not synced."""
        return bytes(self._durable)

    @property
    def unsynced_bytes(self) -> int:
        """How many at the end are not synced. What was written over before them does not count."""
        return len(self.content) - self._synced

    def append(self, data: bytes, stamp: int) -> None:
        self.content += data
        self._appended += data
        self._unsynced.append(Write(stamp, len(self.content)))

    def overwrite(self, position: int, data: bytes, stamp: int) -> None:
        """Write over what is there; what goes beyond the end is appended."""
        size = len(self.content)
        assert 0 <= position <= size, f"a write at {position} would leave a hole behind the end at {size}"
        here, behind = data[: size - position], data[size - position :]
        if here:
            overwrite = Overwrite(stamp, position, here)
            _apply([overwrite], self.content)
            self._overwrites.append(overwrite)
        if behind:
            self.append(behind, stamp)

    def truncate(self, size: int, stamp: int) -> None:
        if size > len(self.content):
            self.append(bytes(size - len(self.content)), stamp)
            return
        del self.content[size:]
        del self._appended[max(0, size - self._synced) :]
        self._overwrites = _within(self._overwrites, 0, size)
        if size < self._synced:
            self._synced = size
            self._cut_stamp = stamp
        kept = [write for write in self._unsynced if write.end < size]
        if size > self._synced and len(kept) < len(self._unsynced):
            kept.append(Write(self._unsynced[len(kept)].stamp, size))
        self._unsynced = kept
        self._lost = [range(lost.start, min(lost.stop, size)) for lost in self._lost if lost.start < size]

    def sync(self, begun: int) -> None:
        """Make durable what was written up to the stamp `begun`: a sync owes nothing to writes that came after it."""
        if len(self._durable) == self._synced or self._cut_stamp <= begun:
            self._sync_end(begun)
        self._sync_overwrites(begun)

    def _sync_end(self, begun: int) -> None:
        """Make the truncation and the appends durable."""
        end = self._synced
        count = 0
        for write in self._unsynced:
            if write.stamp > begun:
                break
            end = write.end
            count += 1
        del self._unsynced[:count]
        del self._durable[self._synced :]
        self._durable += self._tail()[: end - self._synced]
        del self._appended[: end - self._synced]
        self._lost = [lost for lost in self._lost if lost.stop > end]
        self._synced = end

    def _sync_overwrites(self, begun: int) -> None:
        unsynced: list[Overwrite] = []
        for overwrite in self._overwrites:
            if overwrite.stamp > begun:
                unsynced.append(overwrite)
                continue
            for piece in overwrite.within(0, self._synced):
                _apply([piece], self._durable)
                # Blocking work has an earlier stamp than what the loop wrote before it: that must not come back.
                unsynced = [rest for earlier in unsynced for rest in earlier.without(piece)]
            unsynced += overwrite.within(self._synced, overwrite.end)  # No more durable than the bytes under it.
        self._overwrites = unsynced

    def fail_sync(self, random: Random) -> None:
        """What Linux does after a failed write-back: the dirty pages are called clean, and a later sync succeeds."""
        end = len(self.content)
        if end > self._synced:
            start = self._synced if random.random() < 0.5 else random.randrange(self._synced, end)
            self._lost.append(range(start, end))
            self._overwrites = _within(self._overwrites, 0, start)  # The same pages, and as lost.
        # Forgotten, but for what is called dirty still: `content` has the new bytes and the disk keeps the old ones.
        self._overwrites = [
            piece for overwrite in self._overwrites for piece in _survivors(overwrite, _overwrite_fate(random), random)
        ]

    def crash(self, random: Random) -> str:
        """Become what the disk holds after a power cut; says what was done to the unsynced parts."""
        fate = self._fate(random)
        if fate == "untruncated":
            found = self._durable
            end = self._synced  # Behind it are other bytes than those that were written over.
        else:
            found = self._durable[: self._synced] + _damaged(self._tail(), self._synced, fate, random)
            end = len(found)
        fates = [fate]
        for overwrite in self._overwrites:
            fates.append(_overwrite_fate(random))
            _apply(_within(_survivors(overwrite, fates[-1], random), 0, end), found)
        self.content = bytearray(found)
        self._durable = bytearray(found)
        self._synced = len(found)
        self._unsynced = []
        self._appended = bytearray()
        self._overwrites = []
        self._cut_stamp = NEVER
        self._lost = []
        return " ".join(fates)

    def _fate(self, random: Random) -> str:
        if len(self._durable) > self._synced and random.random() < 0.5:
            return "untruncated"
        if len(self.content) == self._synced:
            return "clean"
        return random.choice(("lost", "torn", "torn", "garbled", "zeroed", "kept"))

    def _tail(self) -> bytearray:
        """The unsynced end as it was appended, without what a failed sync has lost."""
        tail = self._appended.copy()
        for lost in self._lost:
            start, stop = max(lost.start, self._synced), min(lost.stop, len(self.content))
            tail[start - self._synced : stop - self._synced] = bytes(max(0, stop - start))
        return tail


def _damaged(tail: bytearray, position: int, fate: str, random: Random) -> bytearray:
    """`tail`, which starts at `position` of its file, after its fate."""
    if fate == "lost":
        return bytearray()
    if fate == "torn":
        return tail[: random.randrange(len(tail))]
    if fate in ("garbled", "zeroed"):
        # Write-back out of order: some sectors are there and one before them is not. Sectors lie on the file's grid,
        # but a synced byte in the same sector has been written before and stays.
        sector = random.randrange(position // SECTOR_BYTES, (position + len(tail) - 1) // SECTOR_BYTES + 1)
        start = max(0, sector * SECTOR_BYTES - position)
        stop = min(len(tail), (sector + 1) * SECTOR_BYTES - position)
        if random.random() < 0.25:
            stop = len(tail)  # The new size was written, and none of the data from here on.
        tail[start:stop] = random.randbytes(stop - start) if fate == "garbled" else bytes(stop - start)
    return tail


def _apply(overwrites: Iterable[Overwrite], content: bytearray) -> None:
    for overwrite in overwrites:
        content[overwrite.start : overwrite.end] = overwrite.data


def _within(overwrites: Iterable[Overwrite], start: int, end: int) -> list[Overwrite]:
    return [piece for overwrite in overwrites for piece in overwrite.within(start, end)]


def _overwrite_fate(random: Random) -> str:
    return random.choice(("lost", "torn", "torn", "kept"))


def _survivors(overwrite: Overwrite, fate: str, random: Random) -> list[Overwrite]:
    """The pieces of it that come through."""
    if fate == "lost":
        return []
    if fate == "kept":
        return [overwrite]
    rate = random.random()  # Not always about half of it: a lone sector that is missing is harder to find.
    sectors = range(overwrite.start // SECTOR_BYTES, (overwrite.end - 1) // SECTOR_BYTES + 1)
    kept = [sector for sector in sectors if random.random() < rate]
    return [piece for sector in kept for piece in overwrite.within(sector * SECTOR_BYTES, (sector + 1) * SECTOR_BYTES)]
