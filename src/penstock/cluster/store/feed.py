"""The change feed of a store inside this process: recent commits, and those who wait for the next one."""

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterator

from penstock.cluster.store.base import Commit, Compacted

# Watchers follow within one turn of the event loop; a thousand commits is far more than one can fall behind by.
COMMITS_KEPT = 1024


class ChangeFeed:
    def __init__(self, revision: int = 0) -> None:
        self._commits: deque[Commit] = deque()
        self._start = revision  # Every commit above it is in `_commits`.
        self._revision = revision  # The last commit published.
        self._waiters: list[asyncio.Future[None]] = []

    def publish(self, commit: Commit) -> None:
        assert commit.revision > self._revision, f"feed goes back: {commit.revision=} {self._revision=}"
        if len(self._commits) == COMMITS_KEPT:
            self._start = self._commits.popleft().revision
        self._commits.append(commit)
        self._revision = commit.revision
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            # A crashed broker of a simulation leaves its waiter behind, perhaps on a loop that is gone.
            if not waiter.done() and not waiter.get_loop().is_closed():
                waiter.set_result(None)

    async def watch(self, after: int) -> AsyncIterator[Commit]:
        while True:
            if after < self._start:
                raise Compacted(f"commits after {after} are no longer kept")
            if after >= self._revision:
                waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._waiters.append(waiter)
                await waiter
                continue
            commit = self._commits[bisect_right(self._commits, after, key=_revision)]
            after = commit.revision
            yield commit


def _revision(commit: Commit) -> int:
    return commit.revision
