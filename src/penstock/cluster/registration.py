"""A broker's presence in the cluster: a lease, its address under the lease, and the controller's chair when free.

The address vanishes with the lease. The chair is taken in one commit with a new controller epoch, which every write of
a controller checks, so one that has lost it can no longer write.
"""

from penstock.base.logging import get_logger
from penstock.base.types import NodeId
from penstock.cluster import records
from penstock.cluster.metadata import Metadata
from penstock.cluster.records import BrokerRecord
from penstock.cluster.store.base import Check, Conflict, Lease, MetadataStore, Put

log = get_logger(__name__)


class NodeIdTaken(Exception):
    """Another broker with this node id is alive."""


class Registration:
    def __init__(self, *, store: MetadataStore, metadata: Metadata, node_id: NodeId) -> None:
        self._store = store
        self._metadata = metadata
        self._node_id = node_id
        self._lease: Lease | None = None

    async def start(self, host: str, port: int, rack: str | None = None) -> None:
        """Tell the cluster where this broker is; return when the image has it. NodeIdTaken if one is already there."""
        key = records.broker_key(self._node_id)
        lease = await self._store.open_lease(f"broker-{self._node_id}")
        put = Put(key, records.encode_broker(BrokerRecord(host, port, rack)), lease.id)
        try:
            revision = await self._store.commit([Check(key, 0)], [put])
        except Conflict:
            await lease.close()
            raise NodeIdTaken(f"a broker with node.id {self._node_id} is already registered") from None
        self._lease = lease
        await self._metadata.applied(revision)
        await self._maybe_become_controller(lease)

    async def stop(self) -> None:
        """Leave the cluster; the lease's keys go."""
        if self._lease is not None:
            await self._lease.close()
            self._lease = None

    async def _maybe_become_controller(self, lease: Lease) -> bool:
        entry = await self._store.get(records.CONTROLLER_EPOCH)
        epoch = records.decode(entry.value)["epoch"] + 1 if entry else 1
        checks = [Check(records.CONTROLLER, 0), Check(records.CONTROLLER_EPOCH, entry.version if entry else 0)]
        writes = [
            Put(records.CONTROLLER, records.encode({"node": self._node_id}), lease.id),
            Put(records.CONTROLLER_EPOCH, records.encode({"epoch": epoch})),
        ]
        try:
            revision = await self._store.commit(checks, writes)
        except Conflict:
            return False
        await self._metadata.applied(revision)
        log.info("controller elected", node=self._node_id, epoch=epoch)
        return True
