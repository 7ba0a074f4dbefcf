"""AlterPartition between two brokers, and who may not ask for it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from in_process_broker import RunningBroker, until
from test_forwarding import run_two

from penstock.base.errors import ErrorCode
from penstock.base.types import NodeId
from penstock.cluster.topic_plan import NewTopic
from penstock.server.api import ApiKey
from penstock.wire.codec import Struct

ASK_S = 60.0


async def led_by_two(one: RunningBroker, two: RunningBroker) -> None:
    topic = NewTopic(name="t", assignment=[(0, [2, 1])])
    assert (await one.broker._controller.create_topics([topic]))[0].code is ErrorCode.none
    await until(lambda: "t" in two.broker.metadata.image.topics)


def request(broker: RunningBroker, isr: list[int], **fields: Any) -> Struct:
    """What broker 2 asks, as it sees the cluster; with the fields of both versions."""
    image = broker.broker.metadata.image
    topic = image.topics["t"]
    state = topic.partitions[0]
    epochs = {node_id: registration.epoch for node_id, registration in image.brokers.items()}
    partition = Struct(
        partition_index=0,
        leader_epoch=state.leader_epoch,
        new_isr=isr,
        new_isr_with_epochs=[Struct(broker_id=node, broker_epoch=epochs[NodeId(node)]) for node in isr],
        leader_recovery_state=0,
        partition_epoch=state.partition_epoch,
    )
    topics = [Struct(topic_id=topic.topic_id, partitions=[partition])]
    values = {"broker_id": 2, "broker_epoch": epochs[NodeId(2)], "topics": topics}
    return Struct(**{**values, **fields})


@pytest.mark.parametrize("version", [2, 3])
def test_a_leader_takes_a_replica_out_of_sync(tmp_path: Path, version: int) -> None:
    async def scenario(one: RunningBroker, two: RunningBroker) -> None:
        await led_by_two(one, two)
        reply = await two.broker.peers.ask_controller(ApiKey.ALTER_PARTITION, version, request(two, [2]), ASK_S)
        assert reply.error_code == ErrorCode.none
        answered = reply.topics[0].partitions[0]
        assert (answered.error_code, answered.leader_id, list(answered.isr), answered.partition_epoch) == (0, 2, [2], 1)
        await until(lambda: two.broker.metadata.image.topics["t"].partitions[0].isr == (2,))

    run_two(tmp_path, scenario)


def test_errors_of_the_sender_and_of_a_partition(tmp_path: Path) -> None:
    async def scenario(one: RunningBroker, two: RunningBroker) -> None:
        await led_by_two(one, two)

        async def ask(**fields: Any) -> Struct:
            asked = request(two, [2], **fields)
            return await two.broker.peers.ask_controller(ApiKey.ALTER_PARTITION, 3, asked, ASK_S)

        assert (await ask(broker_id=1)).error_code == ErrorCode.cluster_authorization_failed
        assert (await ask(broker_epoch=1)).error_code == ErrorCode.stale_broker_epoch
        late = request(two, [2]).topics
        late[0].partitions[0].partition_epoch = -1
        reply = await ask(topics=late)
        assert (reply.error_code, reply.topics[0].partitions[0].error_code) == (0, ErrorCode.invalid_update_version)
        peer = await one.broker.peers.connect(2)
        reply = await peer.ask(ApiKey.ALTER_PARTITION, 3, request(two, [2], broker_id=1), ASK_S)
        assert reply.error_code == ErrorCode.not_controller

    run_two(tmp_path, scenario)


def test_reliability_s15_clients_may_not_ask(tmp_path: Path) -> None:
    async def scenario(one: RunningBroker, two: RunningBroker) -> None:
        await led_by_two(one, two)
        client = await one.connect()
        asked = request(two, [2])
        fields = {"broker_id": asked.broker_id, "broker_epoch": asked.broker_epoch, "topics": asked.topics}
        reply = await client.ask(ApiKey.ALTER_PARTITION, 3, **fields)
        assert (reply.error_code, list(reply.topics)) == (ErrorCode.cluster_authorization_failed, [])
        assert one.broker.metadata.image.topics["t"].partitions[0].isr == (2, 1)
        client.close()
        await asyncio.sleep(0)

    run_two(tmp_path, scenario)
