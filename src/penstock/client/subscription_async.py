"""A subscription for asyncio: an asynchronous iterator of messages.

A thread of its own waits in librdkafka, so the event loop never does. A task that is cancelled while it waits loses no
message: what the thread receives meanwhile is handed to whoever asks next.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from penstock.client.message import Message
from penstock.client.subscription import POLL_S, Subscription

T = TypeVar("T")


class AsyncSubscription:
    """For one task at a time, except `stop`."""

    def __init__(self, subscription: Subscription, *, timeout: float | None) -> None:
        self._subscription = subscription
        self._timeout = timeout
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="penstock subscription")
        self._receiving: asyncio.Future[Message | None] | None = None

    async def receive(self, timeout: float | None = None) -> Message | None:  # noqa: ASYNC109 (as in Subscription)
        """The next message; None after `timeout` seconds without one, or when the subscription was stopped.

        Asking for the next message says that the one before it is done.
        """
        if self._receiving is None and self._subscription.is_prompt:
            # What is here already needs no thread: ten times as fast.
            message = self._subscription.receive(0)
            if message is not None:
                return message
        give_up_at = None if timeout is None else time.monotonic() + timeout
        while True:
            if self._receiving is None:
                # In short waits, so that what else the thread is asked to do has its turn.
                left_s = POLL_S if give_up_at is None else min(POLL_S, max(0.0, give_up_at - time.monotonic()))
                self._receiving = self._in_thread(partial(self._subscription.receive, left_s))
            message = await self._received()
            if message is not None or self._subscription.is_stopping:
                return message
            if give_up_at is not None and time.monotonic() >= give_up_at:
                return None

    async def _received(self) -> Message | None:
        assert self._receiving is not None, "something is being received"
        try:
            message = await asyncio.shield(self._receiving)
        except asyncio.CancelledError:
            raise  # The thread is still at it, or just done: `_receiving` keeps what it finds for whoever asks next.
        except BaseException:
            self._receiving = None
            raise
        self._receiving = None
        return message

    async def commit(self) -> None:
        """Return when the broker has noted that all messages so far, the last one included, are done."""
        # After a cancelled wait, the last message may be one that nobody has seen yet.
        include_last = self._receiving is None
        await self._in_thread(partial(self._subscription.commit, include_last=include_last))

    def stop(self) -> None:
        """End the iteration before its next message."""
        self._subscription.stop()

    async def close(self) -> None:
        """Leave the group. A message that is not done goes to another member, or to the next subscription."""
        self._subscription.stop()
        if not self._subscription.is_closed:
            await self._in_thread(self._subscription.close)
        self._thread.shutdown(wait=False)

    @property
    def is_closed(self) -> bool:
        return self._subscription.is_closed

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        if self._subscription.is_closed:
            raise StopAsyncIteration
        message = await self.receive(self._timeout)
        if message is None:
            raise StopAsyncIteration
        return message

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # With a receive still under way, nobody has seen what it finds: only the message before it can be done.
        if kind is None and self._receiving is None and not self._subscription.is_closed:
            await self._in_thread(self._subscription.mark_done)
        await self.close()

    def _in_thread(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        return asyncio.get_running_loop().run_in_executor(self._thread, work)
