"""Producer ids, unique in the cluster for ever: taken from the store in blocks, handed out from memory.

A broker that stops leaves the rest of its block unused; there are 2^63 ids.
"""

import asyncio

from penstock.cluster import records
from penstock.cluster.store.base import Check, Conflict, MetadataStore, Put

BLOCK_SIZE = 1000  # Kafka's: one store write for a thousand producers.
ATTEMPTS_MAX = 20  # Each failure means that another broker took a block; more than a few in a row is a broken store.


class ProducerIds:
    def __init__(self, *, store: MetadataStore) -> None:
        self._store = store
        self._next = 0
        self._end = 0  # First id that is not of our block.
        self._lock = asyncio.Lock()  # One block at a time: those who wait share it.

    async def allocate(self) -> int:
        """An id that nobody has had. StoreUnavailable when a new block cannot be had."""
        async with self._lock:
            if self._next == self._end:
                self._next = await self._take_block()
                self._end = self._next + BLOCK_SIZE
            self._next += 1
            return self._next - 1

    async def _take_block(self) -> int:
        for _ in range(ATTEMPTS_MAX):
            entry = await self._store.get(records.PRODUCER_IDS)
            start: int = records.decode(entry.value)["next"] if entry else 0
            try:
                await self._store.commit(
                    [Check(records.PRODUCER_IDS, entry.version if entry else 0)],
                    [Put(records.PRODUCER_IDS, records.encode({"next": start + BLOCK_SIZE}))],
                )
            except Conflict:
                continue
            return start
        raise Conflict(records.PRODUCER_IDS, 0)
