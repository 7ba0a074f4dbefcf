"""The clusters that are compared: three brokers each, every record on all of them, two have to have it.

Penstock's metadata are in a ZooKeeper of one node beside it, Kafka's in a quorum of its own three processes.
"""

import contextlib
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from confluent_kafka.admin import AdminClient, NewTopic

from bench.brokers import KAFKA_JVM, SETTINGS, SETTLE_S, Kafka, Penstock
from bench.process import CpuLaps, MeasuredProcess
from bench.raw_load import answers
from compat.parts import java
from compat.reference_kafka import CLUSTER_ID
from penstock.local.zookeeper import ZooKeeperEnsemble
from ports import HOST, free_port

BROKERS = 3
START_S_MAX = 120
REPLICATED = {"min.insync.replicas": "2"}


class BrokerCluster(ABC):
    """What a workload needs to know of a broker, for three of them. Leaves nothing behind."""

    name: ClassVar[str]
    fsync_config: ClassVar[dict[str, str]]
    os_config: ClassVar[dict[str, str]]

    def __init__(self, directory: Path) -> None:
        self._home = tempfile.TemporaryDirectory(prefix=f"{self.name}-cluster-", dir=directory)
        self.directory = Path(self._home.name)
        self.ports = [free_port() for _ in range(BROKERS)]
        self.port = self.ports[0]
        self.bootstrap = ",".join(f"{HOST}:{port}" for port in self.ports)
        self._processes: list[MeasuredProcess] = []

    @abstractmethod
    def prepare(self) -> None:
        """What is done once, before the brokers start."""

    @abstractmethod
    def command(self, number: int) -> list[str]: ...

    @abstractmethod
    def close(self) -> None:
        """End what is left when the brokers have ended."""

    def home(self, number: int) -> Path:
        path = self.directory / str(number + 1)
        path.mkdir(exist_ok=True)
        return path

    def __enter__(self) -> Self:
        try:
            self.prepare()
            for number in range(BROKERS):
                self._processes.append(MeasuredProcess(self.command(number), self.home(number) / "log"))
            deadline = time.monotonic() + START_S_MAX
            while not all(answers(port) for port in self.ports):
                if time.monotonic() > deadline or not all(process.is_running for process in self._processes):
                    logs = "\n".join(process.log.read_text()[-1000:] for process in self._processes)
                    raise RuntimeError(f"{self.name} did not start:\n{logs}")
                time.sleep(0.1)
            self._admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.stop()
        self.close()
        self._home.cleanup()

    @property
    def cpu_s(self) -> float:
        return sum(process.cpu_s for process in self._processes)

    def cpu_laps(self) -> CpuLaps:
        return CpuLaps(self)

    @property
    def peak_mb(self) -> float:
        return sum(process.peak_mb for process in self._processes)

    @contextlib.contextmanager
    def topic(self, name: str, *, partitions: int = 1, is_synced: bool = False) -> Iterator[str]:
        config = REPLICATED | (self.fsync_config if is_synced else self.os_config)
        topic = NewTopic(name, num_partitions=partitions, replication_factor=BROKERS, config=config)
        self._admin.create_topics([topic])[name].result(60)
        time.sleep(SETTLE_S)
        try:
            yield name
        finally:
            self._admin.delete_topics([name])[name].result(60)


class PenstockCluster(BrokerCluster):
    name = "penstock"
    fsync_config: ClassVar = Penstock.fsync_config
    os_config: ClassVar = Penstock.os_config

    def prepare(self) -> None:
        self._zookeeper = ZooKeeperEnsemble(self.directory / "zookeeper", nodes=1, ends_with_us=True)
        self._zookeeper.start()

    def close(self) -> None:
        self._zookeeper.stop()

    def command(self, number: int) -> list[str]:
        properties = self.home(number) / "server.properties"
        properties.write_text(f"{SETTINGS}node.id={number + 1}\n")
        serve = [sys.executable, "-m", "penstock.cli.main", "serve", "--zookeeper", self._zookeeper.connect]
        where = ["--listen", f"{HOST}:{self.ports[number]}", "--data", str(self.home(number) / "data")]
        return [*serve, *where, "--config", str(properties)]


class KafkaCluster(BrokerCluster):
    name = "kafka"
    fsync_config: ClassVar = Kafka.fsync_config
    os_config: ClassVar = Kafka.os_config

    def prepare(self) -> None:
        controllers = [free_port() for _ in range(BROKERS)]
        voters = ",".join(f"{number + 1}@{HOST}:{port}" for number, port in enumerate(controllers))
        for number, (port, controller_port) in enumerate(zip(self.ports, controllers, strict=True)):
            properties = self.home(number) / "server.properties"
            # Kafka's defaults, but for what three nodes on one machine need.
            properties.write_text(
                "process.roles=broker,controller\n"
                f"node.id={number + 1}\n"
                f"listeners=PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}\n"
                f"advertised.listeners=PLAINTEXT://{HOST}:{port}\n"
                "controller.listener.names=CONTROLLER\n"
                f"controller.quorum.voters={voters}\n"
                f"log.dirs={self.home(number)}/data\n" + SETTINGS
            )
            form = ["format", "--cluster-id", CLUSTER_ID, "--config", str(properties)]
            subprocess.run([*java.program("kafka.tools.StorageTool"), *form], check=True, stdout=subprocess.DEVNULL)

    def close(self) -> None:
        """There is nothing beside the brokers."""

    def command(self, number: int) -> list[str]:
        return [*java.program("kafka.Kafka", KAFKA_JVM), str(self.home(number) / "server.properties")]
