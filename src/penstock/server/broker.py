"""A whole broker: its parts, and the order in which they start and stop. `run` serves until a signal comes."""

import asyncio
import gc
import resource
import signal
from collections.abc import Callable
from functools import partial
from random import Random, SystemRandom
from uuid import UUID

from penstock.base.build import full_version
from penstock.base.clock import Clock, SystemClock
from penstock.base.config import BrokerConfig
from penstock.base.config_key import InvalidConfig
from penstock.base.logging import get_logger
from penstock.base.timers import TimerWheel
from penstock.cluster.controller import Controller
from penstock.cluster.metadata import Metadata
from penstock.cluster.producer_ids import ProducerIds
from penstock.cluster.registration import Registration
from penstock.cluster.store.base import MetadataStore
from penstock.coordinator.group_coordinator import GroupCoordinator
from penstock.coordinator.txn_coordinator import TxnCoordinator
from penstock.server import handlers
from penstock.server.client_quotas import ClientQuotas
from penstock.server.context import Context
from penstock.server.data_dir import EMBEDDED_METADATA, DataDirLock, claim_data_dir
from penstock.server.dispatch import Dispatcher
from penstock.server.fetch_session import FetchSessionCache
from penstock.server.forwarding import Forwarder
from penstock.server.hanging_txns import HangingTxns
from penstock.server.links import Links
from penstock.server.listener import ConnectionListener
from penstock.server.network import Network, SocketNetwork
from penstock.server.peers import Peers
from penstock.server.record_work import RecordWork
from penstock.server.replicas import Replicas
from penstock.server.topic_creator import TopicCreator
from penstock.server.txn_markers import TxnMarkers
from penstock.server.txn_verification import TxnVerification
from penstock.storage.disk_threads import DiskThreads
from penstock.storage.fs import FileSystem, PosixFileSystem
from penstock.storage.kernel_syncs import KernelSyncs
from penstock.storage.log_manager import LogManager

log = get_logger(__name__)

DISK_THREADS = 8  # Syncs and reads in flight; a disk's queue is deeper, but each thread's stack is memory.
FILES_SHARE = 0.5  # Of the descriptors that we may open: the other half is for connections.
GC_THRESHOLD = 50_000  # Requests leave no cycles behind; the collector would only stop the loop to find that out.


class Broker:
    def __init__(
        self,
        *,
        config: BrokerConfig,
        fs: FileSystem,
        clock: Clock,
        network: Network,
        store: MetadataStore,
        random: Random,
        files_max: int = 1000,
    ) -> None:
        handlers.register_all()
        self.config = config
        self._store = store
        new_uuid = _uuid_source(random)
        self.metadata = Metadata(
            store=store,
            cluster_id=config.cluster_id,
            new_uuid=new_uuid,
            check_cluster=partial(claim_data_dir, fs, config),
        )
        self.logs = LogManager(config=config, fs=fs, clock=clock, files_max=files_max, random=random)
        self._timers = TimerWheel()
        self._registration = Registration(
            store=store,
            metadata=self.metadata,
            node_id=config.node_id,
            random=random,
            on_lost=self._on_lease_lost,
            on_registered=self._on_registered,
        )
        self._controller = Controller(store=store, metadata=self.metadata, config=config, new_uuid=new_uuid)
        self.peers = Peers(config=config, network=network, metadata=self.metadata)
        self._replicas = Replicas(
            config=config,
            fs=fs,
            clock=clock,
            logs=self.logs,
            metadata=self.metadata,
            registration=self._registration,
            controller=self._controller,
            peers=self.peers,
            is_leased=store.lease_timeout_s > 0,
        )
        self.partitions = self._replicas.partitions
        topic_creator = TopicCreator(
            config=config, metadata=self.metadata, controller=self._controller, peers=self.peers
        )
        self._groups = GroupCoordinator(
            config=config,
            metadata=self.metadata,
            create_topics=topic_creator.create,
            partitions=self.partitions,
            clock=clock,
            timers=self._timers,
            fs=fs,
            random=random,
        )
        producer_ids = ProducerIds(store=store)
        self._txns = TxnCoordinator(
            config=config,
            metadata=self.metadata,
            create_topics=topic_creator.create,
            partitions=self.partitions,
            producer_ids=producer_ids,
            markers=TxnMarkers(
                node_id=config.node_id,
                metadata=self.metadata,
                partitions=self.partitions,
                links=Links(self.peers),
            ),
            clock=clock,
            timers=self._timers,
            fs=fs,
        )
        self._quotas = ClientQuotas(config, clock)
        context = Context(
            config=config,
            clock=clock,
            fs=fs,
            timers=self._timers,
            metadata=self.metadata,
            controller=self._controller,
            partitions=self.partitions,
            groups=self._groups,
            txns=self._txns,
            txn_verification=TxnVerification(node_id=config.node_id, coordinator=self._txns, links=Links(self.peers)),
            hanging_txns=HangingTxns(
                node_id=config.node_id, metadata=self.metadata, txns=self._txns, links=Links(self.peers)
            ),
            producer_ids=producer_ids,
            fetch_sessions=FetchSessionCache(slots=config.max_incremental_fetch_session_cache_slots, random=random),
            record_work=RecordWork(fs),
            quotas=self._quotas,
            peers=self.peers,
            forwarder=Forwarder(config=config, metadata=self.metadata, peers=self.peers),
            topic_creator=topic_creator,
        )
        self._dispatcher = Dispatcher(context)
        self.listener = ConnectionListener(config=config, network=network, dispatcher=self._dispatcher)

    async def start(self) -> None:
        """Load the data, open the port, and tell the cluster. Stopping goes the other way round."""
        self.logs.start()
        await self._store.start()
        self.metadata.subscribe(self.partitions.apply)
        self.metadata.subscribe(self.listener.rates.apply)
        self.metadata.subscribe(self._quotas.apply)
        self.metadata.subscribe(self.peers.apply)
        await self.metadata.start()
        self._controller.start()
        self._groups.start()
        self._txns.start()
        self.logs.end_replay(self.partitions.unopened)
        self.logs.start_loops()
        self._replicas.start()
        self._expiry = asyncio.create_task(self._expire_producers(), name="producer expiry")
        # Registered before the port opens, so that the first client finds a broker in the metadata.
        host = self.config.advertised_host or self.config.host
        port = self.config.advertised_port or self.config.port
        if port:
            await self._registration.start(host, port, self.config.rack)
        await self.listener.start()
        if not port:
            await self._registration.start(host, self.listener.port, self.config.rack)
        log.info(
            "broker started",
            version=full_version(),
            node=self.config.node_id,
            listen=f"{self.config.host}:{self.listener.port}",
            data=self.config.data_dir,
            partitions=sum(1 for _ in self.partitions),
        )

    def _on_lease_lost(self) -> None:
        self.partitions.end_roles()
        self._groups.on_roles_changed()
        self._txns.on_roles_changed()

    def _on_registered(self) -> None:
        self.partitions.begin_roles()
        self._groups.on_roles_changed()
        self._txns.on_roles_changed()

    async def _expire_producers(self) -> None:
        while True:
            await asyncio.sleep(self.config.producer_id_expiration_check_interval_ms / 1000)
            self.partitions.expire_producers()

    async def stop(self) -> None:
        await self._replicas.hand_over()
        self.listener.stop_accepting()
        await self._txns.stop()
        await self._groups.stop()  # Answers who waits in a rebalance, so that the dispatcher has nothing to wait for.
        await self._dispatcher.stop()
        await self.listener.stop()
        await self._replicas.stop()
        await self.peers.close()
        self._timers.close()
        self._expiry.cancel()
        self.partitions.store_producers()
        parts = (self._controller, self._registration, self.metadata, self.logs)
        for stop in (*(part.stop for part in parts), self._store.close):
            try:
                await stop()
            except OSError as error:
                # On a full disk the registration cannot be taken back; the logs are to be closed all the same.
                log.error("a part could not be stopped in order", part=stop.__qualname__, error=error)
        log.info("broker stopped", node=self.config.node_id)


def _uuid_source(random: Random) -> Callable[[], UUID]:
    return lambda: UUID(bytes=random.randbytes(16), version=4)


def run(config: BrokerConfig, on_ready: Callable[[int], None] = lambda port: None) -> int:
    """Serve until SIGTERM or SIGINT, after `on_ready` was told the port; gives the exit code."""
    import uvloop

    with DataDirLock(config.data_dir):
        uvloop.run(_serve(config, on_ready))
    return 0


def _store(config: BrokerConfig, clock: Clock, random: Random) -> MetadataStore:
    # Not for simulation, and sqlite3 takes memory: only what is used is imported.
    if config.zookeeper_connect is None:
        from penstock.cluster.store.sqlite import SqliteStore

        return SqliteStore(f"{config.data_dir}/{EMBEDDED_METADATA}")
    from penstock.cluster.store.zookeeper.address import parse_connect_string
    from penstock.cluster.store.zookeeper.store import ZooKeeperStore

    try:
        connect = parse_connect_string(config.zookeeper_connect)
    except ValueError as error:
        raise InvalidConfig(f"zookeeper.connect is {config.zookeeper_connect!a}: {error}") from None
    return ZooKeeperStore(
        connect=connect,
        session_timeout_ms=config.zookeeper_session_timeout_ms,
        connection_timeout_ms=config.zookeeper_connection_timeout_ms,
        clock=clock,
        random=random,
    )


async def _serve(config: BrokerConfig, on_ready: Callable[[int], None]) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    # No Mersenne twister: the member and session ids that clients are given would tell what the broker's secret is.
    clock, random = SystemClock(), SystemRandom()
    with DiskThreads(count_max=DISK_THREADS) as threads, KernelSyncs() as syncs:
        broker = Broker(
            config=config,
            fs=PosixFileSystem(threads, syncs),
            clock=clock,
            network=SocketNetwork(),
            store=_store(config, clock, random),
            random=random,
            files_max=_raise_file_limit(),
        )
        # Before the start, which may wait for ZooKeeper for hours, and try again and again meanwhile.
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD, 20, 100)
        gc.enable()
        await broker.start()
        on_ready(broker.listener.port)
        gc.freeze()
        await stopping.wait()
        await broker.stop()


def _raise_file_limit() -> int:
    """Allow ourselves as many descriptors as the system lets us; gives how many segments may take."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return int(hard * FILES_SHARE) if hard != resource.RLIM_INFINITY else 100_000
