"""A real ZooKeeper on this machine's loopback: one node, or an ensemble. Everything it writes is in one directory.

For development and tests. Its ticks are short, so that sessions may be, and it does not wait for the disk: the power
may not fail.
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from penstock.local.child_process import start_child
from penstock.local.java import find_java
from penstock.local.zookeeper_jars import zookeeper_jars

HOST = "127.0.0.1"
TICK_MS = 500  # Sessions may be as short as two ticks.
START_S_MAX = 60
MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
# A node lives for minutes and holds kilobytes: the optimising compiler would cost more than it gives back.
JVM_OPTIONS = ("-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:+UseSerialGC", "-Xms32m", "-Xmx256m")


class ZooKeeperNode:
    """One server process."""

    def __init__(self, directory: Path, port: int, command: Sequence[str], *, ends_with_us: bool = False) -> None:
        self.directory = directory
        self._ends_with_us = ends_with_us
        self.port = port
        self.address = f"{HOST}:{port}"
        self._command = [*command, str(directory / "zoo.cfg")]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Have the process begin; `wait_until_serving` says when it does."""
        assert self._process is None, "started twice"
        if self._ends_with_us:
            self._process = start_child(self._command, log=self.directory / "log")
            return
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def wait_until_serving(self) -> str:
        """Wait for a quorum; gives the node's role: standalone, leader or follower."""
        deadline = time.monotonic() + START_S_MAX
        while time.monotonic() < deadline:
            assert self._process is not None
            if self._process.poll() is not None:
                break
            role = self.role()
            if role is not None:
                return role
            time.sleep(0.05)
        raise RuntimeError(f"ZooKeeper on {self.address} does not serve:\n{self.log()[-4000:]}")

    def role(self) -> str | None:
        """standalone, leader or follower; None while it does not serve."""
        for line in four_letters(self.port, "srvr").splitlines():
            if line.startswith("Mode: "):
                return line.removeprefix("Mode: ")
        return None

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, if it runs; what it knows stays in its directory for the next start."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")


class ZooKeeperEnsemble:
    """Nodes that form one ZooKeeper. Use as a context manager: at its end every process is gone."""

    def __init__(
        self,
        directory: Path,
        *,
        nodes: int = 1,
        ports: Sequence[int] | None = None,
        java: str | None = None,
        jars: Path | None = None,
        free_port: Callable[[], int] | None = None,
        ends_with_us: bool = False,
    ) -> None:
        """`ports` are those for clients, one a node; all others, and those too if not given, are free ones.

        With `ends_with_us` the nodes are killed when the thread that starts them ends, be it by SIGKILL.
        """
        free = free_port or _free_port
        client_ports = list(ports) if ports is not None else [free() for _ in range(nodes)]
        assert len(client_ports) == nodes, f"{nodes=} {ports=}"
        peers = [f"server.{number}={HOST}:{free()}:{free()}" for number in range(1, nodes + 1)] if nodes > 1 else []
        command = [
            java or find_java(),
            *JVM_OPTIONS,
            "-Dzookeeper.forceSync=no",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-cp",
            f"{jars or zookeeper_jars()}{os.sep}*",
            MAIN_CLASS,
        ]
        self.nodes: list[ZooKeeperNode] = []
        for number, port in enumerate(client_ports, 1):
            own = directory / f"zookeeper-{number}"
            own.mkdir(parents=True, exist_ok=True)
            (own / "myid").write_text(str(number))
            (own / "zoo.cfg").write_text(_settings(own, port, peers))
            self.nodes.append(ZooKeeperNode(own, port, command, ends_with_us=ends_with_us))

    @property
    def connect(self) -> str:
        """What goes after `--zookeeper`."""
        return ",".join(node.address for node in self.nodes)

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        for node in self.nodes:
            node.wait_until_serving()

    def stop(self) -> None:
        for node in self.nodes:
            node.kill()

    def leader(self) -> ZooKeeperNode:
        return next(node for node in self.nodes if node.is_running and node.role() in ("leader", "standalone"))

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def four_letters(port: int, word: str) -> str:
    """ZooKeeper's answer to one of its four-letter words; empty when there is none."""
    try:
        with socket.create_connection((HOST, port), timeout=2) as connection:
            connection.sendall(word.encode())
            answer = b""
            while chunk := connection.recv(4096):
                answer += chunk
            return answer.decode(errors="replace")
    except OSError:
        return ""


def _settings(directory: Path, port: int, peers: Sequence[str]) -> str:
    lines = [
        f"tickTime={TICK_MS}",
        "initLimit=40",
        "syncLimit=10",
        f"dataDir={directory}",
        f"clientPort={port}",
        f"clientPortAddress={HOST}",
        "maxClientCnxns=0",
        "admin.enableServer=false",
        "4lw.commands.whitelist=srvr,mntr,cons",
        *peers,
    ]
    return "\n".join(lines) + "\n"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
