"""The backends, each as something that several clients can open."""

import asyncio
import itertools
import secrets
from pathlib import Path
from random import Random
from typing import Protocol

from penstock.base.clock import SystemClock
from penstock.cluster.store.base import MetadataStore
from penstock.cluster.store.memory import MemoryStore
from penstock.cluster.store.sqlite import SqliteStore
from penstock.cluster.store.zookeeper.address import parse_connect_string
from penstock.cluster.store.zookeeper.store import ZooKeeperStore
from penstock.local.zookeeper import ZooKeeperEnsemble
from penstock.sim.clock import SimClock, SimLoop
from penstock.sim.ensemble import Ensemble
from penstock.sim.network import SimNetwork
from penstock.sim.store import SimStore
from zookeeper_sessions import end_session

_CHROOTS = itertools.count()


class Backend(Protocol):
    async def open(self) -> MetadataStore:
        """A client of its own, where the backend has such; all see the same keys."""

    async def expire(self, store: MetadataStore, owner: str) -> None:
        """End the leases of a client from outside."""

    async def close(self) -> None: ...


class SimBackend:
    """In virtual time."""

    def __init__(self) -> None:
        self.loop = SimLoop()
        network = SimNetwork(loop=self.loop, random=Random(1))
        self._ensemble = Ensemble(network=network, random=Random(2))
        self._stores: list[SimStore] = []
        self._publishing: asyncio.Task[None] | None = None

    async def open(self) -> MetadataStore:
        if self._publishing is None:
            self._publishing = asyncio.create_task(self._ensemble.publish())
        store = sim_store(self._ensemble, self.loop)
        self._stores.append(store)
        await store.start()
        return store

    async def expire(self, store: MetadataStore, owner: str) -> None:
        assert isinstance(store, SimStore) and store.session is not None
        self._ensemble.end(store.session)

    async def close(self) -> None:
        for store in self._stores:
            await store.close()


def sim_store(ensemble: Ensemble, loop: SimLoop, timeout_s: float = 6.0) -> SimStore:
    return SimStore(ensemble=ensemble, timeout_s=timeout_s, clock=SimClock(loop), random=Random(3))


class MemoryBackend:
    def __init__(self) -> None:
        self._store = MemoryStore()

    async def open(self) -> MetadataStore:
        return self._store

    async def expire(self, store: MetadataStore, owner: str) -> None:
        self._store.expire_leases(owner)

    async def close(self) -> None:
        await self._store.close()


class SqliteBackend:
    def __init__(self, directory: Path) -> None:
        self._path = str(directory / "metadata.db")
        self._store: SqliteStore | None = None

    async def open(self) -> MetadataStore:
        if self._store is None:
            self._store = SqliteStore(self._path)
            await self._store.start()
        return self._store

    async def expire(self, store: MetadataStore, owner: str) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        if self._store is not None:
            await self._store.close()


class ZooKeeperBackend:
    def __init__(self, ensemble: ZooKeeperEnsemble) -> None:
        self._connect = f"{ensemble.connect}/{fresh_chroot()}"
        self._stores: list[ZooKeeperStore] = []

    async def open(self) -> MetadataStore:
        store = zookeeper_store(self._connect)
        self._stores.append(store)
        await store.start()
        return store

    async def expire(self, store: MetadataStore, owner: str) -> None:
        assert isinstance(store, ZooKeeperStore)
        await end_session(store)

    async def close(self) -> None:
        for store in self._stores:
            await store.close()


def zookeeper_store(connect: str, session_timeout_ms: int = 10_000) -> ZooKeeperStore:
    return ZooKeeperStore(
        connect=parse_connect_string(connect),
        session_timeout_ms=session_timeout_ms,
        connection_timeout_ms=30_000,
        clock=SystemClock(),
        random=Random(),
    )


def fresh_chroot() -> str:
    return f"test/{next(_CHROOTS)}-{secrets.token_hex(3)}"
