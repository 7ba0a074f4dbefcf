"""Three ZooKeeper nodes and three brokers, each a process, with every fault that processes and links can have.

Each broker reaches ZooKeeper through proxies of its own, so that it can be cut off from it alone. Links between brokers
can be cut when they run on hosts of their own (hosts.py).
"""

import contextlib
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from cuttable_proxy import CuttableProxy
from local_zookeeper import zookeeper_ensemble
from penstock.local.zookeeper import ZooKeeperEnsemble

from ..broker_process import BrokerProcess
from ..load import CLIENT
from .ends_with_us import ENDS_WITH_US
from .hosts import Hosts
from .lossy_disk import Loss, LossyDisk
from .proxies import ProxyThread

BROKERS = 3
ZOOKEEPERS = 3
SESSION_MS = 6_000
LAG_MS = 3_000  # Below the session: a follower can fall behind without being taken for dead.
CONFIG = {
    "zookeeper.session.timeout.ms": str(SESSION_MS),
    "replica.lag.time.max.ms": str(LAG_MS),
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "3",
    "offsets.topic.replication.factor": "3",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
}
# What a log must never have: failures that nobody has thought of.
CRASH = re.compile(r".*(Traceback|AssertionError|never retrieved|was never awaited|Exception in callback)")


class Broker(BrokerProcess):
    """One of the cluster's. It may be stopped by SIGSTOP, and is awake again before it is killed."""

    def __init__(self, node_id: int, directory: Path, zookeepers: Sequence[CuttableProxy], **options: Any) -> None:
        self.node_id = node_id
        self.zookeepers = zookeepers
        self.log_forgotten = 0  # Characters of the log.
        super().__init__(directory, **options)

    def whole_log(self) -> str:
        """Of all starts."""
        return self._stderr_path.read_text(errors="replace") if self._stderr_path.exists() else ""

    def pause(self) -> None:
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        if self.is_running():
            self.signal(signal.SIGCONT)


class BrokerCluster:
    def __init__(
        self,
        directory: Path,
        zookeeper: ZooKeeperEnsemble,
        proxies: ProxyThread,
        *,
        hosts: Hosts | None = None,
        disks: Mapping[int, LossyDisk] | None = None,
        config: Mapping[str, str] | None = None,
        advertised: Callable[[int, int], str] | None = None,
    ) -> None:
        """`advertised` gives, for a broker and its port, the address that everybody is sent to."""
        self.zookeeper = zookeeper
        self.hosts = hosts
        self.disks = disks or {}
        self._proxies = proxies
        self.brokers: list[Broker] = []
        for node_id in range(1, BROKERS + 1):
            self.brokers.append(self._broker(node_id, directory, {**CONFIG, **(config or {})}, advertised))

    def _broker(
        self, node_id: int, directory: Path, config: dict[str, str], advertised: Callable[[int, int], str] | None
    ) -> Broker:
        own = directory / f"broker-{node_id}"
        own.mkdir()
        options: dict[str, Any] = {"wrapper": ENDS_WITH_US}
        listen_host = {}
        if self.hosts is not None:
            options = {
                "host": self.hosts.address(node_id),
                "wrapper": [*self.hosts.wrapper(node_id), *ENDS_WITH_US],
            }
            listen_host = {"listen_host": self.hosts.hub_address(node_id)}
        if node_id in self.disks:
            options["data"] = self.disks[node_id].path
        links = [self._proxies.open_proxy(node.port, **listen_host) for node in self.zookeeper.nodes]
        host = self.hosts.hub_address(node_id) if self.hosts is not None else "127.0.0.1"
        connect = ",".join(f"{host}:{link.port}" for link in links) + "/penstock"
        arguments = ["--zookeeper", connect, "--node-id", str(node_id)]
        broker = Broker(node_id, own, links, config=config, arguments=arguments, **options)
        if advertised is not None:
            broker.arguments += ["--advertised", advertised(node_id, broker.port)]
        return broker

    def __getitem__(self, node_id: int) -> Broker:
        return self.brokers[node_id - 1]

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers)

    # Brokers

    def start(self, order: Sequence[Broker] | None = None) -> float:
        """Start those that do not run, in this order and without waiting in between; the seconds until all serve."""
        begin = time.monotonic()
        starting = [broker for broker in order or self.brokers if not broker.is_running()]
        for broker in starting:
            broker.begin_start()
        for broker in starting:
            broker.wait_until_answering()
        return time.monotonic() - begin

    def kill_all(self) -> None:
        self._kill(self.brokers)

    def _kill(self, brokers: Sequence[Broker]) -> None:
        """At once, as far as that goes."""
        for broker in brokers:
            if broker.is_running():
                broker.signal(signal.SIGKILL)
        for broker in brokers:
            broker.kill()

    def cut_power(self, brokers: Sequence[Broker] | None = None) -> Loss:
        """Kill these brokers, or all, and let their disks lose what was not synced."""
        cut = self.brokers if brokers is None else brokers
        self._kill(cut)
        return Loss.sum(self.disks[broker.node_id].cut_power() for broker in cut)

    # Links to ZooKeeper

    def cut_from_zookeeper(self, broker: Broker, *, silently: bool = True) -> None:
        """Pass nothing on between the broker and every ZooKeeper node; or reset its connections, too."""
        for link in broker.zookeepers:
            self._proxies.call(link.silence if silently else link.cut)

    def heal_zookeeper_links(self) -> None:
        for broker in self.brokers:
            for link in broker.zookeepers:
                # What the silence has held back would arrive now, as from a network that was merely slow.
                self._proxies.call(link.heal)

    # All of it

    def heal(self) -> None:
        """Take every fault back: all awake, all running, all links whole."""
        if self.hosts is not None:
            self.hosts.heal()
        self.heal_zookeeper_links()
        for node in self.zookeeper.nodes:
            if node.is_running:
                node.signal(signal.SIGCONT)
            else:
                node.kill()
                node.start()
        for node in self.zookeeper.nodes:
            node.wait_until_serving()
        for broker in self.brokers:
            broker.resume()
        self.start()

    def forget_logs(self) -> None:
        """What was logged so far is of another scenario."""
        for broker in self.brokers:
            broker.log_forgotten = len(broker.whole_log())

    def crashes(self) -> list[str]:
        """Invariant I: what the logs have that they must not, with what follows it."""
        found = []
        for broker in self.brokers:
            log = broker.whole_log()[broker.log_forgotten :]
            found += [f"broker {broker.node_id}: {log[m.start() : m.start() + 3000]}" for m in CRASH.finditer(log)]
        return found

    # Looking, by asking any broker that answers

    def metadata(self, asked: Broker | None = None, timeout_s: float = 90) -> Any:
        """As `asked` knows it, or any broker."""
        bootstrap = self.bootstrap if asked is None else asked.bootstrap
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return AdminClient({**CLIENT, "bootstrap.servers": bootstrap}).list_topics(timeout=5)
            except KafkaException:
                assert time.monotonic() < deadline, f"no broker answers within {timeout_s} s"

    def partitions(self, topic: str, asked: Broker | None = None) -> dict[int, Any]:
        """None while the broker that answers has not heard of the topic."""
        found = self.metadata(asked).topics.get(topic)
        return {} if found is None else dict(found.partitions)

    def leader(
        self, topic: str, partition: int = 0, *, asked: Broker | None = None, not_: Sequence[Broker] = ()
    ) -> Broker:
        """Of the partition, once there is one that runs and is none of those."""

        def leader_id() -> int:
            found = self.partitions(topic, asked).get(partition)
            return -1 if found is None else int(found.leader)

        return self._wait_for(leader_id, not_, f"{topic}-{partition} has no leader")

    def controller(self, *, asked: Broker | None = None, not_: Sequence[Broker] = ()) -> Broker:
        return self._wait_for(lambda: self.metadata(asked).controller_id, not_, "nobody controls the cluster")

    def _wait_for(self, node_id: Callable[[], int], not_: Sequence[Broker], otherwise: str) -> Broker:
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            found = node_id()
            if found > 0 and self[found].is_running() and self[found] not in not_:
                return self[found]
            time.sleep(0.1)
        raise AssertionError(otherwise)

    def isr(self, topic: str, partition: int, *, asked: Broker | None = None) -> set[int]:
        return set(self.partitions(topic, asked)[partition].isrs)

    def wait_until_in_sync(self, topic: str, timeout_s: float = 60) -> float:
        """The seconds until every replica of the topic is in sync and every partition is led."""
        begin = time.monotonic()
        while True:
            partitions = self.partitions(topic).values()
            if partitions and all(p.leader > 0 and set(p.isrs) == set(p.replicas) for p in partitions):
                return time.monotonic() - begin
            states = {p.id: (p.leader, p.isrs) for p in partitions}
            assert time.monotonic() - begin < timeout_s, f"not in sync within {timeout_s} s: {states}"
            time.sleep(0.2)


@contextlib.contextmanager
def broker_cluster(directory: Path, **options: Any) -> Iterator[BrokerCluster]:
    """Serving inside the block; at its end every process is gone."""
    proxies = ProxyThread()
    proxies.start()
    try:
        with zookeeper_ensemble(directory, ZOOKEEPERS, ends_with_us=True) as zookeeper:
            cluster = BrokerCluster(directory, zookeeper, proxies, **options)
            try:
                cluster.start()
                yield cluster
            finally:
                for node in zookeeper.nodes:
                    if node.is_running:
                        node.signal(signal.SIGCONT)
                cluster.kill_all()
    finally:
        proxies.close()


def drawn(random: Random, brokers: Sequence[Broker]) -> list[Broker]:
    """The brokers in another order."""
    return random.sample(list(brokers), len(brokers))
