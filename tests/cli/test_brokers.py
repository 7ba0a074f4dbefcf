"""`penstock brokers` against a cluster of brokers in this process, under load."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from penstock.base.clock import SystemClock
from penstock.base.config import BrokerConfig
from penstock.base.types import NodeId
from penstock.cli import moves
from penstock.cli.cluster_view import ClusterView, look
from penstock.cli.move_plan import Partition
from penstock.cli.moves import Progress, size
from penstock.cli.output import Failure
from penstock.cli.throttle import parse_rate
from penstock.cli.wire_client import WireClient
from penstock.cluster.image import ClusterImage
from penstock.cluster.store.memory import MemoryStore
from penstock.server.broker import Broker
from penstock.server.network import SocketNetwork
from penstock.storage.disk_threads import DiskThreads
from penstock.storage.fs import PosixFileSystem

from .conftest import Result

T = TypeVar("T")
TIMEOUT_S = 90


class ThreadedCluster:
    """Brokers on one event loop, in a thread of its own, with their metadata in memory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._store = MemoryStore()
        self.brokers: dict[int, Broker] = {}
        self._stack = AsyncExitStack()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT_S)

    def add(self, *node_ids: int, racks: str = "") -> None:
        for node_id in node_ids:
            rack = racks[node_id - 1] if racks else None
            self._do(self._start(node_id, rack))

    async def _start(self, node_id: int, rack: str | None) -> None:
        directory = self._directory / str(node_id)
        directory.mkdir()
        config = BrokerConfig(
            node_id=NodeId(node_id),
            host="127.0.0.1",
            port=0,
            data_dir=str(directory),
            rack=rack,
            replica_fetch_wait_max_ms=50,
            controlled_shutdown_enable=False,
            offsets_topic_num_partitions=1,
        )
        threads = self._stack.enter_context(DiskThreads(count_max=2))
        broker = Broker(
            config=config,
            fs=PosixFileSystem(threads),
            clock=SystemClock(),
            network=SocketNetwork(),
            store=self._store,
            random=Random(node_id),
        )
        await broker.start()
        self._stack.push_async_callback(broker.stop)
        self.brokers[node_id] = broker

    @property
    def image(self) -> ClusterImage:
        return next(iter(self.brokers.values())).metadata.image

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"127.0.0.1:{broker.listener.port}" for broker in self.brokers.values())

    def replicas(self) -> Counter[int]:
        found = Counter(dict.fromkeys(self.brokers, 0))
        for topic in self.image.topics.values():
            for state in topic.partitions:
                found.update(state.replicas)
        return found

    def leads(self) -> Counter[int]:
        return Counter(state.leader for topic in self.image.topics.values() for state in topic.partitions)

    def close(self) -> None:
        self._do(self._stack.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_S)
        self._loop.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ThreadedCluster]:
    cluster = ThreadedCluster(tmp_path)
    yield cluster
    cluster.close()


@pytest.fixture
def address(cluster: ThreadedCluster) -> str:
    cluster.add(1, 2, 3)
    return cluster.bootstrap_servers


class Load:
    """Messages with numbers, one after the other, from a thread of its own."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 1, "log_level": 0})
        self._topic = topic
        self.acked: list[int] = []
        self.errors: list[object] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            self._producer.produce(self._topic, b"%d" % number, on_delivery=self._on_delivery)
            self._producer.poll(0.002)
            number += 1
        self._producer.flush(60)

    def _on_delivery(self, error: object, message: Any) -> None:
        if error is None:
            self.acked.append(int(message.value()))
        else:
            self.errors.append(error)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(TIMEOUT_S)


def wait_until(condition: Callable[[], bool]) -> None:
    """The command speaks to the controller; the broker whose image is looked at hears of it a moment later."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def has_replicas(cluster: ThreadedCluster, topic: str, factor: int) -> bool:
    return all(len(state.replicas) == len(state.isr) == factor for state in cluster.image.topics[topic].partitions)


def read_all(bootstrap_servers: str, topic: str, partitions: int) -> Counter[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "g", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found: Counter[int] = Counter()
    ended: set[int] = set()
    while len(ended) < partitions:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        if message.error() is not None:
            ended.add(message.partition())
        else:
            found[int(message.value())] += 1
    consumer.close()
    return found


def test_a_new_broker_takes_its_share_and_another_is_drained_under_load(
    cluster: ThreadedCluster, penstock: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert penstock("topics", "create", "t", "--partitions", "12", "--replication-factor", "2").code == 0
    assert penstock("topics", "create", "u", "--partitions", "12", "--replication-factor", "2").code == 0
    load = Load(cluster.bootstrap_servers, "t")
    try:
        assert penstock("brokers", "rebalance", "--yes").out.startswith("Nothing to do")
        cluster.add(4)
        monkeypatch.setenv("PENSTOCK_BOOTSTRAP_SERVER", cluster.bootstrap_servers)
        planned = penstock("brokers", "rebalance", "--dry-run", "--json").json
        assert cluster.replicas()[4] == 0
        done = penstock("brokers", "rebalance", "--yes", "--json")
        assert done.code == 0, done.err
        assert done.json == {"partitions_moved": len(planned)}
        wait_until(lambda: cluster.replicas() == {1: 12, 2: 12, 3: 12, 4: 12})
        wait_until(lambda: cluster.leads() == {1: 6, 2: 6, 3: 6, 4: 6})
        listed = {row["id"]: row for row in penstock("brokers", "list", "--json").json}
        assert [(row["leads"], row["replicas"], row["in_sync"]) for row in listed.values()] == [(6, 12, 12)] * 4
        assert all(row["bytes"] > 0 for row in listed.values())

        refused = penstock("brokers", "drain", "2", "--json")
        assert refused.error["code"] == "USAGE"  # Nobody to ask.
        assert penstock("brokers", "drain", "2", "--dry-run").code == 0
        assert cluster.replicas()[2] == 12
        drained = penstock("brokers", "drain", "2", "--yes", "--throttle", "50MB/s")
        assert drained.code == 0, drained.err
        assert drained.out == "Broker 2 hosts nothing; it can be stopped.\n"
        wait_until(lambda: cluster.replicas()[2] == 0)
        wait_until(lambda: not list(cluster.brokers[2].partitions))
        assert max(cluster.replicas().values()) - min(cluster.replicas()[node] for node in (1, 3, 4)) <= 3
        wait_until(lambda: all(s.leader == s.replicas[0] for t in cluster.image.topics.values() for s in t.partitions))
        # The throttle is gone again.
        wait_until(lambda: not any(topic.config for topic in cluster.image.topics.values()))
        wait_until(lambda: not cluster.image.broker_configs)
        # Once more: there is nothing left to do.
        assert penstock("brokers", "drain", "2", "--yes", "--json").json["partitions_moved"] == 0
    finally:
        load.stop()
    assert load.errors == []
    assert len(load.acked) > 100
    found = read_all(cluster.bootstrap_servers, "t", 12)
    assert found.keys() >= set(load.acked)


def test_ctrl_c_leaves_the_moves_to_the_cluster_and_a_second_start_ends_them(
    cluster: ThreadedCluster, penstock: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert penstock("topics", "create", "t", "--partitions", "2", "--replication-factor", "2").code == 0
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "batch.num.messages": 1})
    for number in range(20):
        producer.produce("t", b"x" * 20_000, partition=number % 2)
    assert producer.flush(TIMEOUT_S) == 0
    with monkeypatch.context() as patch:
        patch.setattr(moves, "look", interrupt)
        broken_off = penstock("brokers", "drain", "1", "--yes", "--throttle", "1KB/s")
    assert broken_off.code == 130
    assert "on the way: they arrive without this command" in broken_off.err
    assert "brokers drain 1" in broken_off.err
    wait_until(lambda: any(state.removing == (1,) for state in cluster.image.topics["t"].partitions))  # For minutes.
    assert cluster.image.broker_configs
    done = penstock("brokers", "drain", "1", "--yes", "--throttle", "100MB/s", "--json")
    assert done.code == 0, done.err
    wait_until(lambda: cluster.replicas()[1] == 0)
    wait_until(lambda: not cluster.image.broker_configs)


def interrupt(client: object) -> None:
    raise KeyboardInterrupt


def test_a_move_to_a_broker_that_stays_away_is_given_up(
    cluster: ThreadedCluster, penstock: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert penstock("topics", "create", "t", "--replication-factor", "1").code == 0

    def without_the_target(client: WireClient) -> ClusterView:
        view = look(client)
        partition = view.partitions[Partition("t", 0)]._replace(is_moving=True)
        brokers = {node: broker for node, broker in view.brokers.items() if node == leader}
        return ClusterView(brokers, {Partition("t", 0): partition})

    leader = cluster.image.topics["t"].partitions[0].leader
    monkeypatch.setattr(moves, "look", without_the_target)
    monkeypatch.setattr(moves, "AWAY_S_MAX", 0.0)
    failed = penstock("brokers", "drain", str(leader), "--yes", "--json")
    assert failed.error["code"] == "BROKER_AWAY"
    assert "brokers drain" in failed.error["hint"]


def test_a_broker_that_is_needed_or_unknown_is_not_drained(
    cluster: ThreadedCluster, penstock: Callable[..., Result]
) -> None:
    assert penstock("topics", "create", "t", "--replication-factor", "3").code == 0
    refused = penstock("brokers", "drain", "3", "--yes", "--json")
    assert refused.code == 1
    assert refused.error["code"] == "TOO_FEW_BROKERS"
    assert "t-0 has 3 replicas, and without broker 3 there are 2 brokers" in refused.error["message"]
    assert penstock("brokers", "drain", "9", "--json").error["code"] == "BROKER_NOT_FOUND"


def test_the_replication_factor_is_changed_up_and_down(
    cluster: ThreadedCluster, penstock: Callable[..., Result]
) -> None:
    assert penstock("topics", "create", "t", "--partitions", "3", "--replication-factor", "1").code == 0
    assert penstock("produce", "t", stdin="a\nb\nc\n").code == 0
    for factor in (3, 2):
        altered = penstock("topics", "alter", "t", "--replication-factor", str(factor))
        assert altered.code == 0, altered.err
        wait_until(partial(has_replicas, cluster, "t", factor))
    refused = penstock("topics", "alter", "t", "--replication-factor", "4", "--json")
    assert refused.error["code"] == "INVALID_REPLICATION_FACTOR"
    missing = penstock("topics", "alter", "x", "--replication-factor", "2", "--json")
    assert missing.error["code"] == "UNKNOWN_TOPIC_OR_PART"
    assert penstock("brokers", "elect", "--json").json == {"leaders_changed": 0}


@pytest.mark.parametrize(
    ("text", "rate"),
    [("10MB/s", 10_000_000), ("10 mb", 10_000_000), ("512KiB/s", 524_288), ("1.5G", 1_500_000_000), ("7", 7)],
)
def test_rates(text: str, rate: int) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "fast", "0", "-1", "10MB/m", "1e9", "0.1"])
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(Failure, match="no rate"):
        parse_rate(text)


def test_progress_in_words() -> None:
    assert str(Progress(3, 10, 0, 0, 0.0)) == "3 of 10 partitions"
    progress = Progress(3, 10, 2_000_000, 12_000_000, 1_000_000.0)
    assert str(progress) == "3 of 10 partitions, 2.0 MB of 12.0 MB, 1.0 MB/s, 10s left"
    assert [size(count) for count in (0, 999, 1500, 2.5e9, 3e12, 5e15)] == [
        "0 B",
        "999 B",
        "1.5 kB",
        "2.5 GB",
        "3.0 TB",
        "5000.0 TB",
    ]
