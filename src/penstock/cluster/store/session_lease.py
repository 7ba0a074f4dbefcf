"""A lease that ends with a session of the store, and may be acted on for as long as the session's term lasts."""

import asyncio
from math import inf

from penstock.cluster.lease import LeaseTerm


class SessionLease:
    def __init__(self, lease_id: int, term: LeaseTerm) -> None:
        self.id = lease_id
        self._term = term
        self._is_over = False
        self._over = asyncio.Event()

    @property
    def is_lost(self) -> bool:
        return self._is_over or self._term.is_lost

    @property
    def may_act_until(self) -> float:
        # Looked at for every batch. The term's own is in the past when it is lost.
        return -inf if self._is_over else self._term.may_act_until

    async def lost(self) -> None:
        await self._over.wait()

    def on_lost(self) -> None:
        self._is_over = True
        self._over.set()
