"""Following and being followed: the fetchers, one for each broker that leads what this one follows."""

from collections.abc import Callable

from penstock.base.clock import Clock
from penstock.base.config import BrokerConfig
from penstock.base.types import NO_NODE, NodeId
from penstock.cluster.image import PartitionState
from penstock.partition.fetcher import Fetcher
from penstock.partition.partition import Partition
from penstock.partition.peers import PeerLinks
from penstock.partition.replication_quota import ReplicationQuotas


class Replication:
    def __init__(
        self, *, config: BrokerConfig, clock: Clock, links: PeerLinks, broker_epoch: Callable[[], int]
    ) -> None:
        """`broker_epoch` gives the epoch of this broker's present registration."""
        self._config = config
        self._clock = clock
        self._links = links
        self._broker_epoch = broker_epoch
        self.quotas = ReplicationQuotas(config.node_id)
        self._fetchers: dict[NodeId, Fetcher] = {}
        self._leader_of: dict[Partition, NodeId] = {}  # Those that are being copied.

    def follow(self, partition: Partition, state: PartitionState) -> None:
        """Copy the partition from its leader, if that is another broker."""
        if state.leader in (NO_NODE, self._config.node_id):
            self.stop_following(partition)
            return
        if self._leader_of.get(partition, state.leader) != state.leader:
            self.stop_following(partition)
        self._leader_of[partition] = state.leader
        fetcher = self._fetchers.get(state.leader)
        if fetcher is None:
            fetcher = self._fetchers[state.leader] = Fetcher(
                leader=state.leader,
                node_id=self._config.node_id,
                broker_epoch=self._broker_epoch,
                links=self._links,
                clock=self._clock,
                wait_max_ms=self._config.replica_fetch_wait_max_ms,
                quota=self.quotas.follower,
            )
        fetcher.follow(partition, state.leader_epoch, is_in_sync=self._config.node_id in state.isr)

    def stop_following(self, partition: Partition) -> None:
        leader = self._leader_of.pop(partition, None)
        if leader is not None:
            self._fetchers[leader].drop(partition)

    async def stop(self) -> None:
        for fetcher in self._fetchers.values():
            await fetcher.stop()
