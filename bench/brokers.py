"""The brokers that are compared: Penstock and Apache Kafka, one process each, started anew for every round."""

import subprocess
import sys
import time
from typing import ClassVar, Self

from confluent_kafka.admin import AdminClient, NewTopic

from bench.raw_load import answers
from bench.server import Server
from compat.parts import java
from compat.reference_kafka import CLUSTER_ID
from ports import HOST, free_port

# As Kafka's own start script has them.
KAFKA_JVM = (
    "-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent",
)  # fmt: skip

# Kafka says that a topic is made before its partitions answer, and refuses raw requests at first. Loaded at once, one
# of twelve partitions refused its producer for two minutes: out of order sequence numbers, for a reason not looked for.
SETTLE_S = 0.5


class Broker(Server):
    fsync_config: ClassVar[dict[str, str]]  # Of a topic whose records are synced before they are acknowledged.
    os_config: ClassVar[dict[str, str]]  # Of a topic whose records are left to the operating system.

    @property
    def bootstrap(self) -> str:
        return self.address

    def is_ready(self) -> bool:
        return answers(self.port)

    def __enter__(self) -> Self:
        super().__enter__()
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        return self

    def create_topic(self, name: str, *, partitions: int = 1, is_synced: bool = False) -> None:
        config = self.fsync_config if is_synced else self.os_config
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config)
        self._admin.create_topics([topic])[name].result(60)
        time.sleep(SETTLE_S)

    def delete_topic(self, name: str) -> None:
        """Each workload cleans up: a page cache full of the last one's records would slow down the next."""
        self._admin.delete_topics([name])[name].result(60)


class Penstock(Broker):
    name = "penstock"
    fsync_config: ClassVar = {"penstock.durability": "fsync"}
    os_config: ClassVar = {"penstock.durability": "os"}

    def prepare(self) -> None:
        """Nothing: the first start makes its own files."""

    def command(self) -> list[str]:
        serve = [sys.executable, "-m", "penstock.cli.main", "serve"]
        return [*serve, "--listen", self.bootstrap, "--data", str(self.directory / "data")]


class Kafka(Broker):
    name = "kafka"
    fsync_config: ClassVar = {"flush.messages": "1"}
    os_config: ClassVar = {}

    def prepare(self) -> None:
        controller_port = free_port()
        self._properties = self.directory / "server.properties"
        # Kafka's defaults, but for what a single node needs.
        self._properties.write_text(
            "process.roles=broker,controller\n"
            "node.id=1\n"
            f"listeners=PLAINTEXT://{self.bootstrap},CONTROLLER://{HOST}:{controller_port}\n"
            f"advertised.listeners=PLAINTEXT://{self.bootstrap}\n"
            "controller.listener.names=CONTROLLER\n"
            f"controller.quorum.bootstrap.servers={HOST}:{controller_port}\n"
            f"log.dirs={self.directory}/data\n"
            "offsets.topic.replication.factor=1\n"
        )
        form = ["format", "--standalone", "--cluster-id", CLUSTER_ID, "--config", str(self._properties)]
        subprocess.run([*java.program("kafka.tools.StorageTool"), *form], check=True, stdout=subprocess.DEVNULL)

    def command(self) -> list[str]:
        return [*java.program("kafka.Kafka", KAFKA_JVM), str(self._properties)]
