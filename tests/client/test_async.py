"""The client for asyncio: the same promises, and an event loop that never waits in librdkafka."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import penstock
from penstock.client import AsyncConnection, ClientError, Closed, DeliveryFailed, Unreachable
from penstock.testing import EmbeddedBroker

TIMEOUT_S = 60.0


def run(scenario: Callable[[AsyncConnection], Awaitable[None]], broker: EmbeddedBroker, **options: Any) -> None:
    async def connected() -> None:
        opening = penstock.connect_async(broker.bootstrap_servers, publish_timeout=60, **options)
        async with asyncio.timeout(TIMEOUT_S), await opening as connection:
            await scenario(connection)

    asyncio.run(connected())


def test_publish_and_subscribe(penstock_broker: EmbeddedBroker, penstock_topic: str) -> None:
    async def scenario(connection: AsyncConnection) -> None:
        receipts = await asyncio.gather(*(connection.publish(penstock_topic, str(number)) for number in range(50)))
        assert [receipt.offset for receipt in receipts] == list(range(50))
        values = []
        async with connection.subscribe(penstock_topic, group="g") as messages:
            async for message in messages:
                values.append(int(message.value or b""))
                if len(values) == 50:
                    break
        assert values == list(range(50))
        async with connection.subscribe(penstock_topic, group="g", timeout=1) as messages:
            assert [message async for message in messages] == []

    run(scenario, penstock_broker)


@pytest.mark.parametrize(("delivery", "next_value"), [("at-least-once", b"0"), ("at-most-once", b"1")])
def test_a_message_whose_handling_failed_is_kept_or_gone_as_asked_for(
    delivery: str, next_value: bytes, penstock_broker: EmbeddedBroker, penstock_topic: str
) -> None:
    async def scenario(connection: AsyncConnection) -> None:
        for number in range(2):
            await connection.publish(penstock_topic, str(number))
        with pytest.raises(ZeroDivisionError):
            async with connection.subscribe(penstock_topic, group="g") as messages:
                async for _ in messages:
                    1 / 0  # noqa: B018 (stands for a handler that fails)
        async with connection.subscribe(penstock_topic, group="g") as messages:
            message = await messages.receive()
            assert message is not None and message.value == next_value

    run(scenario, penstock_broker, delivery=delivery)


def test_a_wait_that_was_cancelled_loses_no_message(penstock_broker: EmbeddedBroker, penstock_topic: str) -> None:
    async def scenario(connection: AsyncConnection) -> None:
        async with connection.subscribe(penstock_topic, group="g") as messages:
            waits = 0
            sender = asyncio.create_task(publish_slowly(connection, penstock_topic, 30))
            values: list[bytes | None] = []
            while len(values) < 30:
                try:
                    async with asyncio.timeout(0.003):
                        values.append((await anext(messages)).value)
                except TimeoutError:
                    waits += 1
                    if waits % 10 == 0:
                        await messages.commit()
            await sender
        assert waits > 5
        assert values == [str(number).encode() for number in range(30)]

    run(scenario, penstock_broker, settings={"linger.ms": 0})


async def publish_slowly(connection: AsyncConnection, topic: str, count: int) -> None:
    for number in range(count):
        await connection.publish(topic, str(number))
        await asyncio.sleep(0.005)


def test_waiting_does_not_hold_up_the_loop(penstock_broker: EmbeddedBroker, penstock_topic: str) -> None:
    async def scenario(connection: AsyncConnection) -> None:
        turns = 0
        async with connection.subscribe(penstock_topic, group="g") as messages:
            waiting = asyncio.create_task(messages.receive(2))
            while not waiting.done():
                await asyncio.sleep(0.01)
                turns += 1
        assert turns >= 10

    run(scenario, penstock_broker)


def test_a_full_queue_makes_the_publisher_wait(penstock_broker: EmbeddedBroker, penstock_topic: str) -> None:
    async def scenario(connection: AsyncConnection) -> None:
        receipts = await asyncio.gather(*(connection.publish(penstock_topic, "x") for _ in range(200)))
        assert len({receipt.offset for receipt in receipts}) == 200

    run(scenario, penstock_broker, settings={"queue.buffering.max.messages": 10})


def test_stop_ends_the_iteration(penstock_broker: EmbeddedBroker, penstock_topic: str) -> None:
    async def scenario(connection: AsyncConnection) -> None:
        messages = connection.subscribe(penstock_topic, group="g")
        asyncio.get_running_loop().call_later(0.2, messages.stop)
        assert [message async for message in messages] == []

    run(scenario, penstock_broker)


def test_errors_are_those_of_the_other_client(penstock_broker: EmbeddedBroker, penstock_topic: str) -> None:
    async def scenario(connection: AsyncConnection) -> None:
        with pytest.raises(ClientError, match="no transaction"):
            await connection.publish(penstock_topic, "x", delivery="exactly-once")
        with pytest.raises(DeliveryFailed, match="too large"):
            await connection.publish(penstock_topic, b"x" * 2_000_000)
        with pytest.raises(Unreachable):
            await penstock.connect_async("localhost:1")
        await connection.flush()
        await connection.close()
        with pytest.raises(Closed):
            await connection.publish(penstock_topic, "x")

    run(scenario, penstock_broker)
