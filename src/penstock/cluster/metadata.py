"""The broker's view of the cluster: follows the store, keeps the image, tells those who subscribed.

Everything here runs on the event loop. For each commit the image is replaced, then the subscribers are called one after
the other, and only then do those wake who wait for the commit in `applied`. So when the controller answers that a topic
exists, this broker's partitions of it do.
"""

import asyncio
from base64 import urlsafe_b64encode
from collections.abc import Callable
from contextlib import suppress
from uuid import UUID, uuid4

from penstock.base.config_key import InvalidConfig
from penstock.base.logging import get_logger
from penstock.cluster import records
from penstock.cluster.image import EMPTY_IMAGE, ClusterImage, apply
from penstock.cluster.store.base import Change, Check, Compacted, Conflict, MetadataStore, Put, StoreUnavailable

log = get_logger(__name__)

RELOAD_S = 1.0  # The store itself has waited before it gave up.

Subscriber = Callable[[ClusterImage], None]
Condition = Callable[[ClusterImage], bool]


class Metadata:
    def __init__(
        self,
        *,
        store: MetadataStore,
        cluster_id: str | None = None,
        new_uuid: Callable[[], UUID] = uuid4,
        check_cluster: Callable[[str], None] = lambda cluster_id: None,
    ) -> None:
        """`check_cluster` is told the cluster's id before anything else is read, and may raise."""
        self._store = store
        self._cluster_id = cluster_id
        self._new_uuid = new_uuid
        self._check_cluster = check_cluster
        self._subscribers: list[Subscriber] = []
        self._revision = 0  # The last commit that is in the image.
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._conditions: list[tuple[Condition, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None
        self.image = EMPTY_IMAGE

    async def start(self) -> None:
        """Read the store, which gets a cluster id if it has none, and follow it from there.

        InvalidConfig when the store belongs to another cluster than the one asked for.
        """
        await self._ensure_cluster_id()
        await self._load()
        self._task = asyncio.create_task(self._follow(), name="metadata")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def subscribe(self, subscriber: Subscriber) -> None:
        """Have `subscriber` called with the new image after each change from now on, in the order of subscription."""
        self._subscribers.append(subscriber)

    async def applied(self, revision: int) -> None:
        """Return when the image has the commit `revision` and all subscribers have seen it.

        StoreUnavailable when the store is no longer followed.
        """
        if revision <= self._revision:
            return
        if self._task is None or self._task.done():
            raise StoreUnavailable("the metadata store is not followed")
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((revision, waiter))
        await waiter

    async def until(self, condition: Condition) -> None:
        """Return when the condition holds for the image, and all subscribers have seen it.

        StoreUnavailable when the store is no longer followed. Who cannot wait for ever sets a timeout.
        """
        while not condition(self.image):
            if self._task is None or self._task.done():
                raise StoreUnavailable("the metadata store is not followed")
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._conditions.append((condition, waiter))
            try:
                await waiter
            finally:
                self._conditions = [item for item in self._conditions if item[1] is not waiter]

    async def _ensure_cluster_id(self) -> None:
        wanted = self._cluster_id
        if await self._store.get(records.CLUSTER_ID) is None:
            new = wanted or self._new_cluster_id()
            with suppress(Conflict):  # Another broker was first; its id is as good, unless we were given one.
                await self._store.commit(
                    [Check(records.CLUSTER_ID, 0)], [Put(records.CLUSTER_ID, records.encode({"id": new}))]
                )
        entry = await self._store.get(records.CLUSTER_ID)
        assert entry is not None, "the cluster id is never deleted"
        found = records.decode(entry.value)["id"]
        if wanted is not None and wanted != found:
            raise InvalidConfig(f"cluster.id is {wanted!a}, allowed is {found!a}, the cluster that this data is of")
        self._check_cluster(found)

    def _new_cluster_id(self) -> str:
        while True:
            text = urlsafe_b64encode(self._new_uuid().bytes).decode().rstrip("=")
            if not text.startswith("-"):  # It would read as an option on a command line.
                return text

    async def _load(self) -> None:
        listing = await self._store.list("/")
        image = apply(EMPTY_IMAGE, [Change(entry.key, entry) for entry in listing.entries])
        self._advance(image, listing.revision)

    async def _follow(self) -> None:
        try:
            while True:
                try:
                    async for commit in self._store.watch(self._revision):
                        self._advance(apply(self.image, commit.changes), commit.revision)
                except Compacted:
                    log.warning("metadata fell behind, reading it anew", revision=self._revision)
                    await self._reload()
        except Exception:
            log.exception("metadata is no longer followed")
            raise
        finally:
            for _, waiter in (*self._waiters, *self._conditions):
                if not waiter.done():
                    waiter.set_exception(StoreUnavailable("the metadata store is no longer followed"))

    async def _reload(self) -> None:
        while True:
            try:
                return await self._load()
            except StoreUnavailable as error:
                log.warning("metadata cannot be read", reason=error)
                await asyncio.sleep(RELOAD_S)

    def _advance(self, image: ClusterImage, revision: int) -> None:
        if image is not self.image:
            self.image = image
            for subscriber in self._subscribers:
                try:
                    subscriber(image)
                except Exception:
                    # One part that cannot follow must not keep the others from it.
                    log.exception("metadata subscriber failed", subscriber=subscriber)
        self._revision = revision
        waiting = self._waiters
        self._waiters = []
        for wanted, waiter in waiting:
            if wanted > revision:
                self._waiters.append((wanted, waiter))
            elif not waiter.done():
                waiter.set_result(None)
        for condition, waiter in self._conditions:
            if not waiter.done() and condition(image):
                waiter.set_result(None)
