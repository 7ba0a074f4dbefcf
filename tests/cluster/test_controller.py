"""The controller, the metadata and the registration together, on all stores."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import Random

import pytest

from penstock.base.config import BrokerConfig
from penstock.base.config_key import InvalidConfig
from penstock.base.errors import ErrorCode
from penstock.base.types import NO_NODE, NodeId
from penstock.cluster import records
from penstock.cluster.config_plan import AlterConfig, ConfigOperation, Operation, ResourceType
from penstock.cluster.controller import Controller
from penstock.cluster.image import ClusterImage
from penstock.cluster.metadata import Metadata
from penstock.cluster.registration import NodeIdTaken, Registration
from penstock.cluster.store.base import Check, MetadataStore, Put, StoreUnavailable, Write
from penstock.cluster.store.feed import COMMITS_KEPT
from penstock.cluster.store.memory import MemoryStore
from penstock.cluster.store.sqlite import SqliteStore
from penstock.cluster.topic_plan import DeleteTopic, NewPartitions, NewTopic
from store_backends import fresh_chroot, zookeeper_store

CONFIG = BrokerConfig()


class Node:
    """The cluster part of one broker."""

    def __init__(self, store: MetadataStore, node_id: int = 1) -> None:
        self.metadata = Metadata(store=store)
        self.registration = Registration(store=store, metadata=self.metadata, node_id=NodeId(node_id), random=Random(1))
        self.controller = Controller(store=store, metadata=self.metadata, config=BrokerConfig(node_id=NodeId(node_id)))

    async def start(self) -> None:
        await self.metadata.start()
        await self.registration.start("localhost", 9092)

    async def stop(self) -> None:
        await self.registration.stop()
        await self.metadata.stop()


Scenario = Callable[[Node, MetadataStore], Awaitable[None]]


@pytest.fixture(params=["memory", "sqlite", "zookeeper"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Scenario], None]:
    def make() -> MetadataStore:
        if request.param == "memory":
            return MemoryStore()
        if request.param == "sqlite":
            return SqliteStore(str(tmp_path / "m.db"))
        return zookeeper_store(f"{request.getfixturevalue('zookeeper').connect}/{fresh_chroot()}")

    async def main(scenario: Scenario) -> None:
        store = make()
        await store.start()
        node = Node(store)
        await node.start()
        await scenario(node, store)
        await node.stop()
        await store.close()

    return lambda scenario: asyncio.run(asyncio.wait_for(main(scenario), 60))


def on_memory(scenario: Scenario) -> None:
    async def main() -> None:
        store = MemoryStore()
        node = Node(store)
        await node.start()
        await scenario(node, store)
        await node.stop()

    asyncio.run(asyncio.wait_for(main(), 30))


async def create(node: Node, *names: str, **options: bool) -> list[ErrorCode]:
    results = await node.controller.create_topics([NewTopic(name=name) for name in names], **options)
    return [result.code for result in results]


def test_image_and_subscribers_have_followed_when_a_change_is_answered(run: Callable[[Scenario], None]) -> None:
    async def scenario(node: Node, store: MetadataStore) -> None:
        seen: list[ClusterImage] = []
        node.metadata.subscribe(seen.append)
        assert await create(node, "t") == [ErrorCode.none]
        assert "t" in seen[-1].topics
        assert seen[-1] is node.metadata.image
        await node.controller.create_partitions([NewPartitions(name="t", total_count=3)])
        assert len(seen[-1].topics["t"].partitions) == 3
        alteration = AlterConfig(ResourceType.TOPIC, "t", [ConfigOperation("retention.ms", Operation.SET, "5")])
        await node.controller.alter_configs([alteration])
        assert seen[-1].topic_config("t", CONFIG).retention_ms == 5
        await node.controller.delete_topics([DeleteTopic("t")])
        assert "t" not in seen[-1].topics
        assert len(seen) == 4

    run(scenario)


def test_changes_at_once_take_turns(run: Callable[[Scenario], None]) -> None:
    async def scenario(node: Node, store: MetadataStore) -> None:
        codes = await asyncio.gather(
            *(create(node, "t") for _ in range(10)), *(create(node, f"u{i}") for i in range(10))
        )
        assert sorted(code[0] for code in codes) == [ErrorCode.none] * 11 + [ErrorCode.topic_already_exists] * 9

    run(scenario)


def test_validate_only_answers_and_changes_nothing(run: Callable[[Scenario], None]) -> None:
    async def scenario(node: Node, store: MetadataStore) -> None:
        before = (await store.list("/")).entries
        assert await create(node, "t", "a/b", validate_only=True) == [
            ErrorCode.none,
            ErrorCode.invalid_topic_exception,
        ]
        assert (await store.list("/")).entries == before

    run(scenario)


def test_everything_but_the_leases_is_there_after_a_restart(tmp_path: Path) -> None:
    async def life() -> ClusterImage:
        store = SqliteStore(str(tmp_path / "metadata.db"))
        await store.start()
        node = Node(store)
        await node.metadata.start()
        before = node.metadata.image
        await node.registration.start("localhost", 9092)
        await create(node, "t")
        await node.stop()
        await store.close()
        return before

    first, second = asyncio.run(life()), asyncio.run(life())
    assert first.topics == {}
    assert second.topics["t"].partitions[0].leader == 1
    assert (second.brokers, second.controller_id, second.controller_epoch) == ({}, NO_NODE, 1)
    assert second.cluster_id == first.cluster_id != ""


def test_broker_that_crashed_comes_back_with_a_higher_epoch() -> None:
    async def main() -> None:
        store = MemoryStore()
        first = Node(store)
        await first.start()
        await create(first, "t")
        epoch = first.metadata.image.brokers[NodeId(1)].epoch
        await first.metadata.stop()
        with pytest.raises(NodeIdTaken):
            await _started(Node(store))
        store.expire_leases("broker-1")
        second = Node(store)
        await second.start()
        image = second.metadata.image
        assert image.brokers[NodeId(1)].epoch > epoch
        assert (image.controller_id, image.controller_epoch) == (1, 2)
        assert await create(second, "t", "u") == [ErrorCode.topic_already_exists, ErrorCode.none]
        await second.stop()

    asyncio.run(asyncio.wait_for(main(), 30))


async def _started(node: Node) -> None:
    try:
        await node.start()
    finally:
        await node.metadata.stop()


def test_second_broker_joins_and_does_not_control() -> None:
    async def scenario(node: Node, store: MetadataStore) -> None:
        second = Node(store, 2)
        await second.start()
        assert await create(second, "t") == [ErrorCode.not_controller]
        results = await node.controller.create_topics([NewTopic(name="t", replication_factor=3)])
        assert results[0].code is ErrorCode.invalid_replication_factor
        results = await node.controller.create_topics([NewTopic(name="t", partition_count=2)])
        assert results[0].code is ErrorCode.none
        topic = second.metadata.image.topics.get("t")
        while topic is None:  # The other broker follows on its own.
            await asyncio.sleep(0)
            topic = second.metadata.image.topics.get("t")
        assert sorted(state.isr for state in topic.partitions) == [(1,), (2,)]
        await second.stop()

    on_memory(scenario)


class Meddling(MemoryStore):
    """Somebody else writes just before our commits, as often as told."""

    def __init__(self) -> None:
        super().__init__()
        self.meddle: list[Sequence[Write]] = []

    async def commit(self, checks: Sequence[Check], writes: Sequence[Write]) -> int:
        if self.meddle:
            await super().commit([], self.meddle.pop())
        return await super().commit(checks, writes)


def test_a_conflict_is_decided_anew() -> None:
    async def main() -> None:
        store = Meddling()
        node = Node(store)
        await node.start()
        theirs = records.encode_topic(records.TopicRecord(node.metadata._new_uuid(), ((NodeId(1),),)))
        store.meddle = [[Put(records.topic_key("t"), theirs)]]
        assert await create(node, "t", "u") == [ErrorCode.topic_already_exists, ErrorCode.none]
        await node.stop()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a_controller_that_was_replaced_writes_nothing() -> None:
    async def main() -> None:
        store = Meddling()
        node = Node(store)
        await node.start()
        store.meddle = [
            [
                Put(records.CONTROLLER, records.encode({"node": 2})),
                Put(records.CONTROLLER_EPOCH, records.encode({"epoch": 9})),
            ]
        ]
        assert await create(node, "t") == [ErrorCode.not_controller]
        assert await store.get(records.topic_key("t")) is None
        await node.stop()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_conflicts_without_end_are_given_up() -> None:
    async def main() -> None:
        store = Meddling()
        node = Node(store)
        await node.start()
        store.meddle = [[Put(records.CONTROLLER_EPOCH, records.encode({"epoch": n}))] for n in range(100)]
        assert await create(node, "t") == [ErrorCode.not_controller]
        assert len(store.meddle) > 50
        await node.stop()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a_store_that_cannot_be_written_is_an_answer() -> None:
    class Full(MemoryStore):
        is_full = False

        async def commit(self, checks: Sequence[Check], writes: Sequence[Write]) -> int:
            if self.is_full:
                raise StoreUnavailable("disk full")
            return await super().commit(checks, writes)

    async def main() -> None:
        store = Full()
        node = Node(store)
        await node.start()
        store.is_full = True
        assert await create(node, "t", "a/b") == [ErrorCode.kafka_storage_error, ErrorCode.invalid_topic_exception]
        await node.stop()

    asyncio.run(asyncio.wait_for(main(), 30))


# Metadata


def test_a_subscriber_that_fails_does_not_keep_the_others_from_it() -> None:
    async def scenario(node: Node, store: MetadataStore) -> None:
        def fail(image: ClusterImage) -> None:
            raise OSError("disk full")

        seen: list[ClusterImage] = []
        node.metadata.subscribe(fail)
        node.metadata.subscribe(seen.append)
        assert await create(node, "t") == [ErrorCode.none]
        assert "t" in seen[-1].topics

    on_memory(scenario)


def test_cluster_id_is_made_once_and_another_is_refused() -> None:
    async def main() -> None:
        store = MemoryStore()
        first, second = Metadata(store=store), Metadata(store=store)
        await first.start()
        await second.start()
        assert first.image.cluster_id == second.image.cluster_id
        assert len(first.image.cluster_id) == 22
        await Metadata(store=store, cluster_id=first.image.cluster_id).start()
        with pytest.raises(InvalidConfig, match=r"cluster\.id is 'other', allowed is"):
            await Metadata(store=store, cluster_id="other").start()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_metadata_that_fell_behind_reads_everything_anew() -> None:
    async def main() -> None:
        store = MemoryStore()
        metadata = Metadata(store=store)
        await metadata.start()
        for number in range(COMMITS_KEPT + 5):  # Without a turn for the follower in between.
            revision = await store.commit(
                [], [Put(records.broker_config_key("1"), b'{"num.partitions":"%d"}' % number)]
            )
        await metadata.applied(revision)
        assert metadata.image.broker_configs["1"].overrides == {"num.partitions": str(COMMITS_KEPT + 4)}
        await metadata.stop()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_waiting_for_a_change_ends_when_the_store_is_no_longer_followed() -> None:
    async def main() -> None:
        metadata = Metadata(store=MemoryStore())
        await metadata.start()
        waiting = asyncio.create_task(metadata.applied(99))
        await asyncio.sleep(0)
        await metadata.stop()
        with pytest.raises(StoreUnavailable):
            await waiting
        with pytest.raises(StoreUnavailable):
            await metadata.applied(99)

    asyncio.run(asyncio.wait_for(main(), 30))
