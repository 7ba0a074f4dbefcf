"""Who waits for records of a partition, and how many bytes have come since they were last told.

Readers wait for what is committed, some of them only for what no open transaction holds back; followers wait for
whatever is appended. All are told once per turn of the loop: a burst of appends wakes a waiter once.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from penstock.base.types import Offset

# Told how many bytes have become readable; a waiter counts them against its `min_bytes`.
Readable = Callable[[int], None]
LOOK_AGAIN = 2**31  # To a waiter: more than it can want.

# Batches whose sizes are remembered apart until they are committed; while too few replicas are in sync that is never.
UNCOMMITTED_MAX = 10_000

_ALL = Offset(-1)


class Ends(Protocol):
    """Up to where a partition's readers may read."""

    high_watermark: Offset

    @property
    def last_stable_offset(self) -> Offset: ...


class Waiters:
    def __init__(self, ends: Ends) -> None:
        self._ends = ends
        self._readers: dict[Readable, None] = {}  # A dict for its order: the first to wait is the first to be told.
        self._stable_readers: dict[Readable, None] = {}  # Those of them who read up to the last stable offset only.
        self._stable_told = _ALL  # The last stable offset that they know of, unless it was the high watermark.
        self._followers: dict[Readable, None] = {}
        self._uncommitted: deque[tuple[Offset, int]] = deque()  # Next offset and size of each such batch.
        self._readable_bytes = 0  # Committed since the readers were last told.
        self._wake_up: asyncio.Handle | None = None
        self._followers_wake_up: asyncio.Handle | None = None

    def __len__(self) -> int:
        return len(self._readers) + len(self._stable_readers) + len(self._followers)

    def wait(self, callback: Readable, *, only_stable: bool = False) -> None:
        """Tell `callback` whenever bytes have become readable, until `stop`."""
        if not self._readers and not self._stable_readers:
            self._readable_bytes = 0
        if only_stable:
            if not self._stable_readers:
                stable = self._ends.last_stable_offset
                self._stable_told = stable if stable < self._ends.high_watermark else _ALL
            self._stable_readers[callback] = None
        else:
            self._readers[callback] = None

    def wait_for_appends(self, callback: Readable) -> None:
        """Tell `callback` whenever something has been appended, until `stop`."""
        self._followers[callback] = None

    def stop(self, callback: Readable) -> None:
        self._readers.pop(callback, None)
        self._stable_readers.pop(callback, None)
        self._followers.pop(callback, None)

    def wake_all(self) -> None:
        """Make every waiter look again at once: the partition is leaving, has failed, or is led by another broker."""
        for callback in [*self._readers, *self._stable_readers, *self._followers]:
            callback(LOOK_AGAIN)

    # What happens

    def on_appended(self, next_offset: Offset, size: int) -> None:
        batches = self._uncommitted
        if len(batches) < UNCOMMITTED_MAX:
            batches.append((next_offset, size))
        else:
            batches[-1] = (next_offset, batches[-1][1] + size)
        if self._followers and self._followers_wake_up is None:
            self._followers_wake_up = asyncio.get_running_loop().call_soon(self._tell_followers)

    def on_committed(self, offset: Offset) -> None:
        batches = self._uncommitted
        while batches and batches[0][0] <= offset:
            self._readable_bytes += batches.popleft()[1]
        if (self._readers or self._stable_readers) and self._wake_up is None:
            self._wake_up = asyncio.get_running_loop().call_soon(self._tell_readers)

    def on_cut(self) -> None:
        """What was appended and not committed may be gone."""
        self._uncommitted.clear()

    def _tell_readers(self) -> None:
        self._wake_up = None
        count, self._readable_bytes = self._readable_bytes, 0
        for callback in list(self._readers):
            callback(count)
        if self._stable_readers:
            self._tell_stable_readers(count)

    def _tell_stable_readers(self, count: int) -> None:
        """Tell them if their end has moved; how many bytes that is worth is known only while it is everybody's end."""
        stable, told = self._ends.last_stable_offset, self._stable_told
        is_held_back = stable < self._ends.high_watermark
        if is_held_back and stable == told:
            return
        self._stable_told = stable if is_held_back else _ALL
        for callback in list(self._stable_readers):
            callback(LOOK_AGAIN if is_held_back or told != _ALL else count)

    def _tell_followers(self) -> None:
        self._followers_wake_up = None
        for callback in list(self._followers):
            callback(1)
