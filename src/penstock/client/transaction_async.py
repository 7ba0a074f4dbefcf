"""Transactions and steps for asyncio: the same promises, and an event loop that never waits in librdkafka."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar

from penstock.client import transaction
from penstock.client.message import Content, Message, Receipt
from penstock.client.process import Step
from penstock.client.publisher import FULL_POLL_S, Publisher
from penstock.client.subscription_async import AsyncSubscription
from penstock.client.transaction import Transaction

T = TypeVar("T")


async def published(publisher: Publisher, topic: str, value: Content, **options: Any) -> Receipt:
    """The receipt, once the message is delivered. Waits while the queue is full."""
    while True:
        future = publisher.try_publish(topic, value, **options)
        if future is not None:
            return await asyncio.wrap_future(future)
        await asyncio.sleep(FULL_POLL_S)


class AsyncTransaction:
    """Made by `AsyncConnection.transaction`, for one `async with` block."""

    def __init__(self, inner: Transaction) -> None:
        self._inner = inner

    async def publish(self, topic: str, value: Content, **options: Any) -> Receipt:
        """As `AsyncConnection.publish`: returns when the message is stored; it counts once the block has ended."""
        return await published(self._inner.publisher(), topic, value, **options)

    async def __aenter__(self) -> Self:
        transaction.enter(self._inner)
        try:
            await _to_the_end(self._inner.begin)
        except BaseException:
            transaction.leave(self._inner)
            await _to_the_end(self._inner.abort)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        transaction.leave(self._inner)
        await _to_the_end(self._inner.commit if kind is None else self._inner.abort)


class AsyncStep(AsyncSubscription):
    """Made by `AsyncConnection.process`. For one task at a time, except `publish` and `stop`."""

    def __init__(self, step: Step, *, timeout: float | None) -> None:
        super().__init__(step, timeout=timeout)
        self._step = step

    async def publish(self, topic: str, value: Content, **options: Any) -> Receipt:
        """As `AsyncConnection.publish`: part of the transaction that the message in hand is part of."""
        return await published(self._step.publisher(), topic, value, **options)

    async def __anext__(self) -> Message:
        while True:
            try:
                return await super().__anext__()
            except StopAsyncIteration:
                # The end: of what is undone now, the messages come again.
                if self._step.is_closed or await self._in_thread(self._step.finish):
                    raise

    async def __aenter__(self) -> Self:
        transaction.enter(self._step)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        transaction.leave(self._step)
        try:
            if kind is None and not self._step.is_closed:
                await self.commit()
        finally:
            await self.close()


async def _to_the_end(work: Callable[[], T]) -> T:
    """Done in a thread, and waited for even by a task that is cancelled: nobody else would end what was begun."""
    working = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait([working])
        raise
