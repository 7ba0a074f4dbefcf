"""When something has to happen next: one deadline per key, in one heap for all groups of a partition.

Pure: the shell asks for `next_ms`, sleeps, and calls the shard's `on_tick`. Moving a deadline back, what every
heartbeat does, is a dict write: the heap keeps the earlier entry, and corrects it when its time has come.
"""

import heapq
from enum import Enum
from typing import NamedTuple


class Kind(Enum):
    SESSION = "session"  # A member that has not been heard of; also an id that was given out and not used.
    JOIN = "join"  # A rebalance that waits for members.
    SYNC = "sync"  # A generation that waits for its members to ask for their assignment.
    CONSUMER_SESSION = "consumer session"  # A member of a consumer group that has not been heard of.
    CONSUMER_REBALANCE = "consumer rebalance"  # One that has to give up partitions, or to rejoin.


class Key(NamedTuple):
    kind: Kind
    group_id: str
    member_id: str = ""  # Of a session.


COMPACT_FROM = 64  # Heap entries below which stale ones are not worth a thought.


class Deadlines:
    def __init__(self) -> None:
        self._due: dict[Key, int] = {}
        self._queued: dict[Key, int] = {}  # The time of each key's valid heap entry. _queued[key] <= _due[key]
        self._heap: list[tuple[int, int, Key]] = []  # (time, number, key); the number keeps the order of equal times.
        self._number = 0

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: Key) -> bool:
        return key in self._due

    def set(self, key: Key, at_ms: int) -> None:
        self._due[key] = at_ms
        queued = self._queued.get(key)
        if queued is None or at_ms < queued:
            self._push(key, at_ms)

    def cancel(self, key: Key) -> None:
        self._due.pop(key, None)
        if len(self._heap) > COMPACT_FROM + 2 * len(self._due):
            self._compact()

    @property
    def next_ms(self) -> int | None:
        """The earliest deadline, or None."""
        self._settle()
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int) -> Key | None:
        """A key whose deadline has come, and no longer has one; None when nothing is due."""
        self._settle()
        if not self._heap or self._heap[0][0] > now_ms:
            return None
        _, _, key = heapq.heappop(self._heap)
        del self._queued[key]
        del self._due[key]
        return key

    def _settle(self) -> None:
        """Make the top of the heap a deadline that holds."""
        while self._heap:
            at_ms, _, key = self._heap[0]
            if self._queued.get(key) != at_ms:  # A later entry replaced it.
                heapq.heappop(self._heap)
                continue
            due_ms = self._due.get(key)
            if due_ms == at_ms:
                return
            heapq.heappop(self._heap)
            del self._queued[key]
            if due_ms is not None:
                self._push(key, due_ms)

    def _push(self, key: Key, at_ms: int) -> None:
        self._queued[key] = at_ms
        self._number += 1
        heapq.heappush(self._heap, (at_ms, self._number, key))

    def _compact(self) -> None:
        self._heap = []
        self._queued = {}
        for key, at_ms in self._due.items():
            self._push(key, at_ms)
