"""`penstock serve --zookeeper`: brokers as their own processes on a real ZooKeeper, used through the command line."""

import signal
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from broker_process import BrokerProcess
from penstock.cli.main import main
from penstock.local.zookeeper import HOST, ZooKeeperEnsemble
from ports import free_port
from store_backends import fresh_chroot

from .conftest import run_penstock

# Short, because a broker that was killed is waited for; at most 20 of the server's ticks are granted.
CONFIG = {"zookeeper.session.timeout.ms": "3000", "group.initial.rebalance.delay.ms": "0"}

READ_S_MAX = 60


def broker(directory: Path, connect: str, node_id: int) -> BrokerProcess:
    own = directory / f"broker-{node_id}"
    own.mkdir()
    return BrokerProcess(own, config=CONFIG, arguments=["--zookeeper", connect, "--node-id", str(node_id)])


def penstock(broker: BrokerProcess, *arguments: str, stdin: str = "") -> str:
    done = run_penstock(*arguments, "-b", broker.bootstrap, stdin=stdin)
    assert done.code == 0, done.err
    return done.out


def read_in_group(broker: BrokerProcess, count: int) -> list[str]:
    """The next records of topic t that group g has not read yet, sorted."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    values: list[str] = []
    deadline = time.monotonic() + READ_S_MAX
    while len(values) < count and time.monotonic() < deadline:
        values += [message.value().decode() for message in consumer.consume(count, 0.5)]
    consumer.commit(asynchronous=False)
    consumer.close()
    return sorted(values)


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_one_broker_on_zookeeper_does_everything(
    zookeeper: ZooKeeperEnsemble, tmp_path: Path, ending: signal.Signals
) -> None:
    process = broker(tmp_path, f"{zookeeper.connect}/{fresh_chroot()}", 1)
    with process.serving():
        penstock(process, "topics", "create", "t", "--partitions", "3")
        penstock(process, "produce", "t", stdin="one\ntwo\nthree\n")
        assert read_in_group(process, 3) == ["one", "three", "two"]
        if ending is signal.SIGTERM:
            process.stop()
        else:
            process.kill()
        process.start()
        penstock(process, "produce", "t", stdin="four\n")
        assert read_in_group(process, 1) == ["four"]
        assert "g" in penstock(process, "groups", "list").split()
        assert sorted(penstock(process, "consume", "t").split()) == ["four", "one", "three", "two"]
        penstock(process, "topics", "delete", "t", "--yes")
        assert "t" not in penstock(process, "topics", "list").split()
    assert not (process.data / "metadata.db").exists()


def test_two_brokers_are_one_cluster_and_an_id_is_given_once(zookeeper: ZooKeeperEnsemble, tmp_path: Path) -> None:
    connect = f"{zookeeper.connect}/{fresh_chroot()}"
    one, two = broker(tmp_path, connect, 1), broker(tmp_path, connect, 2)
    with one.serving(), two.serving():
        for process in (one, two):
            found = AdminClient({"bootstrap.servers": process.bootstrap}).list_topics(timeout=30)
            assert {node: str(broker) for node, broker in found.brokers.items()} == {
                1: f"{one.bootstrap}/1",
                2: f"{two.bootstrap}/2",
            }
            assert found.controller_id == 1
        (tmp_path / "short.properties").write_text("zookeeper.session.timeout.ms=1000\n")
        refused = run_penstock(
            "serve", "--zookeeper", connect, "--node-id", "2", "--listen", f"{HOST}:{free_port()}",
            "--data", tmp_path / "third", "--config", tmp_path / "short.properties",
        )  # fmt: skip
        assert refused.code == 1
        assert "error: Cannot join the cluster: a broker with node.id 2 is already registered." in refused.err
        assert "--node-id N" in refused.err.partition("hint:")[2]
        assert "Traceback" not in refused.err


def test_zookeeper_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "server.properties").write_text("zookeeper.connection.timeout.ms=500\n")
    port = free_port()
    failed = run_penstock(
        "serve", "--zookeeper", f"{HOST}:{port}/x", "--listen", f"{HOST}:{free_port()}",
        "--data", tmp_path / "data", "--config", tmp_path / "server.properties",
    )  # fmt: skip
    assert failed.code == 1
    assert f"error: Cannot reach the cluster's ZooKeeper: no ZooKeeper server of {HOST}:{port} serves us" in failed.err
    assert "--zookeeper HOST:PORT" in failed.err.partition("hint:")[2]
    assert "Traceback" not in failed.err


@pytest.mark.parametrize("connect", ["", "host:port", "host:99999", "a//b", "a b"])
def test_an_address_that_is_none(connect: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--zookeeper", connect, "--data", str(tmp_path / "data")]) == 1
    assert "zookeeper.connect is" in capsys.readouterr().err


def test_a_data_directory_stays_with_its_broker_and_its_cluster(zookeeper: ZooKeeperEnsemble, tmp_path: Path) -> None:
    connect = f"{zookeeper.connect}/{fresh_chroot()}"
    process = broker(tmp_path, connect, 1)
    with process.serving():
        pass
    assert "node.id=1" in (process.data / "meta.properties").read_text().split()

    def refusal(*options: str, data: Path = process.data) -> str:
        failed = run_penstock("serve", "--listen", f"{HOST}:{free_port()}", "--data", data, *options)
        assert failed.code == 1
        assert f"error: Cannot use the data directory {data}: " in failed.err
        assert "Traceback" not in failed.err
        return failed.err

    assert "it is of broker 1, and this is broker 2" in refusal("--zookeeper", connect, "--node-id", "2")
    other = f"{zookeeper.connect}/{fresh_chroot()}"
    assert "it is of the cluster" in refusal("--zookeeper", other)
    assert "it is of broker 1 of a cluster on ZooKeeper" in refusal()
    embedded = BrokerProcess(tmp_path)
    with embedded.serving():
        pass
    assert "whose topics are in metadata.db" in refusal("--zookeeper", connect, data=embedded.data)
