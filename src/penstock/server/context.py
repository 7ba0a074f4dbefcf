"""What a handler may use: the broker's parts, passed in once."""

from dataclasses import dataclass

from penstock.base.clock import Clock
from penstock.base.config import BrokerConfig
from penstock.base.timers import TimerWheel
from penstock.cluster.controller import Controller
from penstock.cluster.metadata import Metadata
from penstock.cluster.producer_ids import ProducerIds
from penstock.coordinator.group_coordinator import GroupCoordinator
from penstock.coordinator.txn_coordinator import TxnCoordinator
from penstock.partition.manager import PartitionManager
from penstock.server.client_quotas import ClientQuotas
from penstock.server.fetch_session import FetchSessionCache
from penstock.server.forwarding import Forwarder
from penstock.server.hanging_txns import HangingTxns
from penstock.server.peers import Peers
from penstock.server.record_work import RecordWork
from penstock.server.topic_creator import TopicCreator
from penstock.server.txn_verification import TxnVerification
from penstock.storage.fs import FileSystem


@dataclass(frozen=True, kw_only=True)
class Context:
    config: BrokerConfig
    clock: Clock
    fs: FileSystem  # For `run`: waiting for the disk away from the event loop.
    timers: TimerWheel
    metadata: Metadata  # `.image` is the cluster as this broker knows it.
    controller: Controller  # Decides about topics and configs; its methods return when the image has followed.
    partitions: PartitionManager  # The partitions that this broker hosts.
    groups: GroupCoordinator  # The consumer groups that this broker coordinates.
    txns: TxnCoordinator  # The transactional ids that this broker coordinates.
    producer_ids: ProducerIds
    fetch_sessions: FetchSessionCache
    peers: Peers  # The other brokers.
    forwarder: Forwarder  # For clients' requests that are the controller's.
    topic_creator: TopicCreator  # For topics that this broker needs.
    record_work: RecordWork  # For what takes long with single records.
    txn_verification: TxnVerification  # Whether transactions are ongoing at their coordinators.
    hanging_txns: HangingTxns  # Whether transactions are known to any coordinator.
    quotas: ClientQuotas  # `.active` is None while there are none.
