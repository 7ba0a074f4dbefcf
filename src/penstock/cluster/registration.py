"""A broker's presence in the cluster: a lease, its address under the lease, and the controller's chair when free.

The address vanishes with the lease. The chair is taken in one commit with a new controller epoch, which every write of
a controller checks, so one that has lost it can no longer write. A lease that is lost (the store took us for dead) is
followed by a new one, under which the broker is another: its epoch is higher.
"""

import asyncio
from collections.abc import Callable
from random import Random

from penstock.base.logging import get_logger
from penstock.base.types import NO_NODE, NodeId
from penstock.cluster import records
from penstock.cluster.image import ClusterImage
from penstock.cluster.metadata import Metadata
from penstock.cluster.records import BrokerRecord
from penstock.cluster.store.base import (
    Check,
    CommitUnknown,
    Conflict,
    Lease,
    LeaseLost,
    MetadataStore,
    Put,
    StoreUnavailable,
)

log = get_logger(__name__)

RETRY_S = 1.0  # After the store was away, or somebody else was faster.
# Of the store's timeout: ZooKeeper may take a tick more than that to end a session, and a tick is at most half of it.
LEASE_TIMEOUTS_WAITED = 2
STOP_S_MAX = 3.0  # A store that cannot be reached ends the lease by itself.


class NodeIdTaken(Exception):
    """Another broker with this node id is alive."""


class Registration:
    def __init__(
        self,
        *,
        store: MetadataStore,
        metadata: Metadata,
        node_id: NodeId,
        random: Random,
        on_lost: Callable[[], None] = lambda: None,
        on_registered: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_lost` is called when the lease is over, `on_registered` when the image has the broker, once more too."""
        self._store = store
        self._metadata = metadata
        self._node_id = node_id
        self._random = random
        self._on_lost = on_lost
        self._on_registered = on_registered
        self._record: BrokerRecord | None = None
        self._lease: Lease | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._electing: asyncio.Task[None] | None = None

    @property
    def lease(self) -> Lease | None:
        """The lease that this broker acts under; its `may_act_until` says for how long."""
        return self._lease

    async def start(self, host: str, port: int, rack: str | None = None) -> None:
        """Tell the cluster where this broker is; return when the image has it. NodeIdTaken if one is already there."""
        self._record = BrokerRecord(host, port, rack, secret=f"{self._random.getrandbits(128):032x}")
        await self._register(self._record)
        await self._maybe_become_controller()
        self._metadata.subscribe(self._on_image)
        self._on_image(self._metadata.image)
        self._keeping = asyncio.create_task(self._keep(), name="registration")

    async def begin_stop(self) -> None:
        """Tell the cluster that this broker is about to stop, so that others take over first; return when it knows."""
        assert self._record is not None and self._lease is not None
        self._record = self._record._replace(is_stopping=True)
        key = records.broker_key(self._node_id)
        revision = await self._store.commit([], [Put(key, records.encode_broker(self._record), self._lease.id)])
        await self._metadata.applied(revision)

    async def stop(self) -> None:
        """Leave the cluster; the lease's keys go. OSError when the store cannot be told: they go later."""
        tasks = [task for task in (self._keeping, self._electing) if task is not None]
        self._keeping = self._electing = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        lease, self._lease = self._lease, None
        if lease is not None:
            await asyncio.wait_for(lease.close(), STOP_S_MAX)

    async def _register(self, record: BrokerRecord) -> None:
        key = records.broker_key(self._node_id)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + LEASE_TIMEOUTS_WAITED * self._store.lease_timeout_s
        is_told = False
        while True:
            lease = await self._store.open_lease(f"broker-{self._node_id}")
            try:
                revision = await self._store.commit(
                    [Check(key, 0)], [Put(key, records.encode_broker(record), lease.id)]
                )
            except (CommitUnknown, LeaseLost):
                # Should it have been done, then closing the lease takes it back.
                await lease.close()
                continue
            except Conflict:
                await lease.close()
                if loop.time() >= deadline:
                    raise NodeIdTaken(f"a broker with node.id {self._node_id} is already registered") from None
                if not is_told:
                    # It may be ourselves: after a crash the store takes a while to notice.
                    log.warning("waiting for an earlier registration to end", node=self._node_id)
                    is_told = True
                await asyncio.sleep(min(RETRY_S, self._store.lease_timeout_s / 4))
                continue
            self._lease = lease
            await self._metadata.applied(revision)
            self._on_registered()
            return

    async def _keep(self) -> None:
        """Come back after each loss of the lease, for as long as it takes."""
        while True:
            assert self._lease is not None
            await self._lease.lost()
            self._on_lost()
            log.warning("broker was taken for dead, registering anew", node=self._node_id)
            while True:
                try:
                    assert self._record is not None
                    await self._register(self._record)
                    break
                except (NodeIdTaken, StoreUnavailable) as error:
                    log.error("broker cannot register", node=self._node_id, reason=error)
                    await asyncio.sleep(RETRY_S)
            self._on_image(self._metadata.image)

    def _on_image(self, image: ClusterImage) -> None:
        if self._keeping is None and self._lease is None:
            return  # Stopped.
        if image.controller_id == NO_NODE and (self._electing is None or self._electing.done()):
            self._electing = asyncio.create_task(self._elect(), name="controller election")

    async def _elect(self) -> None:
        """Try for the chair until somebody has it."""
        while self._metadata.image.controller_id == NO_NODE and self._lease is not None and not self._lease.is_lost:
            try:
                if await self._maybe_become_controller():
                    return
            except (LeaseLost, StoreUnavailable) as error:
                log.warning("controller election cannot be held", node=self._node_id, reason=error)
            await asyncio.sleep(RETRY_S)

    async def _maybe_become_controller(self) -> bool:
        assert self._lease is not None
        entry = await self._store.get(records.CONTROLLER_EPOCH)
        epoch = records.decode(entry.value)["epoch"] + 1 if entry else 1
        checks = [Check(records.CONTROLLER, 0), Check(records.CONTROLLER_EPOCH, entry.version if entry else 0)]
        writes = [
            Put(records.CONTROLLER, records.encode({"node": self._node_id}), self._lease.id),
            Put(records.CONTROLLER_EPOCH, records.encode({"epoch": epoch})),
        ]
        try:
            revision = await self._store.commit(checks, writes)
        except Conflict as conflict:
            await self._metadata.applied(conflict.revision)
            return False
        await self._metadata.applied(revision)
        log.info("controller elected", node=self._node_id, epoch=epoch)
        return True
