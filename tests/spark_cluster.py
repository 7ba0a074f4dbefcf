"""A real Spark cluster on this machine's loopback: a master and workers as processes, from PySpark's own jars.

Spark in `local[2]` has no executors: tasks run in the driver's own JVM. Here each worker starts a JVM for a driver's
tasks, with Python's processes below it, as on a cluster of machines.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from penstock.local.child_process import start_child
from penstock.spark import environment
from ports import HOST, free_port

START_S_MAX = 120
# All of them live for minutes at most: the optimising compiler would cost more than it gives back.
JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"

# For drivers: small, on loopback, without a page to look at.
CONFIG = {
    "spark.driver.host": HOST,
    "spark.driver.bindAddress": HOST,
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


class SparkCluster:
    """Use as a context manager: at its end every process is gone, executors too."""

    def __init__(self, directory: Path, *, workers: int = 2) -> None:
        self._directory = directory
        self._workers_count = workers
        self._port, self._page_port = free_port(), free_port()
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = f"spark://{HOST}:{self._port}"

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def state(self) -> Any:
        """What the master knows: workers, applications and their state."""
        with urllib.request.urlopen(f"http://{HOST}:{self._page_port}/json/", timeout=10) as reply:
            return json.load(reply)

    def environment(self) -> dict[str, str]:
        """For a driver's process, the daemons, and the executors that they start."""
        own = {"SPARK_LOCAL_IP": HOST, "PYTHONPATH": str(Path(__file__).parent), "JAVA_TOOL_OPTIONS": JVM_OPTIONS}
        return {**os.environ, **environment(), **own}

    def run(self, arguments: Sequence[str], *, timeout_s: float = 240) -> str:
        """The output of a driver: this interpreter with `arguments`. It must end well."""
        done = subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, timeout=timeout_s, env=self.environment()
        )
        assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-6000:]}"
        return done.stdout

    def executors(self) -> list[int]:
        """The process ids of the JVMs that run tasks now."""
        found = [pid for worker in self._processes[1:] for pid in below(worker.pid)]
        return [pid for pid in found if EXECUTOR in command_of(pid)]

    def tasks(self) -> list[int]:
        """The Python processes of the executors that run tasks, or wait for the next."""
        daemons = [pid for executor in self.executors() for pid in _children(executor)]
        return [task for daemon in daemons for task in _children(daemon)]

    def executors_with_tasks(self) -> int:
        """How many have run a task of any driver so far: each logs every task that it runs."""
        logs = self._directory.glob("work-*/app-*/*/stderr")
        return sum("Finished task" in log.read_text(errors="replace") for log in logs)

    def _start(self) -> None:
        daemon = "org.apache.spark.deploy"
        self._run(f"{daemon}.master.Master", "--port", str(self._port), "--webui-port", str(self._page_port))
        for number in range(self._workers_count):
            work = ["--work-dir", str(self._directory / f"work-{number}"), "--webui-port", str(free_port())]
            self._run(f"{daemon}.worker.Worker", "--cores", "1", "--memory", "1g", *work, self.url)
        give_up_at = time.monotonic() + START_S_MAX
        while self._alive_count() < self._workers_count:
            if time.monotonic() > give_up_at or any(each.poll() is not None for each in self._processes):
                raise RuntimeError(f"the Spark cluster did not start:\n{self._log().read_text()[-4000:]}")
            time.sleep(0.1)

    def _run(self, name: str, *arguments: str) -> None:
        variables = {**self.environment(), "SPARK_DAEMON_MEMORY": "256m", "SPARK_NO_DAEMONIZE": "1"}
        program = str(Path(variables["SPARK_HOME"], "bin", "spark-class"))
        settings = [f"{key}={value}" for key, value in variables.items()]
        command = ["env", *settings, program, name, "--host", HOST, *arguments]
        self._processes.append(start_child(command, log=self._log()))

    def _alive_count(self) -> int:
        try:
            return sum(worker["state"] == "ALIVE" for worker in self.state()["workers"])
        except (OSError, ValueError):  # While it starts, it answers with another page than the one that was asked for.
            return 0

    def _log(self) -> Path:
        return self._directory / "spark-cluster.log"

    def _stop(self) -> None:
        # A worker's executors are its children, but end by themselves only when they notice that it is gone.
        for process in reversed(self._processes):
            for pid in [*below(process.pid), process.pid]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait(60)
        self._processes.clear()


def below(pid: int) -> list[int]:
    """All processes that it has started, and those that they have."""
    found = [pid]
    for each in found:
        found += _children(each)
    return found[1:]


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for children in Path("/proc", str(pid), "task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # A thread that has just ended.
            found += map(int, children.read_text().split())
    return found


def command_of(pid: int) -> str:
    try:
        return re.sub("\0", " ", Path("/proc", str(pid), "cmdline").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return ""
