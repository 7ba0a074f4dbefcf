"""The real disk, which says whether it is at work."""

from collections.abc import Callable
from typing import TypeVar

from penstock.storage.fs import PosixFileSystem

T = TypeVar("T")


class CountingDisk(PosixFileSystem):
    """Whoever advances the clock has to wait for syncs under way: retention passes over a log that is being synced."""

    running = 0  # Calls that a thread works on.

    async def run(self, function: Callable[[], T]) -> T:
        self.running += 1
        try:
            return await super().run(function)
        finally:
            self.running -= 1
