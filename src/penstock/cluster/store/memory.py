"""A metadata store in memory, for simulation and tests: deterministic, no threads, no clock.

It outlives the brokers that use it: hand the same object to the next broker, after `expire_leases` has done to the dead
one's keys what a session timeout would.
"""

import itertools
from bisect import bisect_left, insort
from collections.abc import AsyncIterator, Sequence

from penstock.cluster.store.base import (
    Change,
    Check,
    Commit,
    Conflict,
    Delete,
    Entry,
    LeaseLost,
    Listing,
    Put,
    Write,
)
from penstock.cluster.store.feed import ChangeFeed
from penstock.cluster.store.local_lease import LocalLease


class MemoryStore:
    lease_timeout_s = 0.0  # `expire_leases` decides when a dead broker's leases end.

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._keys: list[str] = []  # The keys of `_entries`, sorted.
        self._lease_of: dict[str, int] = {}  # Only keys under a lease.
        self._leases: dict[int, LocalLease] = {}
        self._lease_ids = itertools.count(1)
        self._revision = 0
        self._feed = ChangeFeed()

    async def start(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to let go of: other brokers may share the store. Leases are closed by their owners."""

    async def get(self, key: str) -> Entry | None:
        return self._entries.get(key)

    async def list(self, prefix: str) -> Listing:
        entries = []
        for position in range(bisect_left(self._keys, prefix), len(self._keys)):
            key = self._keys[position]
            if not key.startswith(prefix):
                break
            entries.append(self._entries[key])
        return Listing(entries, self._revision)

    async def commit(self, checks: Sequence[Check], writes: Sequence[Write]) -> int:
        for check in checks:
            entry = self._entries.get(check.key)
            if (entry.version if entry else 0) != check.version:
                raise Conflict(check.key, self._revision)
        for write in writes:
            if isinstance(write, Put) and write.lease is not None and write.lease not in self._leases:
                raise LeaseLost(f"lease {write.lease} of {write.key} is over")
        return self._apply(writes)

    def watch(self, after: int) -> AsyncIterator[Commit]:
        return self._feed.watch(after)

    async def open_lease(self, owner: str) -> LocalLease:
        lease = LocalLease(next(self._lease_ids), owner, is_open=self._is_open, end=self._close_lease)
        self._leases[lease.id] = lease
        return lease

    def expire_leases(self, owner: str | None = None) -> None:
        """End the leases of `owner`, or of everybody, with their keys: what happens after a crash."""
        for lease in list(self._leases.values()):
            if owner is None or lease.owner == owner:
                self._end_lease(lease)

    async def _close_lease(self, lease: LocalLease) -> None:
        self._end_lease(lease)

    def _end_lease(self, lease: LocalLease) -> None:
        if self._leases.pop(lease.id, None) is not None:
            lease.on_lost()
            keys = [key for key, lease_id in self._lease_of.items() if lease_id == lease.id]
            if keys:
                self._apply([Delete(key) for key in keys])

    def _is_open(self, lease: LocalLease) -> bool:
        return lease.id in self._leases

    def _apply(self, writes: Sequence[Write]) -> int:
        self._revision += 1
        changes: dict[str, Change] = {}
        for write in writes:
            if isinstance(write, Put):
                changes[write.key] = Change(write.key, self._put(write))
            elif self._remove(write.key):
                changes[write.key] = Change(write.key, None)
        self._feed.publish(Commit(self._revision, tuple(changes.values())))
        return self._revision

    def _put(self, put: Put) -> Entry:
        old = self._entries.get(put.key)
        if old is None:
            insort(self._keys, put.key)
        entry = Entry(put.key, put.value, self._revision, old.created if old else self._revision)
        self._entries[put.key] = entry
        self._lease_of.pop(put.key, None)
        if put.lease is not None:
            self._lease_of[put.key] = put.lease
        return entry

    def _remove(self, key: str) -> bool:
        if self._entries.pop(key, None) is None:
            return False
        del self._keys[bisect_left(self._keys, key)]
        self._lease_of.pop(key, None)
        return True
