"""The change feed of a store inside this process: recent commits, and those who wait for the next one."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from penstock.cluster.store.base import Commit, Compacted

# Watchers follow within one turn of the event loop; a thousand commits is far more than one can fall behind by.
COMMITS_KEPT = 1024


class ChangeFeed:
    def __init__(self, revision: int = 0) -> None:
        self._commits: deque[Commit] = deque(maxlen=COMMITS_KEPT)
        self._revision = revision  # The last commit published.
        self._waiters: list[asyncio.Future[None]] = []

    def publish(self, commit: Commit) -> None:
        assert commit.revision == self._revision + 1, f"feed gap: {commit.revision=} {self._revision=}"
        self._commits.append(commit)
        self._revision = commit.revision
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            # A crashed broker of a simulation leaves its waiter behind, perhaps on a loop that is gone.
            if not waiter.done() and not waiter.get_loop().is_closed():
                waiter.set_result(None)

    async def watch(self, after: int) -> AsyncIterator[Commit]:
        while True:
            behind = self._revision - after
            if behind > len(self._commits):
                raise Compacted(f"commits after {after} are no longer kept")
            if behind <= 0:
                waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._waiters.append(waiter)
                await waiter
                continue
            commit = self._commits[-behind]
            after = commit.revision
            yield commit
