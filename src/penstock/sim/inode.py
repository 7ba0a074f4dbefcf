"""One file's bytes, twice: as a reader sees them, and as they would be found after a power cut.

Driven by `disk.py`; knows no names, no time and no faults but its own. Nothing that was synced is ever touched.

    content   |----------------------|=========|.....|
              0                   synced          len
                on disk for certain    ^ written before the sync began: the next sync makes it durable
                                                 ^ written while the sync was under way: needs one more
"""

from random import Random
from typing import NamedTuple

SECTOR_BYTES = 512  # What a disk writes as a whole; larger writes reach it in any order.
NEVER = -1


class Write(NamedTuple):
    stamp: int  # When it was issued, on the disk's count of writes.
    end: int  # Where it ended in the file.


class Inode:
    def __init__(self, modified_ms: int) -> None:
        self.modified_ms = modified_ms
        self.content = bytearray()
        self._durable = bytearray()
        # content[:synced] is on disk. synced <= len(content), synced <= len(durable); the second is a strict "less"
        # only after a truncation that has not been synced.
        self._synced = 0
        self._unsynced: list[Write] = []  # In file order; together they cover content[synced:].
        self._cut_stamp = NEVER  # When durable bytes were truncated away.
        self._lost: list[range] = []  # Unsynced parts that a failed sync has dropped and called clean.

    @property
    def durable(self) -> bytes:
        """What a power cut leaves at the least."""
        return bytes(self._durable)

    @property
    def unsynced_bytes(self) -> int:
        return len(self.content) - self._synced

    def append(self, data: bytes, stamp: int) -> None:
        self.content += data
        self._unsynced.append(Write(stamp, len(self.content)))

    def truncate(self, size: int, stamp: int) -> None:
        if size > len(self.content):
            self.append(bytes(size - len(self.content)), stamp)
            return
        del self.content[size:]
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
        if len(self._durable) > self._synced and self._cut_stamp > begun:
            return
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
        self._lost = [lost for lost in self._lost if lost.stop > end]
        self._synced = end

    def fail_sync(self, random: Random) -> None:
        """What Linux does after a failed write-back: the dirty pages are called clean, and a later sync succeeds."""
        end = len(self.content)
        if end > self._synced:
            start = self._synced if random.random() < 0.5 else random.randrange(self._synced, end)
            self._lost.append(range(start, end))

    def crash(self, random: Random) -> str:
        """Become what the disk holds after a power cut; says what was done to the unsynced part."""
        fate = self._fate(random)
        if fate == "untruncated":
            found = self._durable
        else:
            found = self._durable[: self._synced] + _damaged(self._tail(), self._synced, fate, random)
        self.content = bytearray(found)
        self._durable = bytearray(found)
        self._synced = len(found)
        self._unsynced = []
        self._cut_stamp = NEVER
        self._lost = []
        return fate

    def _fate(self, random: Random) -> str:
        if len(self._durable) > self._synced and random.random() < 0.5:
            return "untruncated"
        if len(self.content) == self._synced:
            return "clean"
        return random.choice(("lost", "torn", "torn", "garbled", "zeroed", "kept"))

    def _tail(self) -> bytearray:
        """The unsynced content, without what a failed sync has lost."""
        tail = self.content[self._synced :]
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
