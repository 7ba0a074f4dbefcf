"""Producer ids are unique across brokers and restarts."""

import asyncio

from penstock.cluster.producer_ids import BLOCK_SIZE, ProducerIds
from penstock.cluster.store.memory import MemoryStore


def test_no_id_is_given_twice_by_brokers_that_share_a_store() -> None:
    async def scenario() -> list[int]:
        store = MemoryStore()
        await store.start()
        brokers = [ProducerIds(store=store) for _ in range(3)]
        return await asyncio.gather(*(brokers[n % 3].allocate() for n in range(BLOCK_SIZE * 4)))

    ids = asyncio.run(scenario())
    assert len(set(ids)) == len(ids)


def test_a_restarted_broker_starts_a_new_block() -> None:
    async def scenario() -> tuple[int, int]:
        store = MemoryStore()
        await store.start()
        return await ProducerIds(store=store).allocate(), await ProducerIds(store=store).allocate()

    assert asyncio.run(scenario()) == (0, BLOCK_SIZE)
