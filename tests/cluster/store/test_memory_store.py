"""What only the store in memory does."""

import asyncio

from penstock.cluster.store.base import Put
from penstock.cluster.store.memory import MemoryStore


def test_memory_store_expires_the_leases_of_a_crashed_broker() -> None:
    async def scenario() -> None:
        store = MemoryStore()
        one, two = await store.open_lease("broker-1"), await store.open_lease("broker-2")
        await store.commit([], [Put("/1", b"", one.id), Put("/2", b"", two.id), Put("/kept", b"")])
        store.expire_leases("broker-1")
        assert (one.is_lost, two.is_lost) == (True, False)
        assert [entry.key for entry in (await store.list("/")).entries] == ["/2", "/kept"]
        store.expire_leases()
        assert [entry.key for entry in (await store.list("/")).entries] == ["/kept"]

    asyncio.run(scenario())


def test_memory_store_outlives_the_event_loop_of_a_crashed_broker() -> None:
    store = MemoryStore()

    async def crash() -> None:
        task = asyncio.create_task(anext(aiter(store.watch(0))))
        await asyncio.sleep(0)
        task.cancel()

    async def next_broker() -> None:
        await store.commit([], [Put("/a", b"")])
        assert (await anext(store.watch(0))).changes[0].key == "/a"

    asyncio.run(crash())
    asyncio.run(next_broker())
