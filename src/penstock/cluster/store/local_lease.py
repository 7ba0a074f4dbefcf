"""A lease in a store inside this process: it ends when it is closed, or with the process."""

import asyncio
from collections.abc import Awaitable, Callable
from math import inf


class LocalLease:
    def __init__(
        self,
        lease_id: int,
        owner: str,
        *,
        is_open: "Callable[[LocalLease], bool]",
        end: "Callable[[LocalLease], Awaitable[None]]",
    ) -> None:
        self.id = lease_id
        self.owner = owner
        self._is_open = is_open
        self._end = end
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def is_lost(self) -> bool:
        return not self._is_open(self)

    @property
    def may_act_until(self) -> float:
        return -inf if self.is_lost else inf

    async def lost(self) -> None:
        if not self.is_lost:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def on_lost(self) -> None:
        for waiter in self._waiters:
            # As in the feed: it may be on a loop that is gone.
            if not waiter.done() and not waiter.get_loop().is_closed():
                waiter.set_result(None)

    async def close(self) -> None:
        await self._end(self)
