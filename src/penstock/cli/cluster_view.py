"""The brokers and partitions of a cluster, with what is on its way, as a broker tells it."""

import time
from collections.abc import Iterable
from typing import NamedTuple

from penstock.cli.move_plan import Partition, Racks
from penstock.cli.output import Failure
from penstock.cli.wire_client import DESCRIBE_LOG_DIRS, LIST_PARTITION_REASSIGNMENTS, METADATA, WireClient
from penstock.wire.codec import Struct

LIST_TIMEOUT_MS = 30_000
LOOKS_MAX = 100
LOOK_PAUSE_S = 0.1


class BrokerView(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None


class PartitionView(NamedTuple):
    leader: int | None
    replicas: tuple[int, ...]  # Those that come and those that go included.
    isr: tuple[int, ...]
    removing: tuple[int, ...] = ()
    is_moving: bool = False

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas, once all that is on its way has arrived."""
        return tuple(node for node in self.replicas if node not in self.removing)


class ClusterView(NamedTuple):
    brokers: dict[int, BrokerView]
    partitions: dict[Partition, PartitionView]

    @property
    def racks(self) -> Racks:
        return {broker.node_id: broker.rack for broker in self.brokers.values()}

    @property
    def layout(self) -> dict[Partition, tuple[int, ...]]:
        return {partition: view.target for partition, view in self.partitions.items()}

    def hosted_by(self, node_id: int) -> list[Partition]:
        """Partitions with a replica on the broker, also those that are about to leave it."""
        return [partition for partition, view in self.partitions.items() if node_id in view.replicas]


def look(client: WireClient) -> ClusterView:
    """The cluster, in two requests: a move that has just begun, or is just over, may be seen in one of them alone."""
    return _look(client, _moving(client))


def look_to_plan(client: WireClient) -> ClusterView:
    """The cluster as of one moment. What is on its way is not mistaken for where a partition is to be."""
    look(client)  # From here on the controller is asked: others may be behind it.
    for _ in range(LOOKS_MAX):
        moving = _moving(client)
        view = _look(client, moving)
        if _moving(client) == moving:
            return view
        time.sleep(LOOK_PAUSE_S)
    raise Failure("Too much is moved by somebody else.", hint="Try again when that is done.", code="BUSY")


class _Move(NamedTuple):
    replicas: tuple[int, ...]
    removing: tuple[int, ...]


def _moving(client: WireClient) -> dict[Partition, _Move]:
    listed = client.ask(LIST_PARTITION_REASSIGNMENTS, 0, Struct(timeout_ms=LIST_TIMEOUT_MS, topics=None))
    return {
        Partition(topic.name, item.partition_index): _Move(tuple(item.replicas), tuple(item.removing_replicas))
        for topic in listed.topics
        for item in topic.partitions
    }


def _look(client: WireClient, moving: dict[Partition, _Move]) -> ClusterView:
    metadata = client.ask(
        METADATA,
        9,
        Struct(
            topics=None,
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        ),
    )
    brokers = {item.node_id: BrokerView(item.node_id, item.host, item.port, item.rack) for item in metadata.brokers}
    client.learn((broker.host, broker.port) for broker in brokers.values())
    controller = brokers.get(metadata.controller_id)
    if controller is not None:
        client.prefer((controller.host, controller.port))
    partitions = {}
    for topic in metadata.topics:
        for item in topic.partitions:
            partition = Partition(topic.name, item.partition_index)
            move = moving.get(partition)
            replicas = tuple(item.replica_nodes) if move is None else move.replicas
            removing = () if move is None else move.removing
            leader = None if item.leader_id < 0 else item.leader_id
            partitions[partition] = PartitionView(leader, replicas, tuple(item.isr_nodes), removing, move is not None)
    return ClusterView(brokers, partitions)


Sizes = dict[tuple[int, Partition], int]  # Bytes of a partition on a broker.


class LogSizes:
    """Asks brokers how much they have; a broker that does not answer has told nothing."""

    def __init__(self) -> None:
        self._clients: dict[BrokerView, WireClient] = {}

    def of(self, brokers: Iterable[BrokerView], partitions: Iterable[Partition] | None = None) -> Sizes:
        """The sizes of these partitions, or of all, on each of the brokers that has them."""
        topics = None
        if partitions is not None:
            numbers: dict[str, list[int]] = {}
            for partition in partitions:
                numbers.setdefault(partition.topic, []).append(partition.number)
            topics = [Struct(topic=name, partitions=items) for name, items in numbers.items()]
        sizes: Sizes = {}
        for broker in brokers:
            client = self._clients.get(broker)
            if client is None:
                client = self._clients[broker] = WireClient(f"{broker.host}:{broker.port}", patience_s=0)
            try:
                reply = client.ask(DESCRIBE_LOG_DIRS, 4, Struct(topics=topics))
            except Failure:
                continue
            for directory in reply.results:
                for topic in directory.topics:
                    for item in topic.partitions:
                        sizes[broker.node_id, Partition(topic.name, item.partition_index)] = item.partition_size
        return sizes

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
