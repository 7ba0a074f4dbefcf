"""Waiting for the image to become what somebody needs."""

import asyncio

import pytest

from penstock.base.types import NodeId
from penstock.cluster import records
from penstock.cluster.image import ClusterImage
from penstock.cluster.metadata import Metadata
from penstock.cluster.records import BrokerRecord
from penstock.cluster.store.base import Put, StoreUnavailable
from penstock.cluster.store.memory import MemoryStore


def has(node_id: int):  # type: ignore[no-untyped-def]
    return lambda image: NodeId(node_id) in image.brokers


async def register(store: MemoryStore, node_id: int) -> None:
    record = BrokerRecord("localhost", 9092, None)
    await store.commit([], [Put(records.broker_key(NodeId(node_id)), records.encode_broker(record))])


def test_who_waits_wakes_when_subscribers_have_seen_what_it_waits_for() -> None:
    async def scenario() -> None:
        store = MemoryStore()
        metadata = Metadata(store=store)
        seen: list[ClusterImage] = []
        metadata.subscribe(seen.append)
        await metadata.start()
        waiting = asyncio.create_task(metadata.until(has(2)))
        await register(store, 1)
        await metadata.until(has(1))
        assert not waiting.done()
        await register(store, 2)
        await asyncio.wait_for(waiting, 60)
        assert has(2)(seen[-1])
        await metadata.until(has(2))  # It is so already.
        assert metadata._conditions == []
        await metadata.stop()

    asyncio.run(scenario())


def test_who_gives_up_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        metadata = Metadata(store=MemoryStore())
        await metadata.start()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await metadata.until(has(1))
        assert metadata._conditions == []
        waiting = asyncio.create_task(metadata.until(has(1)))
        await asyncio.sleep(0)
        await metadata.stop()
        with pytest.raises(StoreUnavailable):
            await waiting
        with pytest.raises(StoreUnavailable):
            await metadata.until(has(1))

    asyncio.run(scenario())
