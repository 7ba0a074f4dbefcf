"""The connection for asyncio: the same calls, awaited.

async with await penstock.connect_async("localhost:9092") as connection:
    await connection.publish("orders", "42 paid", key="42")
"""

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self

from penstock.client.connection import PUBLISH_TIMEOUT_S, Connection, connect
from penstock.client.message import Content, Headers, Receipt
from penstock.client.process import BATCH_MAX, BATCH_S_MAX
from penstock.client.subscription_async import AsyncSubscription
from penstock.client.transaction import TRANSACTION_TIMEOUT_S
from penstock.client.transaction_async import AsyncStep, AsyncTransaction, published


async def connect_async(
    bootstrap_servers: str = "localhost:9092",
    *,
    delivery: str = "at-least-once",
    publish_timeout: float = PUBLISH_TIMEOUT_S,
    settings: Mapping[str, Any] | None = None,
) -> "AsyncConnection":
    """As `connect`, for asyncio."""
    connection = await asyncio.to_thread(
        connect, bootstrap_servers, delivery=delivery, publish_timeout=publish_timeout, settings=settings
    )
    return AsyncConnection(connection)


class AsyncConnection:
    """Made by `connect_async`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._subscriptions: list[AsyncSubscription] = []

    async def publish(
        self,
        topic: str,
        value: Content,
        *,
        key: Content = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        delivery: str | None = None,
    ) -> Receipt:
        """The receipt, once the message is delivered; DeliveryFailed when it was not.

        Awaited one by one, messages go one by one; `asyncio.gather` or a task group sends them in batches.
        """
        publisher = self._connection.publisher(delivery)
        return await published(
            publisher, topic, value, key=key, headers=headers, partition=partition, timestamp=timestamp
        )

    def subscribe(
        self,
        topic: str | Sequence[str],
        *,
        group: str,
        start: Literal["earliest", "latest"] = "earliest",
        timeout: float | None = None,
        delivery: str | None = None,
    ) -> AsyncSubscription:
        """An asynchronous iterator of messages, for an `async with` block. See `Connection.subscribe`."""
        inner = self._connection.subscribe(topic, group=group, start=start, timeout=timeout, delivery=delivery)
        subscription = AsyncSubscription(inner, timeout=timeout)
        self._subscriptions = [each for each in self._subscriptions if not each.is_closed] + [subscription]
        return subscription

    def transaction(self, *, id: str | None = None, timeout: float = TRANSACTION_TIMEOUT_S) -> AsyncTransaction:
        """For an `async with` block. See `Connection.transaction`; tasks that are begun in the block belong to it."""
        return AsyncTransaction(self._connection.transaction(id=id, timeout=timeout))

    def process(
        self,
        topic: str | Sequence[str],
        *,
        group: str,
        start: Literal["earliest", "latest"] = "earliest",
        timeout: float | None = None,
        batch: int = BATCH_MAX,
        batch_seconds: float = BATCH_S_MAX,
        id: str | None = None,
        transaction_timeout: float = TRANSACTION_TIMEOUT_S,
    ) -> AsyncStep:
        """An asynchronous iterator of messages, for an `async with` block. See `Connection.process`."""
        inner = self._connection.process(
            topic,
            group=group,
            start=start,
            timeout=timeout,
            batch=batch,
            batch_seconds=batch_seconds,
            id=id,
            transaction_timeout=transaction_timeout,
        )
        step = AsyncStep(inner, timeout=timeout)
        self._subscriptions = [each for each in self._subscriptions if not each.is_closed] + [step]
        return step

    async def flush(self) -> None:
        """Return when everything published so far is delivered or given up."""
        await asyncio.to_thread(self._connection.flush)

    async def close(self) -> None:
        """Leave all groups, and return when everything published is delivered or given up."""
        for subscription in self._subscriptions:
            await subscription.close()
        await asyncio.to_thread(self._connection.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
