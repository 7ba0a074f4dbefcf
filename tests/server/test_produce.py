"""Produce: one reply for each request, whatever the disk, the clock, the topic or the client does meanwhile."""

import asyncio
import gc
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from in_process_broker import RunningBroker, batch_of, logged_errors, produce_fields, run, until

from penstock.base.errors import ErrorCode, Refused
from penstock.server import handlers
from penstock.server.api import ApiKey
from penstock.server.connection import Reply
from penstock.wire.batch import Record, build_batch
from penstock.wire.codec import Struct
from penstock.wire.compression import Codec

handlers.register_all()


@pytest.mark.parametrize("timeout_ms", [20, 0, -1, -(2**31)])
def test_a_timeout_is_answered_once_also_when_the_commit_comes_late(tmp_path: Path, timeout_ms: int) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        client = await broker.connect()
        broker.disk.hold()
        result = await client.produce("t", b"late", timeout_ms=timeout_ms)
        assert (result.error_code, result.base_offset) == (ErrorCode.request_timed_out, -1)
        broker.disk.release()
        await until(lambda: broker.partition("t").high_watermark == 1)
        assert await client.is_silent()
        assert (await client.produce("t", b"next")).base_offset == 1
        assert broker.timers_count == 0

    with logged_errors() as errors:
        run(scenario, tmp_path)
    assert errors == []


def test_a_commit_leaves_no_timer_behind(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t", partitions=3)
        client = await broker.connect()
        for _ in range(20):
            client.send(ApiKey.PRODUCE, 9, **produce_fields("t", timeout_ms=2**31 - 1, partitions=(0, 1, 2)))
        for number in range(1, 21):
            assert await client.receive_id() == number
        assert broker.timers_count == 0

    run(scenario, tmp_path)


def test_what_is_committed_by_the_timeout_is_answered_as_that(tmp_path: Path) -> None:
    """Who is told that it timed out sends it again, and without idempotence it is there twice then."""

    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t", partitions=2)
        client = await broker.connect()
        commit = broker.partition("t", 1).log
        with pytest.MonkeyPatch.context() as patch:
            request = broker.broker.logs.commit.request
            patch.setattr(
                broker.partition("t", 1),
                "_commit",
                SimpleNamespace(request=lambda of, **how: None if of is commit else request(of, **how)),
            )
            answer = await client.ask(ApiKey.PRODUCE, 9, **produce_fields("t", partitions=(0, 1), timeout_ms=200))
        results = {item.index: item.error_code for item in answer.responses[0].partition_responses}
        assert results == {0: ErrorCode.none, 1: ErrorCode.request_timed_out}

    run(scenario, tmp_path)


@pytest.mark.parametrize("end", ["timeout", "gone"])
def test_a_request_that_nobody_waits_for_any_more_holds_no_records(tmp_path: Path, end: str) -> None:
    """With a disk that hangs, each try of a producer would leave its frame behind, in nobody's budget."""

    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        broker.disk.hold()
        client = await broker.connect()
        if end == "timeout":
            result = await client.produce("t", b"x" * 1_000_000, timeout_ms=1)
            assert result.error_code == ErrorCode.request_timed_out
        else:
            client.send(ApiKey.PRODUCE, 9, **produce_fields("t", b"x" * 1_000_000))
            await until(lambda: broker.partition("t").log.log_end == 1)
            client.abort()
        await until(lambda: not [each for each in gc.get_objects() if is_frame(each)])
        broker.disk.release()
        await until(lambda: broker.partition("t").high_watermark == 1)

    def is_frame(each: object) -> bool:
        return isinstance(each, memoryview) and len(each) > 1_000_000

    run(scenario, tmp_path)


def test_a_failed_sync_is_answered_and_nothing_is_promised(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t", partitions=2)
        client = await broker.connect()
        broker.disk.hold()
        for _ in range(3):
            client.send(ApiKey.PRODUCE, 9, **produce_fields("t", partitions=(0, 1)))
        await until(lambda: broker.partition("t", 1).log.log_end == 3)
        broker.disk.error = OSError(5, "Input/output error")
        broker.disk.release()
        for _ in range(3):
            answer = await client.receive_reply(ApiKey.PRODUCE, 9)
            assert _codes(answer) == [ErrorCode.kafka_storage_error] * 2
        assert (await client.produce("t")).error_code == ErrorCode.kafka_storage_error
        assert broker.timers_count == 0
        broker.disk.error = None

    with logged_errors() as errors:
        run(scenario, tmp_path)
    assert [error for error in errors if error.exc_info] == []


def test_a_topic_deleted_meanwhile_is_answered(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        await broker.create_topic("stays")
        client = await broker.connect()
        broker.disk.hold()
        topics = [
            Struct(name=name, partition_data=[Struct(index=0, records=batch_of(b"x"))]) for name in ("t", "stays")
        ]
        client.send(ApiKey.PRODUCE, 9, **{**produce_fields("t"), "topic_data": topics})
        await until(lambda: broker.partition("stays").log.log_end == 1)
        deletion = asyncio.create_task(broker.delete_topic("t"))
        await until(lambda: broker.broker.partitions.topic_id("t") is None)
        broker.disk.release()
        await deletion
        answer = await client.receive_reply(ApiKey.PRODUCE, 9)
        assert _codes(answer) == [ErrorCode.unknown_topic_or_partition, ErrorCode.none]
        assert broker.timers_count == 0

    with logged_errors() as errors:
        run(scenario, tmp_path)
    assert [error for error in errors if error.exc_info] == []


def test_a_log_that_fails_within_a_request_answers_it_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first batch waits for its commit when the second finds out that the disk is gone."""

    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t", partitions=2)
        client = await broker.connect()
        broker.disk.hold()
        log = broker.partition("t").log
        original, calls = log.append, 0

        def append(*arguments: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == 2:
                log.fail("the disk is gone")
                raise Refused(ErrorCode.kafka_storage_error, "the disk is gone")
            original(*arguments)

        monkeypatch.setattr(log, "append", append)
        client.send(ApiKey.PRODUCE, 9, **produce_fields("t", partitions=(0, 0, 1)))
        await until(lambda: broker.partition("t", 1).log.log_end == 1)
        broker.disk.release()
        answer = await client.receive_reply(ApiKey.PRODUCE, 9)
        storage_error = ErrorCode.kafka_storage_error
        assert _codes(answer) == [storage_error, storage_error, ErrorCode.none]

    with logged_errors() as errors:
        run(scenario, tmp_path)
    assert [error for error in errors if error.exc_info] == []


def test_a_client_that_left_leaves_no_timer_once_its_records_are_safe(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        client = await broker.connect()
        broker.disk.hold()
        client.send(ApiKey.PRODUCE, 9, **produce_fields("t", timeout_ms=2**31 - 1))
        await until(lambda: broker.timers_count == 1)
        client.abort()
        await until(lambda: not broker.listener._connections)
        broker.disk.release()
        await until(lambda: broker.timers_count == 0)
        assert broker.partition("t").high_watermark == 1

    run(scenario, tmp_path)


@pytest.mark.parametrize("timeout_ms", [10_000, 900])
def test_reliability_rule_24_a_reply_that_fails_closes_its_connection_and_keeps_nobody_from_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timeout_ms: int
) -> None:
    """All wait for the same sync, or time out in the same tick."""
    original, failing = Reply.send, 0

    def send(reply: Reply, buffers: Any) -> None:
        nonlocal failing
        if failing:
            failing -= 1
            raise RuntimeError("a mistake")
        original(reply, buffers)

    monkeypatch.setattr(Reply, "send", send)

    async def scenario(broker: RunningBroker) -> None:
        nonlocal failing
        await broker.create_topic("t")
        clients = [await broker.connect() for _ in range(4)]
        broker.disk.hold()
        for client in clients:
            client.send(ApiKey.PRODUCE, 9, **produce_fields("t", timeout_ms=timeout_ms))
        await until(lambda: broker.timers_count == 4)
        failing = 1
        if timeout_ms > 1000:
            broker.disk.release()
        codes = []
        for client in clients:
            try:
                codes += _codes(await client.receive_reply(ApiKey.PRODUCE, 9))
            except (asyncio.IncompleteReadError, ConnectionResetError):
                codes.append(ErrorCode.unknown_server_error)
        expected = ErrorCode.none if timeout_ms > 1000 else ErrorCode.request_timed_out
        assert sorted(codes) == sorted([ErrorCode.unknown_server_error, expected, expected, expected])
        broker.disk.release()
        assert (await clients[-1].produce("t")).error_code == 0
        assert broker.timers_count == 0

    with logged_errors() as errors:
        run(scenario, tmp_path)
    assert len(errors) == 1


def test_acks_0_is_silent_and_closes_on_an_error(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        client = await broker.connect()
        client.send(ApiKey.PRODUCE, 9, **produce_fields("t", acks=0))
        await until(lambda: broker.partition("t").high_watermark == 1)
        assert await client.is_silent()
        client.send(ApiKey.PRODUCE, 9, **produce_fields("no-such-topic", acks=0))
        assert await client.is_closed_by_broker()

    run(scenario, tmp_path)


def test_acks_1_does_not_wait_for_the_disk(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        client = await broker.connect()
        broker.disk.hold()
        assert (await client.produce("t", acks=1)).error_code == 0
        assert broker.partition("t").high_watermark == 0

    run(scenario, tmp_path)


def test_the_order_of_one_client_is_the_order_of_the_log(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        client = await broker.connect()
        for number in range(300):
            client.send(ApiKey.PRODUCE, 9, **produce_fields("t", b"%d" % number, acks=number % 3 - 1))
        answered = [await client.receive_reply(ApiKey.PRODUCE, 9) for number in range(300) if number % 3 != 1]
        offsets = [answer.responses[0].partition_responses[0].base_offset for answer in answered]
        assert offsets == [number for number in range(300) if number % 3 != 1]

    run(scenario, tmp_path)


def _codes(answer: Any) -> list[ErrorCode]:
    return [ErrorCode(part.error_code) for topic in answer.responses for part in topic.partition_responses]


def test_a_batch_that_is_decompressed_elsewhere_is_not_overtaken_and_stops_nobody_else(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t", **{"penstock.durability": "os", "max.message.bytes": "20000000"})
        patient, other = await broker.connect(), await broker.connect()
        noise = random.Random(1).randbytes(200_000)  # More than can be known not to be a bomb.
        slow = bytes(build_batch([Record(0, -1, None, noise)], base_offset=0, codec=Codec.GZIP))
        broker.disk.hold()
        first = produce_fields("t")
        first["topic_data"][0].partition_data[0].records = slow
        patient.send(ApiKey.PRODUCE, 9, **first)
        for _ in range(3):
            patient.send(ApiKey.PRODUCE, 9, **produce_fields("t", b"behind it"))
        assert (await other.produce("t", b"from another client")).base_offset == 0
        broker.disk.release()
        offsets = []
        for _ in range(4):
            reply = await patient.receive_reply(ApiKey.PRODUCE, 9)
            offsets.append(reply.responses[0].partition_responses[0].base_offset)
        assert offsets == [1, 2, 3, 4]
        assert broker.listener.budget_used == 0

    run(scenario, tmp_path)
