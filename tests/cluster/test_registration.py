"""Brokers that come, go, and are taken for dead, each with a client of its own to a real ZooKeeper."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from penstock.base.config import BrokerConfig
from penstock.base.errors import ErrorCode
from penstock.base.types import NO_NODE, NodeId
from penstock.cluster.controller import Controller
from penstock.cluster.image import ClusterImage
from penstock.cluster.metadata import Metadata
from penstock.cluster.registration import NodeIdTaken, Registration
from penstock.cluster.store.memory import MemoryStore
from penstock.cluster.store.zookeeper.store import ZooKeeperStore
from penstock.cluster.topic_plan import DeleteTopic, NewTopic
from penstock.local.zookeeper import ZooKeeperEnsemble
from store_backends import fresh_chroot, zookeeper_store
from zookeeper_sessions import end_session

TEST_S_MAX = 120


class Node:
    """The cluster part of one broker."""

    def __init__(self, connect: str, node_id: int, session_timeout_ms: int = 10_000) -> None:
        self.id = NodeId(node_id)
        self.store: ZooKeeperStore = zookeeper_store(connect, session_timeout_ms)
        self.metadata = Metadata(store=self.store)
        self.registration = Registration(store=self.store, metadata=self.metadata, node_id=self.id, random=Random(1))
        self.controller = Controller(
            store=self.store, metadata=self.metadata, config=BrokerConfig(node_id=self.id, default_replication_factor=1)
        )

    async def start(self) -> None:
        await self.store.start()
        await self.metadata.start()
        await self.registration.start("localhost", 9000 + self.id)

    async def stop(self) -> None:
        await self.registration.stop()
        await self.metadata.stop()
        await self.store.close()

    async def crash(self) -> None:
        """The process is gone without a word."""
        self.store._session._is_closing = True
        assert self.store._session._task is not None
        self.store._session._task.cancel()
        await asyncio.gather(self.store._session._task, return_exceptions=True)

    async def sees(self, is_so: Callable[[ClusterImage], bool]) -> ClusterImage:
        while not is_so(self.metadata.image):  # noqa: ASYNC110 - as far away as a client would be.
            await asyncio.sleep(0.01)
        return self.metadata.image


def run(zookeeper: ZooKeeperEnsemble, scenario: Callable[[str], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(f"{zookeeper.connect}/{fresh_chroot()}"), TEST_S_MAX))


def test_two_brokers_see_each_other_and_one_controls(zookeeper: ZooKeeperEnsemble) -> None:
    async def scenario(connect: str) -> None:
        one, two = Node(connect, 1), Node(connect, 2)
        await one.start()
        await two.start()
        for node in (one, two):
            image = await node.sees(lambda image: len(image.brokers) == 2)
            assert sorted(image.brokers) == [1, 2]
            assert (image.controller_id, image.controller_epoch) == (1, 1)
        results = await one.controller.create_topics([NewTopic(name="t", partition_count=4)])
        assert results[0].code is ErrorCode.none
        image = await two.sees(lambda image: "t" in image.topics)
        assert sorted(state.leader for state in image.topics["t"].partitions) == [1, 1, 2, 2]
        results = await two.controller.create_topics([NewTopic(name="u")])
        assert results[0].code is ErrorCode.not_controller
        # The one who leaves in order is gone at once, and its chair is taken.
        await one.stop()
        image = await two.sees(lambda image: image.controller_id == 2)
        assert (sorted(image.brokers), image.controller_epoch) == ([2], 2)
        results = await two.controller.create_topics([NewTopic(name="u")])
        assert results[0].code is ErrorCode.none
        await two.stop()

    run(zookeeper, scenario)


def test_a_topic_that_is_too_large_for_one_transaction_is_made_and_deleted_in_several(
    zookeeper: ZooKeeperEnsemble,
) -> None:
    async def scenario(connect: str) -> None:
        one, two = Node(connect, 1), Node(connect, 2)
        await one.start()
        one.controller.start()
        await two.start()
        await one.sees(lambda image: len(image.brokers) == 2)
        results = await one.controller.create_topics([NewTopic(name="t", partition_count=10_000)])
        assert results[0].code is ErrorCode.none
        assert all(state.isr for state in one.metadata.image.topics["t"].partitions)
        await two.stop()
        image = await one.sees(
            lambda image: (
                sum(state.leader == 1 for state in image.topics["t"].partitions) == 5000
                and all(state.leader in (1, NO_NODE) for state in image.topics["t"].partitions)
            )
        )
        assert {state.isr for state in image.topics["t"].partitions} == {(1,), (2,)}
        results = await one.controller.delete_topics([DeleteTopic("t")])
        assert results[0].code is ErrorCode.none
        await one.sees(lambda image: not image.unplaced)
        assert (await one.store.list("/brokers/topics/")).entries == []
        await one.controller.stop()
        await one.stop()

    run(zookeeper, scenario)


def test_reliability_rule_5_a_broker_that_was_taken_for_dead_is_another_when_it_returns(
    zookeeper: ZooKeeperEnsemble,
) -> None:
    async def scenario(connect: str) -> None:
        one, two = Node(connect, 1), Node(connect, 2)
        await one.start()
        await two.start()
        before = (await two.sees(lambda image: len(image.brokers) == 2)).brokers[NodeId(1)]
        lease = one.registration.lease
        assert lease is not None
        await end_session(one.store)
        await lease.lost()
        image = await two.sees(
            lambda image: NodeId(1) in image.brokers and image.brokers[NodeId(1)].epoch != before.epoch
        )
        assert image.brokers[NodeId(1)].epoch > before.epoch
        image = await one.sees(lambda image: image.controller_epoch == 2 and len(image.brokers) == 2)
        controller = one if image.controller_id == 1 else two
        results = await controller.controller.create_topics([NewTopic(name="t")])
        assert results[0].code is ErrorCode.none
        await one.stop()
        await two.stop()

    run(zookeeper, scenario)


def test_a_second_broker_with_the_same_id_is_refused(zookeeper: ZooKeeperEnsemble) -> None:
    async def scenario(connect: str) -> None:
        first, second = Node(connect, 1), Node(connect, 1, session_timeout_ms=1000)
        await first.start()
        with pytest.raises(NodeIdTaken, match=r"a broker with node\.id 1 is already registered"):
            await second.start()
        await second.stop()
        assert (await first.store.list("/brokers/ids/")).entries[0].value.count(b"9001") == 1
        await first.stop()

    run(zookeeper, scenario)


def test_a_broker_that_crashed_waits_for_its_former_self_to_be_forgotten(zookeeper: ZooKeeperEnsemble) -> None:
    async def scenario(connect: str) -> None:
        first, second = Node(connect, 1, session_timeout_ms=2000), Node(connect, 1, session_timeout_ms=10_000)
        await first.start()
        epoch = first.metadata.image.brokers[NodeId(1)].epoch
        await first.crash()
        await second.start()
        assert second.metadata.image.brokers[NodeId(1)].epoch > epoch
        await second.sees(lambda image: (image.controller_id, image.controller_epoch) == (1, 2))
        await second.stop()

    run(zookeeper, scenario)


def test_a_broker_that_is_about_to_stop_says_so_again_when_it_registers_anew() -> None:
    async def scenario() -> None:
        store, node_id = MemoryStore(), NodeId(1)
        metadata = Metadata(store=store)
        registration = Registration(store=store, metadata=metadata, node_id=node_id, random=Random(1))
        await metadata.start()
        await registration.start("localhost", 9001)
        before = metadata.image.brokers[node_id]
        await registration.begin_stop()
        store.expire_leases()
        await metadata.until(lambda image: node_id in image.brokers and image.brokers[node_id].epoch > before.epoch)
        assert metadata.image.brokers[node_id].is_stopping
        assert metadata.image.brokers[node_id].secret == before.secret
        await registration.stop()
        await metadata.stop()

    asyncio.run(asyncio.wait_for(scenario(), TEST_S_MAX))
