"""The brokers that are compared: Penstock and Apache Kafka, one process each, started anew for every round."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Self

from confluent_kafka.admin import AdminClient, NewTopic

from bench.raw_load import RawClient, answers
from bench.server import Server
from compat.parts import java
from compat.reference_kafka import CLUSTER_ID
from ports import HOST, free_port

# As Kafka's own start script has them.
KAFKA_JVM = (
    "-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent",
)  # fmt: skip

# A consumer that is alone in its group need not wait for others to join; Kafka's own example file says the same. What
# is deleted goes at once, not a minute later, when something else is measured.
SETTINGS = "group.initial.rebalance.delay.ms=0\nlog.segment.delete.delay.ms=0\n"

JOURNAL_BYTES = 32 << 20  # As docs/operating.md has it.

# Kafka says that a topic is made before its partitions answer, and refuses raw requests at first. Loaded at once, one
# of twelve partitions refused its producer for two minutes: out of order sequence numbers, for a reason not looked for.
SETTLE_S = 0.5
LED_S_MAX = 60
SETTLE_LAP_S = 2.0  # Penstock looks every second for what is to be synced.
SETTLE_LAPS_MAX = 20
IDLE_SHARE = 0.1  # Of a processor: a JVM with nothing to do takes one or two per cent.


class Broker(Server):
    settings: ClassVar[str] = SETTINGS
    fsync_config: ClassVar[dict[str, str]]  # Of a topic whose records are synced before they are acknowledged.
    os_config: ClassVar[dict[str, str]]  # Of a topic whose records are left to the operating system.

    @property
    def bootstrap(self) -> str:
        return self.address

    @property
    def properties(self) -> Path:
        return self.directory / "server.properties"

    def is_ready(self) -> bool:
        return answers(self.port)

    def __enter__(self) -> Self:
        super().__enter__()
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        return self

    @contextlib.contextmanager
    def topic(self, name: str, *, partitions: int = 1, is_synced: bool = False) -> Iterator[str]:
        """A topic that is ready to be loaded, and gone afterwards: its pages in the cache would slow down the next."""
        config = self.fsync_config if is_synced else self.os_config
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config)
        self._admin.create_topics([topic])[name].result(60)
        self._wait_until_led(name, partitions)
        time.sleep(SETTLE_S)
        try:
            yield name
        finally:
            self._admin.delete_topics([name])[name].result(60)

    def settle(self) -> None:
        """Return when it has nothing left to do: files of new partitions are synced in the background."""
        cpu = self.cpu_laps()
        for _ in range(SETTLE_LAPS_MAX):
            time.sleep(SETTLE_LAP_S)
            if cpu.lap_s() < SETTLE_LAP_S * IDLE_SHARE:
                return

    def _wait_until_led(self, topic: str, partitions: int) -> None:
        """Until every partition answers: the last of a thousand takes a while."""
        deadline = time.monotonic() + LED_S_MAX
        with contextlib.closing(RawClient(self.port)) as client:
            while errors := client.end_errors(topic, partitions):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"partitions of {topic} still answer {errors}")
                time.sleep(0.1)


class Penstock(Broker):
    name = "penstock"
    fsync_config: ClassVar = {"penstock.durability": "fsync"}
    os_config: ClassVar = {"penstock.durability": "os"}

    def prepare(self) -> None:
        self.properties.write_text(self.settings)

    def command(self) -> list[str]:
        serve = [sys.executable, "-m", "penstock.cli.main", "serve"]
        where = ["--listen", self.bootstrap, "--data", str(self.directory / "data")]
        return [*serve, *where, "--config", str(self.properties)]


class PenstockWithJournal(Penstock):
    settings: ClassVar = f"{SETTINGS}penstock.journal.bytes={JOURNAL_BYTES}\n"


class Kafka(Broker):
    name = "kafka"
    fsync_config: ClassVar = {"flush.messages": "1"}
    os_config: ClassVar = {}

    def prepare(self) -> None:
        controller_port = free_port()
        # Kafka's defaults, but for what a single node needs.
        self.properties.write_text(
            "process.roles=broker,controller\n"
            "node.id=1\n"
            f"listeners=PLAINTEXT://{self.bootstrap},CONTROLLER://{HOST}:{controller_port}\n"
            f"advertised.listeners=PLAINTEXT://{self.bootstrap}\n"
            "controller.listener.names=CONTROLLER\n"
            f"controller.quorum.bootstrap.servers={HOST}:{controller_port}\n"
            f"log.dirs={self.directory}/data\n"
            "offsets.topic.replication.factor=1\n"
            "transaction.state.log.replication.factor=1\n"
            "transaction.state.log.min.isr=1\n" + self.settings
        )
        form = ["format", "--standalone", "--cluster-id", CLUSTER_ID, "--config", str(self.properties)]
        subprocess.run([*java.program("kafka.tools.StorageTool"), *form], check=True, stdout=subprocess.DEVNULL)

    def command(self) -> list[str]:
        return [*java.program("kafka.Kafka", KAFKA_JVM), str(self.properties)]
