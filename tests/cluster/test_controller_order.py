"""Controllers that keep partitions in order while brokers come, stop, die and are replaced."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random

import pytest

from penstock.base.config import BrokerConfig
from penstock.base.errors import ErrorCode, Refused
from penstock.base.types import NO_NODE, NodeId, TopicPartition
from penstock.cluster import controller as controller_module
from penstock.cluster import records
from penstock.cluster.alter_partition_plan import AlterPartition
from penstock.cluster.config_plan import AlterConfig, ConfigOperation, Operation, ResourceType
from penstock.cluster.controller import Controller
from penstock.cluster.election_plan import ElectionType
from penstock.cluster.image import ClusterImage, PartitionState
from penstock.cluster.metadata import Metadata
from penstock.cluster.reassignment_plan import Reassign
from penstock.cluster.registration import Registration
from penstock.cluster.store.base import Check, Delete, MetadataStore, StoreUnavailable, Write
from penstock.cluster.store.memory import MemoryStore
from penstock.cluster.topic_plan import DeleteTopic, NewTopic


@pytest.fixture(autouse=True)
def _retried_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_module, "RETRY_S", 0.01)


class Node:
    """The cluster part of one broker."""

    def __init__(self, store: MetadataStore, node_id: int, config: BrokerConfig | None = None) -> None:
        self.id = NodeId(node_id)
        self.metadata = Metadata(store=store)
        self.registration = Registration(store=store, metadata=self.metadata, node_id=self.id, random=Random(1))
        self.controller = Controller(
            store=store, metadata=self.metadata, config=config or BrokerConfig(node_id=self.id)
        )

    async def start(self) -> "Node":
        await self.metadata.start()
        self.controller.start()
        await self.registration.start("localhost", 9000 + self.id)
        return self

    async def stop(self) -> None:
        await self.controller.stop()
        await self.registration.stop()
        await self.metadata.stop()

    async def sees(self, is_so: Callable[[ClusterImage], bool]) -> ClusterImage:
        while not is_so(self.metadata.image):  # noqa: ASYNC110 - as far away as a client would be.
            await asyncio.sleep(0)
        return self.metadata.image

    async def sees_state(self, is_so: Callable[[PartitionState], bool], topic: str = "t") -> PartitionState:
        image = await self.sees(
            lambda image: topic in image.topics and all(is_so(state) for state in image.topics[topic].partitions)
        )
        return image.topics[topic].partitions[0]


async def create(node: Node, *replicas: Sequence[int], name: str = "t", **config: str) -> None:
    settings = {key.replace("_", "."): value for key, value in config.items()}
    results = await node.controller.create_topics(
        [NewTopic(name=name, assignment=list(enumerate(replicas)), config=settings)]
    )
    assert results[0].code is ErrorCode.none, results[0]


def run(scenario: Callable[[MemoryStore, list[Node]], Awaitable[None]], store: MemoryStore | None = None) -> None:
    async def main() -> None:
        shared = store or MemoryStore()
        nodes = [await Node(shared, number).start() for number in (1, 2, 3)]
        await nodes[0].sees(lambda image: len(image.brokers) == 3)
        await scenario(shared, nodes)
        for node in nodes:
            await node.stop()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_leaders_move_when_a_broker_dies_and_when_it_is_back_it_is_not_in_sync() -> None:
    async def scenario(store: MemoryStore, nodes: list[Node]) -> None:
        one, _, three = nodes
        await create(one, [3, 2], [3, 1])
        await create(one, [3], name="alone")
        before = one.metadata.image.brokers[NodeId(3)].epoch
        assert three.registration.lease is not None
        await three.registration.lease.close()
        await one.sees(lambda image: NodeId(3) in image.brokers and image.brokers[NodeId(3)].epoch > before)
        await one.sees_state(lambda state: state.leader != 3)
        partitions = one.metadata.image.topics["t"].partitions
        assert [(state.leader, state.isr) for state in partitions] == [(2, (2,)), (1, (1,))]
        await one.sees_state(lambda state: state.leader == 3, "alone")

    run(scenario)


def test_a_broker_that_is_about_to_stop_is_relieved_of_all_but_what_nobody_else_has() -> None:
    async def scenario(store: MemoryStore, nodes: list[Node]) -> None:
        one, two, _ = nodes
        await create(one, [2, 1], [1, 2])
        await create(one, [2], name="alone")
        await two.registration.begin_stop()
        state = await two.sees_state(lambda state: state.isr == (1,))
        assert state.leader == 1
        await two.sees_state(lambda state: (state.leader, state.leader_epoch) == (2, 0), "alone")

    run(scenario)


def test_a_controller_that_stops_relieves_itself() -> None:
    async def scenario(store: MemoryStore, nodes: list[Node]) -> None:
        await create(nodes[0], [1, 2])
        await nodes[0].registration.begin_stop()
        await nodes[0].sees_state(lambda state: (state.leader, state.isr) == (2, (2,)))

    run(scenario)


def test_the_next_controller_takes_over_what_the_dead_one_led() -> None:
    async def scenario(store: MemoryStore, nodes: list[Node]) -> None:
        one, two, _ = nodes
        assert one.metadata.image.controller_id == 1
        await create(one, [1, 2, 3])
        await one.stop()
        state = await two.sees_state(lambda state: state.leader != 1)
        assert (state.leader, state.isr) == (2, (2, 3))
        assert two.metadata.image.controller_id in (2, 3)

    run(scenario)


def test_rule_9_an_unclean_election_is_counted_and_only_held_where_it_is_allowed() -> None:
    async def scenario(store: MemoryStore, nodes: list[Node]) -> None:
        one, _, three = nodes
        await create(one, [3, 2])
        await create(one, [3, 2], name="loose", unclean_leader_election_enable="true")
        image = one.metadata.image
        for name in ("t", "loose"):
            change = AlterPartition(
                image.topics[name].topic_id,
                0,
                image.topics[name].partitions[0].leader_epoch,
                0,
                [(NodeId(3), image.brokers[NodeId(3)].epoch)],
            )
            results = await one.controller.alter_partitions(NodeId(3), image.brokers[NodeId(3)].epoch, [change])
            assert results[0].code is ErrorCode.none
        await three.stop()
        loose = await one.sees_state(lambda state: state.leader == 2, "loose")
        assert loose.is_recovering
        assert (await one.sees_state(lambda state: state.leader == NO_NODE)).isr == (3,)
        await one.sees(lambda image: one.controller.unclean_elections == 1)
        # The operator gives up what is lost.
        operation = ConfigOperation("unclean.leader.election.enable", Operation.SET, "true")
        await one.controller.alter_configs([AlterConfig(ResourceType.TOPIC, "t", [operation])])
        await one.sees_state(lambda state: state.leader == 2)
        await one.sees(lambda image: one.controller.unclean_elections == 2)

    run(scenario)


def test_a_leader_asks_for_other_replicas_in_sync() -> None:
    async def scenario(store: MemoryStore, nodes: list[Node]) -> None:
        one, two, _ = nodes
        await create(one, [1, 2, 3])
        image = one.metadata.image
        epochs = {node_id: broker.epoch for node_id, broker in image.brokers.items()}
        topic = image.topics["t"]
        members = [(NodeId(1), epochs[NodeId(1)]), (NodeId(3), epochs[NodeId(3)])]
        change = AlterPartition(topic.topic_id, 0, topic.partitions[0].leader_epoch, 0, members)
        results = await one.controller.alter_partitions(NodeId(1), epochs[NodeId(1)], [change])
        assert results[0].state is not None
        assert results[0].state.isr == (1, 3)
        assert one.metadata.image.topics["t"].partitions[0].partition_epoch == 1
        results = await one.controller.alter_partitions(NodeId(1), epochs[NodeId(1)], [change])
        assert results[0].code is ErrorCode.invalid_update_version
        with pytest.raises(Refused):
            await one.controller.alter_partitions(NodeId(1), epochs[NodeId(1)] - 1, [change])
        await two.sees(lambda image: image.topics["t"].partitions[0].partition_epoch == 1)
        newer = change._replace(partition_epoch=1)
        results = await two.controller.alter_partitions(NodeId(1), epochs[NodeId(1)], [newer])
        assert results[0].code is ErrorCode.not_controller

    run(scenario)


class Away(MemoryStore):
    """A store that cannot be written for a while, except by leases that end."""

    commits_left = 1_000_000

    async def commit(self, checks: Sequence[Check], writes: Sequence[Write]) -> int:
        if self.commits_left <= 0:
            raise StoreUnavailable("away")
        self.commits_left -= 1
        return await super().commit(checks, writes)


def test_what_could_not_be_written_is_written_when_the_store_is_back() -> None:
    store = Away()

    async def scenario(shared: MemoryStore, nodes: list[Node]) -> None:
        one = nodes[0]
        await create(one, [2, 1])
        store.commits_left = 0
        await nodes[1].stop()
        await one.sees(lambda image: NodeId(2) not in image.brokers)
        await asyncio.sleep(0.05)
        assert one.metadata.image.topics["t"].partitions[0].leader == 2
        store.commits_left = 1_000_000
        await one.sees_state(lambda state: state.leader == 1)

    run(scenario, store)


def test_a_large_topic_is_made_and_deleted_in_portions_and_is_there_as_a_whole() -> None:
    async def scenario(store: MemoryStore, nodes: list[Node]) -> None:
        one, two, _ = nodes
        seen: list[int] = []
        two.metadata.subscribe(lambda image: seen.append(len(image.topics["t"].partitions) if image.topics else 0))
        results = await one.controller.create_topics([NewTopic(name="t", partition_count=2500)])
        assert results[0].code is ErrorCode.none
        await two.sees(lambda image: "t" in image.topics)
        assert set(seen) == {0, 2500}
        assert all(state.isr for state in two.metadata.image.topics["t"].partitions)
        results = await one.controller.delete_topics([DeleteTopic("t")])
        assert results[0].code is ErrorCode.none
        await two.sees(lambda image: not image.topics and not image.unplaced)
        assert (await store.list(records.TOPICS)).entries == []

    run(scenario)


def test_what_is_left_of_a_topic_that_was_made_halfway_is_tidied_up() -> None:
    store = Away()

    async def scenario(shared: MemoryStore, nodes: list[Node]) -> None:
        one = nodes[0]
        store.commits_left = 2
        results = await one.controller.create_topics([NewTopic(name="t", partition_count=2500)])
        assert results[0].code is ErrorCode.kafka_storage_error
        await one.sees(lambda image: len(image.unplaced.get("t", {})) == 2000)
        store.commits_left = 1_000_000
        results = await one.controller.create_topics([NewTopic(name="t", partition_count=1200)])
        assert results[0].code is ErrorCode.none
        await one.sees(lambda image: not image.unplaced)
        assert len((await store.list(records.TOPICS)).entries) == 1201

    run(scenario, store)


def test_a_controller_that_was_replaced_leaves_the_order_to_the_next() -> None:
    async def scenario(store: MemoryStore, nodes: list[Node]) -> None:
        one, two, three = nodes
        await create(one, [3, 2])
        # Its successor writes before the first one has noticed.
        await store.commit([], [Delete(records.CONTROLLER)])
        await two.sees(lambda image: image.controller_epoch == 2)
        await three.stop()
        state = await one.sees_state(lambda state: state.leader == 2)
        assert (state.leader_epoch, state.partition_epoch) == (1, 1)

    run(scenario)


def test_a_partition_moves_and_arrives_when_the_target_is_in_sync() -> None:
    async def scenario(store: MemoryStore, nodes: list[Node]) -> None:
        one = nodes[0]
        await create(one, [1])
        results = await one.controller.reassign_partitions([Reassign(TopicPartition("t", 0), [2, 3])])
        assert results[0].code is ErrorCode.none
        # Alone it kept its epoch; now that others have its records it needs none of another registration.
        state = one.metadata.image.topics["t"].partitions[0]
        assert (state.replicas, state.adding, state.removing, state.leader) == ((2, 3, 1), (2, 3), (1,), 1)
        image = one.metadata.image
        members = [(node_id, image.brokers[node_id].epoch) for node_id in (NodeId(1), NodeId(2), NodeId(3))]
        change = AlterPartition(image.topics["t"].topic_id, 0, state.leader_epoch, state.partition_epoch, members)
        results = await one.controller.alter_partitions(NodeId(1), image.brokers[NodeId(1)].epoch, [change])
        assert results[0].code is ErrorCode.none
        state = await one.sees_state(lambda state: not state.removing)
        assert (state.replicas, state.isr, state.leader, state.leader_epoch) == ((2, 3), (2, 3), 2, 1)

    run(scenario)


def test_preferred_leaders_come_back_by_and_by() -> None:
    async def main() -> None:
        store = MemoryStore()
        config = BrokerConfig(node_id=NodeId(1), leader_imbalance_check_interval_seconds=0)
        one, two = await Node(store, 1, config).start(), await Node(store, 2).start()
        await one.sees(lambda image: len(image.brokers) == 2)
        await create(one, [2, 1])
        await two.stop()
        await one.sees_state(lambda state: state.leader == 1)
        two = await Node(store, 2).start()
        image = await one.sees(lambda image: len(image.brokers) == 2)
        state = image.topics["t"].partitions[0]
        members = [(node_id, image.brokers[node_id].epoch) for node_id in (NodeId(1), NodeId(2))]
        change = AlterPartition(image.topics["t"].topic_id, 0, state.leader_epoch, state.partition_epoch, members)
        await one.controller.alter_partitions(NodeId(1), image.brokers[NodeId(1)].epoch, [change])
        await one.sees_state(lambda state: state.leader == 2)
        for node in (one, two):
            await node.stop()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_leaders_are_elected_when_somebody_asks_and_unclean_ones_are_counted() -> None:
    async def scenario(store: MemoryStore, nodes: list[Node]) -> None:
        one, _, three = nodes
        await create(one, [3, 2])
        image = one.metadata.image
        epoch = image.brokers[NodeId(3)].epoch
        state = image.topics["t"].partitions[0]
        change = AlterPartition(image.topics["t"].topic_id, 0, state.leader_epoch, 0, [(NodeId(3), epoch)])
        await one.controller.alter_partitions(NodeId(3), epoch, [change])
        await three.stop()
        await one.sees_state(lambda state: state.leader == NO_NODE)
        assert await one.controller.elect_leaders(ElectionType.PREFERRED, [TopicPartition("t", 0)]) != []
        results = await one.controller.elect_leaders(ElectionType.UNCLEAN, None)
        assert [(result.partition, result.code) for result in results] == [(("t", 0), ErrorCode.none)]
        assert one.controller.unclean_elections == 1
        assert one.metadata.image.topics["t"].partitions[0].leader == 2
        assert await one.controller.elect_leaders(ElectionType.UNCLEAN, None) == []

    run(scenario)
