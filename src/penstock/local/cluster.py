"""A whole cluster on this machine's loopback, for development: ZooKeeper and brokers, each a process of its own.

Everything is in one directory, and a later start on it finds everything again:

    zookeeper-N/           data and log of a ZooKeeper node
    broker-N/              data of a broker
    broker-N.properties    its settings, written anew at every start
    broker-N.log           what it has logged

Nothing outlives the process that started it (see child_process.py).
"""

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from penstock.local.child_process import start_child
from penstock.local.zookeeper import ZooKeeperEnsemble

HOST = "localhost"
CHROOT = "/penstock"
REPLICAS_WANTED = 3  # Kafka's usual: one may be away while another is restarted.
# A broker that was killed is registered until its session ends, and its successor waits for that: 20 s at most.
START_S_MAX = 60
STOP_S_MAX = 60
LOG_LINES_SHOWN = 12


class BrokerDidNotStart(Exception):
    """A broker ended, or took too long, before it served; the message says which, and has the end of its log."""


class LocalBroker:
    def __init__(self, node_id: int, directory: Path, port: int) -> None:
        self.node_id = node_id
        self.port = port
        self.address = f"{HOST}:{port}"
        self.data = directory / f"broker-{node_id}"
        self.log = directory / f"broker-{node_id}.log"
        self.properties = directory / f"broker-{node_id}.properties"
        self._process: subprocess.Popen[bytes] | None = None

    def settings(self) -> dict[str, str]:
        """What this broker alone has; the rest is the same for all."""
        listeners = f"PLAINTEXT://{self.address}"
        return {"node.id": str(self.node_id), "listeners": listeners, "log.dirs": str(self.data)}

    def start(self, settings: Mapping[str, str]) -> None:
        """Have the process begin; `wait_until_serving` says when it does."""
        lines = (f"{key}={_escaped(value)}\n" for key, value in (self.settings() | dict(settings)).items())
        self.properties.write_text("".join(lines))
        command = [sys.executable, "-m", "penstock.cli.main", "serve", "--config", str(self.properties)]
        self._process = start_child(command, log=self.log)

    def wait_until_serving(self) -> None:
        deadline = time.monotonic() + START_S_MAX
        while not _is_open(self.port):
            if self.exit_code is not None:
                raise BrokerDidNotStart(f"broker {self.node_id} ended at once:\n{self.last_lines()}")
            if time.monotonic() > deadline:
                raise BrokerDidNotStart(f"broker {self.node_id} took over {START_S_MAX} s:\n{self.last_lines()}")
            time.sleep(0.05)

    def stop(self) -> bool:
        """As an operator would. Whether it ended in order, in time; it has ended in any case."""
        if self._process is None:
            return True
        self._process.terminate()
        try:
            return self._process.wait(STOP_S_MAX) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            self.kill()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """None while it runs, and before; negative for a signal."""
        return None if self._process is None else self._process.poll()

    def last_lines(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:])


class LocalCluster:
    """ZooKeeper and brokers 1 to N, on ports from `base_port` on. Starts nothing by itself."""

    def __init__(
        self, directory: Path, *, brokers: int, zookeepers: int, base_port: int, config: Mapping[str, str]
    ) -> None:
        """`config` has Kafka's keys, for all brokers. PartMissing when there is no Java, or ZooKeeper cannot be had."""
        self.directory = directory
        self.brokers = [LocalBroker(number + 1, directory, base_port + number) for number in range(brokers)]
        self.zookeeper = ZooKeeperEnsemble(directory, nodes=zookeepers, ends_with_us=True)
        replicas = min(REPLICAS_WANTED, brokers)
        self.settings = {
            "zookeeper.connect": self.zookeeper.connect + CHROOT,
            "default.replication.factor": str(replicas),
            # One replica may be away without stopping who writes.
            "min.insync.replicas": str(max(1, replicas - 1)),
            **config,
        }

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(broker.address for broker in self.brokers)

    def start(self) -> None:
        """Return when every broker serves. BrokerDidNotStart and RuntimeError (ZooKeeper) say why one does not."""
        self.zookeeper.start()
        for broker in self.brokers:
            broker.start(self.settings)
        for broker in self.brokers:
            broker.wait_until_serving()

    def stop(self, on_stopped: Callable[[LocalBroker, bool], None] = lambda broker, in_order: None) -> None:
        """One broker after the other, so that each can hand over what it leads; then ZooKeeper."""
        for broker in self.brokers:
            if broker.is_running:
                on_stopped(broker, broker.stop())
        self.zookeeper.stop()

    def kill(self) -> None:
        """At once, without any order. What was acknowledged is on disk."""
        for broker in self.brokers:
            broker.kill()
        self.zookeeper.stop()


def zookeepers_of(directory: Path) -> int:
    """How many ZooKeeper nodes the cluster in `directory` was made with; 0 when there is none yet."""
    return len(list(directory.glob("zookeeper-*")))


def ports_in_use(ports: range) -> list[int]:
    """Those on which somebody listens."""
    return [port for port in ports if _is_open(port)]


def _is_open(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\")  # As .properties files have it.
