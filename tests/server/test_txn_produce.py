"""Produce in transactions: first the coordinator is asked, and nothing overtakes who waits for that. Rule 15."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from fake_coordinator import FakeCoordinator, FakeLinks
from in_process_broker import Client, RunningBroker, produce_fields, run, running_broker, until
from test_txn_requests import FEW, Producer, producer_on

from penstock.base.errors import ErrorCode
from penstock.base.types import TopicPartition
from penstock.cluster.store.memory import MemoryStore
from penstock.server import handlers
from penstock.server.api import ApiKey
from penstock.server.txn_verification import TxnVerification
from penstock.wire.batch import TRANSACTIONAL_MASK, Record, build_batch
from penstock.wire.codec import Struct
from penstock.wire.compression import Codec

handlers.register_all()

PID = 4000
TV1_VERSION, TV2_VERSION = 9, 12

Scenario = Callable[[RunningBroker, FakeCoordinator], Awaitable[None]]


def run_with_coordinator(scenario: Scenario, tmp_path: Path) -> None:
    async def main(broker: RunningBroker) -> None:
        context = broker.broker._dispatcher._context
        coordinator = FakeCoordinator(context.config.node_id)
        verification = TxnVerification(node_id=context.config.node_id, coordinator=coordinator, links=FakeLinks())
        object.__setattr__(context, "txn_verification", verification)
        await scenario(broker, coordinator)

    run(main, tmp_path)


def txn_records(
    sequence: int = 0, *, pid: int = PID, epoch: int = 0, value: bytes = b"v", attributes: int = TRANSACTIONAL_MASK,
    codec: Codec = Codec.NONE, count: int = 1,
) -> bytearray:  # fmt: skip
    now_ms = int(time.time() * 1000)
    return build_batch(
        [Record(number, now_ms, None, value) for number in range(count)],
        base_offset=0,
        codec=codec,
        attributes=attributes,
        producer_id=pid,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


def fields(*parts: tuple[int, bytearray], transactional_id: str | None = "t", acks: int = -1) -> dict[str, Any]:
    """One batch for each partition of the topic."""
    data = [Struct(index=index, records=records) for index, records in parts]
    topics = [Struct(name="topic", partition_data=data)]
    return {"transactional_id": transactional_id, "acks": acks, "timeout_ms": 60_000, "topic_data": topics}


async def produce(client: Client, version: int, *parts: tuple[int, bytearray], **more: Any) -> list[tuple[int, int]]:
    """Error code and base offset of each partition."""
    answer = await client.ask(ApiKey.PRODUCE, version, **fields(*parts, **more))
    return [(part.error_code, part.base_offset) for part in answer.responses[0].partition_responses]


@pytest.mark.parametrize("version", [TV1_VERSION, TV2_VERSION])
def test_the_coordinator_is_asked_once_for_a_transaction(tmp_path: Path, version: int) -> None:
    async def scenario(broker: RunningBroker, coordinator: FakeCoordinator) -> None:
        await broker.create_topic("topic", partitions=2)
        client = await broker.connect()
        if version == TV1_VERSION:
            coordinator.ongoing["t"] = {TopicPartition("topic", 0), TopicPartition("topic", 1)}
        assert await produce(client, version, (0, txn_records()), (1, txn_records())) == [(0, 0), (0, 0)]
        assert await produce(client, version, (0, txn_records(1))) == [(0, 1)]
        ((kind, command),) = coordinator.asked
        assert kind == ("verify" if version == TV1_VERSION else "add")
        assert command.producer == (PID, 0)
        assert command.partitions == {TopicPartition("topic", 0), TopicPartition("topic", 1)}
        assert broker.partition("topic").last_stable_offset == 0

    run_with_coordinator(scenario, tmp_path)


@pytest.mark.parametrize(
    ("code", "version", "told"),
    [
        (ErrorCode.none, 9, ErrorCode.invalid_txn_state),  # The partition was not added.
        (ErrorCode.none, 11, ErrorCode.transaction_abortable),
        (ErrorCode.producer_fenced, 12, ErrorCode.invalid_producer_epoch),
        (ErrorCode.not_coordinator, 12, ErrorCode.not_enough_replicas),
        (ErrorCode.invalid_producer_id_mapping, 9, ErrorCode.invalid_producer_id_mapping),
    ],
)
def test_what_the_coordinator_does_not_know_is_not_stored(
    tmp_path: Path, code: ErrorCode, version: int, told: ErrorCode
) -> None:
    async def scenario(broker: RunningBroker, coordinator: FakeCoordinator) -> None:
        await broker.create_topic("topic")
        client = await broker.connect()
        coordinator.code = code
        assert await produce(client, version, (0, txn_records())) == [(told, -1)]
        assert broker.partition("topic").log.log_end == 0
        coordinator.code = ErrorCode.none
        coordinator.ongoing["t"] = {TopicPartition("topic", 0)}
        assert await produce(client, version, (0, txn_records())) == [(0, 0)]

    run_with_coordinator(scenario, tmp_path)


def test_later_requests_wait_behind_a_question(tmp_path: Path) -> None:
    """They would be stored out of order, or refused for a gap that is none."""

    async def scenario(broker: RunningBroker, coordinator: FakeCoordinator) -> None:
        await broker.create_topic("topic")
        client, other = await broker.connect(), await broker.connect()
        coordinator.free.clear()
        ids = [client.send(ApiKey.PRODUCE, 12, **fields((0, txn_records(number)))) for number in range(5)]
        await until(lambda: bool(coordinator.asked))
        assert (await other.produce("topic", b"of others")).base_offset == 0
        assert len(coordinator.asked) == 1
        coordinator.free.set()
        assert [await client.receive_id() for _ in ids] == ids
        assert len(coordinator.asked) == 1
        assert broker.partition("topic").log.log_end == 6

    run_with_coordinator(scenario, tmp_path)


def test_a_marker_that_comes_before_the_answer_takes_it_away(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker, coordinator: FakeCoordinator) -> None:
        await broker.create_topic("topic")
        client = await broker.connect()
        coordinator.free.clear()
        coordinator.ongoing["t"] = {TopicPartition("topic", 0)}
        client.send(ApiKey.PRODUCE, TV1_VERSION, **fields((0, txn_records())))
        await until(lambda: bool(coordinator.asked))
        broker.partition("topic").append_marker(
            producer_id=PID, producer_epoch=0, coordinator_epoch=0, is_commit=False, transaction_version=1
        )
        coordinator.free.set()
        answer = await client.receive_reply(ApiKey.PRODUCE, TV1_VERSION)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.invalid_txn_state
        assert broker.partition("topic").log.log_end == 1

    run_with_coordinator(scenario, tmp_path)


def test_a_client_that_leaves_while_it_is_asked_about_leaves_nothing(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker, coordinator: FakeCoordinator) -> None:
        await broker.create_topic("topic")
        client = await broker.connect()
        coordinator.free.clear()
        client.send(ApiKey.PRODUCE, 12, **fields((0, txn_records())))
        await until(lambda: bool(coordinator.asked))
        client.abort()
        await asyncio.sleep(0.01)
        coordinator.free.set()
        await until(lambda: broker.partition("topic").log.log_end == 1)

    run_with_coordinator(scenario, tmp_path)


def test_a_batch_that_takes_long_to_look_at_is_asked_about_too(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker, coordinator: FakeCoordinator) -> None:
        await broker.create_topic("topic", cleanup_policy="compact")
        client = await broker.connect()
        records = txn_records(codec=Codec.GZIP, count=300)
        assert await produce(client, 12, (0, records)) == [(ErrorCode.invalid_record, -1)]  # Without a key.
        assert coordinator.asked == []

    run_with_coordinator(scenario, tmp_path)


def test_only_a_transactional_id_lets_transactional_batches_in(tmp_path: Path) -> None:
    """CVE-2018-17196: the rights of a transactional id are not to be passed by."""

    async def scenario(broker: RunningBroker, coordinator: FakeCoordinator) -> None:
        await broker.create_topic("topic")
        client = await broker.connect()
        refused = [(ErrorCode.transactional_id_authorization_failed, -1)]
        assert await produce(client, 12, (0, txn_records()), transactional_id=None) == refused
        assert await produce(client, 12, (0, txn_records())) == [(0, 0)]
        assert await produce(client, 12, (0, txn_records(1)), transactional_id=None) == refused
        plain = txn_records(1, attributes=0)
        assert await produce(client, 12, (0, plain)) == [(ErrorCode.invalid_txn_state, -1)]
        assert await produce(client, 12, (0, txn_records(0, pid=1, attributes=0))) == [(0, 1)]

    run_with_coordinator(scenario, tmp_path)


def test_a_request_is_of_one_producer(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker, coordinator: FakeCoordinator) -> None:
        await broker.create_topic("topic", partitions=2)
        client = await broker.connect()
        mixed = ((0, txn_records(pid=1)), (1, txn_records(pid=2)))
        assert await produce(client, 12, *mixed) == [(ErrorCode.invalid_producer_id_mapping, -1)] * 2
        assert coordinator.asked == []

    run_with_coordinator(scenario, tmp_path)


def test_batches_that_are_none_are_refused_as_ever(tmp_path: Path) -> None:
    """S7: a transactional id changes nothing about what a batch must be."""

    async def scenario(broker: RunningBroker, coordinator: FakeCoordinator) -> None:
        await broker.create_topic("topic")
        client = await broker.connect()
        torn = txn_records()[:40]
        spoilt = txn_records()
        spoilt[-1] ^= 1
        nobody = txn_records(pid=-1)
        control = txn_records(attributes=TRANSACTIONAL_MASK | 0x20)
        codes = [(await produce(client, 12, (0, records)))[0][0] for records in (torn, spoilt, nobody, control)]
        assert codes == [
            ErrorCode.corrupt_message,
            ErrorCode.corrupt_message,
            ErrorCode.invalid_record,
            ErrorCode.invalid_record,
        ]
        unknown = await client.ask(ApiKey.PRODUCE, 12, **{**produce_fields("nowhere"), "transactional_id": "t"})
        assert unknown.responses[0].partition_responses[0].error_code == ErrorCode.unknown_topic_or_partition
        assert broker.partition("topic").log.log_end == 0

    run_with_coordinator(scenario, tmp_path)


@pytest.mark.parametrize("version", [TV1_VERSION, TV2_VERSION])
def test_a_coordinator_on_another_broker_is_asked_too(tmp_path: Path, version: int) -> None:
    async def scenario() -> None:
        store = MemoryStore()
        async with (
            running_broker(tmp_path / "1", store, node_id=1, **FEW) as one,
            running_broker(tmp_path / "2", store, node_id=2, **FEW) as two,
        ):
            brokers = {1: one, 2: two}
            await one.create_topic("topic", partitions=2)
            state = one.broker.metadata.image.topics["topic"].partitions
            producer = await producer_on(one)
            found = await producer.client.ask(ApiKey.FIND_COORDINATOR, 4, coordinator_keys=["tx"], key_type=1)
            coordinator_id = found.coordinators[0].node_id
            producer.client.close()
            producer = Producer(await brokers[coordinator_id].connect())
            await producer.init()
            (number,) = [item.partition for item in state if item.leader != coordinator_id]
            leader = brokers[3 - coordinator_id]
            client = await leader.connect()
            records = txn_records(pid=producer.producer_id, epoch=producer.epoch)
            if version == TV1_VERSION:
                assert await produce(client, version, (number, records), transactional_id="tx") == [
                    (ErrorCode.invalid_txn_state, -1)
                ]
                assert await producer.add("topic", number) == 0
            assert await produce(client, version, (number, records), transactional_id="tx") == [(0, 0)]
            assert await producer.state() == "Ongoing"
            assert leader.partition("topic", number).last_stable_offset == 0
            ended = await producer.end(is_commit=True, version=5 if version == TV2_VERSION else 3)
            assert ended.error_code == 0
            await until(lambda: leader.partition("topic", number).last_stable_offset == 2)
            client.close()
            producer.client.close()

    asyncio.run(scenario())
