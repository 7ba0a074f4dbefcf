"""Brokers that form a cluster, each a process of its own: three that share a ZooKeeper, or a single one."""

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from broker_process import BrokerProcess

WHOLE_S_MAX = 60
REPLICAS_MAX = 3  # Kafka's usual: one may be away while another is restarted.


class BrokerCluster:
    def __init__(
        self,
        directory: Path,
        *,
        zookeeper_connect: str | None,
        config: Mapping[str, str],
        own_configs: Sequence[Mapping[str, str]],
    ) -> None:
        """`own_configs`: what each broker alone has. The chroot is this cluster's; one broker needs none."""
        assert (zookeeper_connect is None) == (len(own_configs) == 1)
        self.replication_factor = min(REPLICAS_MAX, len(own_configs))  # Of topics that do not say.
        self.min_insync_replicas = max(1, self.replication_factor - 1)
        common = {
            "default.replication.factor": str(self.replication_factor),
            "offsets.topic.replication.factor": str(self.replication_factor),
            **config,
        }
        if zookeeper_connect is not None:
            common |= {
                "zookeeper.connect": zookeeper_connect,
                "min.insync.replicas": str(self.min_insync_replicas),
            }
        self.brokers: list[BrokerProcess] = []
        for node_id, own_config in enumerate(own_configs, 1):
            own = directory / f"broker-{node_id}"
            own.mkdir()
            self.brokers.append(BrokerProcess(own, config={"node.id": str(node_id), **common, **own_config}))
        self.bootstrap = ",".join(broker.bootstrap for broker in self.brokers)
        self.log_dirs = [broker.data for broker in self.brokers]  # In the order of their node ids, from 1 on.

    def broker(self, node_id: int) -> BrokerProcess:
        return self.brokers[node_id - 1]

    def at(self, address: str) -> BrokerProcess:
        """The one that is reached at this host:port."""
        return next(broker for broker in self.brokers if broker.bootstrap == address)

    def start(self) -> None:
        """Return when every broker knows of all others; before, a topic could not have three replicas."""
        with ThreadPoolExecutor(len(self.brokers)) as threads:
            list(threads.map(BrokerProcess.start, self.brokers))
        self.wait_until_whole()

    def wait_until_whole(self) -> None:
        deadline = time.monotonic() + WHOLE_S_MAX
        for broker in self.brokers:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap})
            while (known := _known_to(admin)) != len(self.brokers):
                assert time.monotonic() < deadline, f"{broker.bootstrap} knows of {known}:\n{broker.stderr()[-4000:]}"
                time.sleep(0.05)

    def stop(self) -> None:
        """One after the other, so that each can hand over what it leads."""
        for broker in self.brokers:
            broker.stop()

    def kill(self) -> None:
        for broker in self.brokers:
            broker.kill()

    def check_alive(self) -> None:
        for broker in self.brokers:
            broker.check_alive()

    @contextmanager
    def serving(self) -> Iterator[Self]:
        """Started meanwhile, stopped at the end; whatever happens, it is gone then."""
        try:
            self.start()
            yield self
            self.stop()
        finally:
            self.kill()


def _known_to(admin: AdminClient) -> int:
    """How many brokers the one asked tells its clients of."""
    try:
        return len(admin.list_topics(timeout=10).brokers)
    except KafkaException:
        return 0
