"""This broker's part in replication: the partitions it hosts, who may lead them, what it hands over when it stops."""

import asyncio

from penstock.base.clock import Clock
from penstock.base.config import BrokerConfig
from penstock.base.logging import get_logger
from penstock.base.types import NodeId
from penstock.cluster.controller import Controller
from penstock.cluster.image import ClusterImage
from penstock.cluster.metadata import Metadata
from penstock.cluster.registration import Registration
from penstock.cluster.store.base import LeaseLost
from penstock.partition.isr_changes import IsrChanges
from penstock.partition.manager import PartitionManager
from penstock.partition.replica_state import NO_BROKER_EPOCH
from penstock.partition.replication import Replication
from penstock.server.isr_requests import IsrRequests
from penstock.server.peers import Peers
from penstock.storage.fs import FileSystem
from penstock.storage.log_manager import LogManager

log = get_logger(__name__)

LOOK_S = 0.5  # A silent follower is noticed this much late; 10,000 partitions take 10 ms to look at.
HAND_OVER_S_MAX = 5.0  # The controller takes some milliseconds, unless it has gone as well.


class Replicas:
    def __init__(
        self,
        *,
        config: BrokerConfig,
        fs: FileSystem,
        clock: Clock,
        logs: LogManager,
        metadata: Metadata,
        registration: Registration,
        controller: Controller,
        peers: Peers,
        is_leased: bool,
    ) -> None:
        """`is_leased`: the registration can end while we do not know it, so that its lease has to be looked at."""
        self._config = config
        self._clock = clock
        self._metadata = metadata
        self._registration = registration
        requests = IsrRequests(node_id=config.node_id, metadata=metadata, controller=controller, peers=peers)
        self._isr_changes = IsrChanges(
            clock=clock,
            lag_max_s=config.replica_lag_time_max_ms / 1000,
            eligible_epochs=self._eligible_epochs,
            ask=requests.ask,
        )
        self._replication = Replication(config=config, clock=clock, links=peers, broker_epoch=self._broker_epoch)
        self.partitions = PartitionManager(
            config=config,
            fs=fs,
            clock=clock,
            logs=logs,
            replication=self._replication,
            may_lead=self._may_lead if is_leased else None,
            look_at_isr=self._isr_changes.look_at,
        )
        logs.on_offline = self._on_offline
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks.append(asyncio.create_task(self._look(), name="replicas"))

    def _on_offline(self) -> None:
        """The disk takes no more records: others shall lead. The broker stays, for who still reads from it."""
        self._tasks.append(asyncio.get_running_loop().create_task(self.hand_over(), name="hand over"))

    async def hand_over(self) -> None:
        """Have others lead what this broker leads, as far as there are others, before it stops."""
        if not self._config.controlled_shutdown_enable or len(self._metadata.image.brokers) < 2:
            return
        if self._registration.lease is None:
            return  # Nobody has heard of this broker yet.
        try:
            async with asyncio.timeout(HAND_OVER_S_MAX):
                await self._registration.begin_stop()
                await self._metadata.until(lambda image: not _has_successor(image, self._config.node_id))
        except TimeoutError:
            log.warning("some partitions were not handed over", node=self._config.node_id)
        except (OSError, LeaseLost) as error:
            log.warning("partitions cannot be handed over", node=self._config.node_id, reason=error)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.partitions.stop()
        await self._replication.stop()
        await self._isr_changes.stop()

    async def _look(self) -> None:
        """See to what no request brings about.

        Followers that have fallen silent, a lease that was renewed late, a partition that a full disk kept shut: nobody
        asks a follower for it.
        """
        might_lead = True
        while True:
            await asyncio.sleep(LOOK_S)
            may_lead = self._may_lead()
            if may_lead and not might_lead:
                self.partitions.commit_again()
            might_lead = may_lead
            self.partitions.try_unopened()
            if len(self._metadata.image.brokers) > 1:
                for partition in list(self.partitions):
                    self._isr_changes.look_at(partition)

    def _may_lead(self) -> bool:
        lease = self._registration.lease
        return lease is not None and self._clock.monotonic() < lease.may_act_until

    def _broker_epoch(self) -> int:
        """Of our registration; a leader refuses us while there is none."""
        own = self._metadata.image.brokers.get(self._config.node_id)
        return NO_BROKER_EPOCH if own is None else own.epoch

    def _eligible_epochs(self) -> dict[NodeId, int]:
        """Of the brokers that may be in sync with what this one leads."""
        brokers = self._metadata.image.brokers.values()
        return {broker.node_id: broker.epoch for broker in brokers if not broker.is_stopping}


def _has_successor(image: ClusterImage, node_id: NodeId) -> bool:
    """Whether the broker leads a partition that another one could lead at once."""
    successors = {broker.node_id for broker in image.brokers.values() if not broker.is_stopping} - {node_id}
    return any(
        state.leader == node_id and not successors.isdisjoint(state.isr)
        for topic in image.topics.values()
        for state in topic.partitions
    )
