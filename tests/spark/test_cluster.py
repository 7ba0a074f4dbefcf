"""Source, sink and the templates on a real Spark cluster: a master and two workers, the tasks in JVMs of their own."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.dataset
import pytest

from penstock.pipeline.template import template_names
from penstock.spark.brokers import Brokers
from penstock.spark.options import LATEST, Isolation
from penstock.spark.plan import OffsetRange
from penstock.spark.reader import Wanted, read
from penstock.testing import EmbeddedBroker
from spark_cluster import CONFIG, SparkCluster

MINUTE_MS = 60_000
# A full minute of today: retention would delete what is older than a week, and did.
START_MS = (int(time.time() * 1000) // MINUTE_MS - 30) * MINUTE_MS
DRIVER = Path(__file__).parent / "cluster_copy.py"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("spark-cluster")) as running:
        yield running


def test_a_topic_is_copied_by_two_executors(cluster, penstock_broker, produce, tmp_path):
    source, target = penstock_broker.create_topic(partitions=2), penstock_broker.create_topic(partitions=2)
    produce(source, [(number % 2, b"%d" % number, b"%d" % number, 0, []) for number in range(1000)])
    arguments = [cluster.url, penstock_broker.bootstrap_servers, source, target, str(tmp_path / "checkpoint")]
    seen = json.loads(cluster.run([str(DRIVER), *arguments]).splitlines()[-1])
    assert seen == {"values": list(range(1000)), "executors": 2}
    assert cluster.executors_with_tasks() == 2


@pytest.fixture
def committed(penstock_broker: EmbeddedBroker) -> Callable[[str], list[tuple]]:
    """`committed(topic)`: partition, key, value, timestamp and headers of each record, in order."""

    def committed(topic: str) -> list[tuple]:
        address, found = penstock_broker.bootstrap_servers, []
        with Brokers(address) as brokers:
            ends = brokers.offsets(dict.fromkeys(brokers.partitions([topic]), LATEST), Isolation.READ_COMMITTED)
        for (_, partition), end in sorted(ends.items()):
            part = OffsetRange(topic, partition, 0, end)
            for batch in read(Wanted(address, part, Isolation.READ_COMMITTED, True, True, 60_000)):
                columns = (batch[name].to_pylist() for name in ("partition", "key", "value", "timestamp", "headers"))
                found += zip(*columns, strict=True)
        return found

    return committed


@pytest.fixture
def pipeline(cluster: SparkCluster, penstock_broker: EmbeddedBroker, tmp_path: Path) -> Callable[..., None]:
    """`pipeline(template, topic, key=value, …)`: made from the template if it is new, and run to its end."""
    command = [sys.executable, "-m", "penstock.cli.main", "pipeline"]
    environment = {**cluster.environment(), "PENSTOCK_BOOTSTRAP_SERVER": penstock_broker.bootstrap_servers}
    settings = [word for key, value in CONFIG.items() for word in ("--conf", f"{key}={value}")]

    def call(*arguments: str) -> str:
        done = subprocess.run(
            [*command, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=400
        )
        logs = "".join(path.read_text() for path in tmp_path.glob("*/.penstock/log"))
        assert done.returncode == 0, f"{done.stdout}{done.stderr}{logs[-6000:]}"
        return done.stdout

    def pipeline(template: str, topic: str, **parameters: str) -> None:
        name = f"my-{template}"
        if not (tmp_path / name).exists():
            given = [word for key, value in parameters.items() for word in ("--set", f"{key}={value}")]
            call("init", name, "--template", template, "--topic", topic, *given)
        lines = call("run", name, "--master", cluster.url, *settings, "--json").splitlines()
        assert json.loads(lines[-1])["outcome"] == "completed"

    return pipeline


@pytest.mark.long
@pytest.mark.timeout(1000)
def test_dedupe(pipeline, committed, produce, penstock_broker):
    orders = penstock_broker.create_topic("orders", partitions=2)
    produce(orders, [(n % 2, b"k%d" % (n % 10), b"%d" % n, START_MS + n, None) for n in range(30)])
    pipeline("dedupe", orders)
    assert sorted(key for _, key, *_ in committed("orders-unique")) == [b"k%d" % n for n in range(10)]


@pytest.mark.long
@pytest.mark.timeout(1000)
def test_aggregate(pipeline, committed, produce, penstock_broker):
    logs = penstock_broker.create_topic("logs", partitions=2)

    def event(number, at):
        value = json.dumps({"service": "web" if number % 3 else "db", "level": "ERROR"})
        return number % 2, None, value.encode(), at, None

    produce(logs, [event(n, START_MS + n) for n in range(30)] + [event(0, START_MS + 10 * MINUTE_MS)])
    pipeline("aggregate", logs, alert_from="20")
    produce(logs, [event(0, START_MS + 11 * MINUTE_MS)])  # Windows are closed by what comes after them.
    pipeline("aggregate", logs)
    counts = [json.loads(value) for _, _, value, *_ in committed("logs-counts")]
    assert sorted((each["service"], each["count"]) for each in counts) == [("db", 10), ("web", 20)]
    assert [json.loads(value)["service"] for _, _, value, *_ in committed("logs-alerts")] == ["web"]


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_archive_replay_and_table(pipeline, committed, produce, penstock_broker, tmp_path):
    events = penstock_broker.create_topic("events", partitions=2)
    produce(events, [(n % 2, b"k%d" % n, b"v%d" % n, START_MS + n, [("n", b"%d" % n)]) for n in range(30)])
    pipeline("archive", events)
    lake = str(tmp_path / "my-archive" / "lake")
    penstock_broker.create_topic("events-replay", partitions=2)
    pipeline("replay", events, lake=lake)
    original = committed(events)
    assert len(original) == 30
    assert committed("events-replay") == original

    produce(events, [(0, b"new", b"after the archive", START_MS, None)])
    pipeline("table", events, lake=lake)
    rows = pyarrow.dataset.dataset(tmp_path / "my-table" / "warehouse" / "records", format="parquet").to_table()
    assert sorted(rows["value"].to_pylist()) == sorted(value.decode() for _, _, value, *_ in committed(events))


def test_no_template_is_forgotten_here():
    tried = re.findall(r'pipeline\("([a-z]+)"', Path(__file__).read_text())
    assert set(tried) == set(template_names())
