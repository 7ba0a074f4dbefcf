"""Kafka's tools for clusters: who leads and who is in sync; preferred and unclean elections; partitions that move."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

from .broker import BrokerCluster
from .group_member import wait_until
from .kafka_tools import LEADER_ELECTION, REASSIGN_PARTITIONS, TOPICS, KafkaTools
from .topics import produce_numbers, read_values, wait_until_in_sync, wait_until_led

RECORD_COUNT = 10
MOVED_COUNT = 200  # Records of a partition that moves,
VALUE_BYTES = 1_000  # each so large, in batches of their own.
SLOW_BYTES_PER_S = 5_000  # Forty seconds for a partition.
FAST_BYTES_PER_S = 100_000_000


@pytest.fixture(autouse=True)
def broker_lives(cluster: BrokerCluster) -> Iterator[None]:
    """The one broker of other tests is not needed here."""
    cluster.check_alive()
    yield
    cluster.check_alive()


@pytest.fixture
def tools(kafka_tools: KafkaTools, cluster: BrokerCluster) -> KafkaTools:
    return kafka_tools.against(cluster.bootstrap)


@contextmanager
def _away(cluster: BrokerCluster, node_id: int) -> Iterator[None]:
    cluster.broker(node_id).stop()
    try:
        yield
    finally:
        cluster.broker(node_id).start()


def _create(tools: KafkaTools, cluster: BrokerCluster, topic: str, replicas: str, *options: str) -> None:
    """`replicas` as kafka-topics takes them: 1:2,2:3 are two partitions on two brokers each."""
    tools.output(TOPICS, "--create", "--topic", topic, "--replica-assignment", replicas, *options)
    wait_until_led(cluster.bootstrap, topic, len(replicas.split(",")))


def _lines(tools: KafkaTools, topic: str, *options: str) -> list[dict[str, str]]:
    """Of the topic's partitions, in their order."""
    return [line for line in tools.described(topic, *options) if "Partition" in line]


def _leaders(tools: KafkaTools, topic: str) -> list[str]:
    return [line["Leader"] for line in _lines(tools, topic)]


def _elect(tools: KafkaTools, kind: str, topic: str, partition: int) -> str:
    which = ["--election-type", kind, "--topic", topic, "--partition", str(partition)]
    result = tools.run(LEADER_ELECTION, *which)
    return result.out + result.err


def test_describe_and_preferred_election_around_a_restart(tools: KafkaTools, cluster: BrokerCluster) -> None:
    topic, lonely = "describe-and-elect", "on-one-broker"
    _create(tools, cluster, topic, "1:2:3,2:3:1,3:1:2")
    _create(tools, cluster, lonely, "3", "--config", "min.insync.replicas=1")
    assert [line["Replicas"] for line in _lines(tools, topic)] == ["1,2,3", "2,3,1", "3,1,2"]
    assert _leaders(tools, topic) == ["1", "2", "3"]
    assert _lines(tools, topic, "--under-replicated-partitions") == []
    with _away(cluster, 3):
        wait_until(lambda: [line["Isr"] for line in _lines(tools, topic)] == ["1,2", "2,1", "1,2"],
                   lambda: str(_lines(tools, topic)))  # fmt: skip
        assert _leaders(tools, topic) == ["1", "2", "1"]
        for option in ("--under-replicated-partitions", "--at-min-isr-partitions"):
            assert [line["Partition"] for line in _lines(tools, topic, option)] == ["0", "1", "2"]
        for option in ("--unavailable-partitions", "--under-min-isr-partitions"):
            assert _lines(tools, topic, option) == []
        (unavailable,) = _lines(tools, lonely, "--unavailable-partitions")
        assert (unavailable["Leader"], unavailable["Replicas"]) == ("none", "3")
        produce_numbers(cluster.bootstrap, topic, partition=2, count=RECORD_COUNT)
    wait_until_in_sync(cluster.bootstrap, topic, 3)
    wait_until_led(cluster.bootstrap, lonely, 1)
    assert _lines(tools, topic, "--under-replicated-partitions") == []
    assert _leaders(tools, topic) == ["1", "2", "1"]
    assert f"for partitions {topic}-2" in _elect(tools, "preferred", topic, 2)
    wait_until(lambda: _leaders(tools, topic) == ["1", "2", "3"], lambda: str(_lines(tools, topic)))
    assert f"Valid replica already elected for partitions {topic}-2" in _elect(tools, "preferred", topic, 2)
    assert read_values(cluster.bootstrap, topic, 2) == [str(number).encode() for number in range(RECORD_COUNT)]


def test_unclean_election_takes_who_is_there(tools: KafkaTools, cluster: BrokerCluster) -> None:
    topic = "unclean"
    _create(tools, cluster, topic, "2:3", "--config", "min.insync.replicas=1")
    produce_numbers(cluster.bootstrap, topic, partition=0, count=RECORD_COUNT)
    with ExitStack() as away:
        with _away(cluster, 3):
            wait_until(lambda: _lines(tools, topic)[0]["Isr"] == "2", lambda: str(_lines(tools, topic)))
            produce_numbers(cluster.bootstrap, topic, partition=0, count=5)  # Only broker 2 has these.
            away.enter_context(_away(cluster, 2))
        wait_until(lambda: _leaders(tools, topic) == ["none"], lambda: str(_lines(tools, topic)))
        assert "PreferredLeaderNotAvailableException" in _elect(tools, "preferred", topic, 0)
        assert _leaders(tools, topic) == ["none"]
        assert f"for partitions {topic}-0" in _elect(tools, "unclean", topic, 0)
        wait_until(lambda: _leaders(tools, topic) == ["3"], lambda: str(_lines(tools, topic)))
    wait_until_in_sync(cluster.bootstrap, topic, 2)
    assert _leaders(tools, topic) == ["3"]
    assert read_values(cluster.bootstrap, topic, 0) == [str(number).encode() for number in range(RECORD_COUNT)]


# Moving


def _fill(cluster: BrokerCluster, topic: str, partitions: int) -> list[bytes]:
    """What each partition has got."""
    values = [str(number).encode().zfill(VALUE_BYTES) for number in range(MOVED_COUNT)]
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "batch.num.messages": 1})
    for value in values:
        for partition in range(partitions):
            producer.produce(topic, value, partition=partition)
    assert producer.flush(60) == 0
    return values


def _plan(path: Path, replicas: dict[tuple[str, int], list[int]]) -> str:
    """A file as kafka-reassign-partitions takes it."""
    partitions = [{"topic": topic, "partition": number, "replicas": ids} for (topic, number), ids in replicas.items()]
    path.write_text(json.dumps({"version": 1, "partitions": partitions}))
    return str(path)


def _wait_until_moved(tools: KafkaTools, plan: str) -> str:
    """What --verify says in the end."""
    said = ""

    def is_done() -> bool:
        nonlocal said
        said = tools.output(REASSIGN_PARTITIONS, "--verify", "--reassignment-json-file", plan)
        lines = [line for line in said.splitlines() if line.startswith("Reassignment of partition ")]
        return bool(lines) and all(line.endswith(" is completed.") for line in lines)

    wait_until(is_done, lambda: said)
    return said


def _has_log(cluster: BrokerCluster, node_id: int, topic: str) -> bool:
    return any(cluster.log_dirs[node_id - 1].glob(f"{topic}-[0-9]"))


def test_partitions_move_as_generated(tools: KafkaTools, cluster: BrokerCluster, tmp_path: Path) -> None:
    topic = "generated"
    _create(tools, cluster, topic, "1:2,2:1")
    values = _fill(cluster, topic, 2)
    topics = tmp_path / "topics.json"
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": topic}]}))
    out = tools.output(
        REASSIGN_PARTITIONS, "--generate", "--topics-to-move-json-file", str(topics), "--broker-list", "2,3"
    )
    current, proposed = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert [one["replicas"] for one in current["partitions"]] == [[1, 2], [2, 1]]
    assert {frozenset(one["replicas"]) for one in proposed["partitions"]} == {frozenset((2, 3))}
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(proposed))
    began = tools.output(REASSIGN_PARTITIONS, "--execute", "--reassignment-json-file", str(plan))
    assert "Successfully started partition reassignments for " in began
    _wait_until_moved(tools, str(plan))
    wait_until_in_sync(cluster.bootstrap, topic, 2)
    assert [set(line["Replicas"].split(",")) for line in _lines(tools, topic)] == [{"2", "3"}] * 2
    wait_until(lambda: not _has_log(cluster, 1, topic), lambda: "broker 1 keeps what has moved away")
    for partition in range(2):
        assert read_values(cluster.bootstrap, topic, partition) == values
    assert "No partition reassignments found." in tools.output(REASSIGN_PARTITIONS, "--list")


def test_a_throttled_move_is_cancelled_and_then_made(tools: KafkaTools, cluster: BrokerCluster, tmp_path: Path) -> None:
    topic = "throttled"
    _create(tools, cluster, topic, "1:2,2:1")
    values = _fill(cluster, topic, 2)
    plan = _plan(tmp_path / "plan.json", {(topic, 0): [1, 3], (topic, 1): [3, 2]})

    def execute(bytes_per_s: int) -> str:
        options = ["--execute", "--reassignment-json-file", plan, "--throttle", str(bytes_per_s)]
        return tools.output(REASSIGN_PARTITIONS, *options)

    assert f"throttle limit was set to {SLOW_BYTES_PER_S} B/s" in execute(SLOW_BYTES_PER_S)
    listed = tools.output(REASSIGN_PARTITIONS, "--list")
    assert f"{topic}-0: replicas: 1,3,2. adding: 3. removing: 2." in listed
    assert "throttled.replicas" in tools.described(topic)[0]["Configs"]
    verified = tools.output(REASSIGN_PARTITIONS, "--verify", "--reassignment-json-file", plan)
    assert f"Reassignment of partition {topic}-0 is still in progress." in verified

    cancelled = tools.output(REASSIGN_PARTITIONS, "--cancel", "--reassignment-json-file", plan)
    assert f"Successfully cancelled partition reassignments for: {topic}-0,{topic}-1" in cancelled
    wait_until(lambda: not _has_log(cluster, 3, topic), lambda: "broker 3 keeps what it shall not have")
    assert [line["Replicas"] for line in _lines(tools, topic)] == ["1,2", "2,1"]
    assert "throttled.replicas" not in tools.described(topic)[0]["Configs"]

    execute(FAST_BYTES_PER_S)
    assert f"Clearing topic-level throttles on topic {topic}" in _wait_until_moved(tools, plan)
    assert [line["Replicas"] for line in _lines(tools, topic)] == ["1,3", "3,2"]
    assert "throttled.replicas" not in tools.described(topic)[0]["Configs"]
    for partition in range(2):
        assert read_values(cluster.bootstrap, topic, partition) == values
