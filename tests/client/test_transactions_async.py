"""Transactions and steps for asyncio: the same promises."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import penstock
from penstock.client import AsyncConnection
from penstock.testing import EmbeddedBroker

TIMEOUT_S = 60.0


def run(scenario: Callable[[AsyncConnection], Awaitable[None]], broker: EmbeddedBroker) -> None:
    async def connected() -> None:
        async with asyncio.timeout(TIMEOUT_S), await penstock.connect_async(broker.bootstrap_servers) as connection:
            await scenario(connection)

    asyncio.run(connected())


async def seen(connection: AsyncConnection, topic: str, count: int) -> list[bytes | None]:
    async with connection.subscribe(topic, group="reader") as messages:
        found = []
        async for message in messages:
            found.append(message.value)
            if len(found) == count:
                break
        return found


def test_all_is_seen_or_nothing(penstock_broker: EmbeddedBroker, penstock_topic: str) -> None:
    async def scenario(connection: AsyncConnection) -> None:
        with pytest.raises(ZeroDivisionError):
            async with connection.transaction() as transaction:
                await transaction.publish(penstock_topic, "never seen")
                1 / 0  # noqa: B018
        async with connection.transaction():
            # Tasks that begin in the block belong to it.
            await asyncio.gather(*(connection.publish(penstock_topic, "seen") for _ in range(3)))
        assert await seen(connection, penstock_topic, 3) == [b"seen"] * 3

    run(scenario, penstock_broker)


def test_a_task_that_is_cancelled_aborts_it(penstock_broker: EmbeddedBroker, penstock_topic: str) -> None:
    async def scenario(connection: AsyncConnection) -> None:
        async def publish_and_wait() -> None:
            async with connection.transaction(id="one"):
                await connection.publish(penstock_topic, "never seen")
                stored.set()
                await asyncio.sleep(TIMEOUT_S)

        stored = asyncio.Event()
        waiting = asyncio.create_task(publish_and_wait())
        await stored.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        begun = asyncio.create_task(publish_and_wait())
        await asyncio.sleep(0)
        begun.cancel()  # While it gets to know the coordinator, or before.
        with pytest.raises(asyncio.CancelledError):
            await begun
        async with connection.transaction(id="one"):
            await connection.publish(penstock_topic, "seen")
        assert await seen(connection, penstock_topic, 1) == [b"seen"]

    run(scenario, penstock_broker)


def test_each_message_counts_once(penstock_broker: EmbeddedBroker, penstock_topic: str) -> None:
    source = penstock_broker.create_topic()

    async def scenario(connection: AsyncConnection) -> None:
        for number in range(10):
            await connection.publish(source, str(number))
        with pytest.raises(ZeroDivisionError):
            async with connection.process(source, group="copy", batch=4, batch_seconds=60) as step:
                async for message in step:
                    await step.publish(penstock_topic, message.value)
                    1 / (6 - message.offset)
        async with connection.process(source, group="copy") as step:
            async for message in step:
                await connection.publish(penstock_topic, message.value)
                if message.value == b"9":
                    break
        assert await seen(connection, penstock_topic, 10) == [str(number).encode() for number in range(10)]

    run(scenario, penstock_broker)
