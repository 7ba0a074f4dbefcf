"""Kafka's tools for groups, and those that bring a group or an idempotent producer of their own."""

import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from .broker import Broker
from .committed_offsets import committed, coordinator_address
from .group_member import CONFLUENT
from .group_story import PARTITION_COUNT, Group, open_group
from .kafka_tools import (
    CONSUMER_GROUPS,
    CONSUMER_PERFORMANCE,
    PRODUCER_PERFORMANCE,
    VERIFIABLE_CONSUMER,
    VERIFIABLE_PRODUCER,
    KafkaTools,
)
from .missing_parts import skip_when_missing
from .parts import java
from .topics import create_topic, produce_numbers, read_values

RECORDS_PER_PARTITION = 10
TOOL_S_MAX = 240


@pytest.fixture(scope="module")
def tools(kafka_tools: KafkaTools, group_broker: Broker) -> KafkaTools:
    return kafka_tools.against(group_broker.bootstrap)


@pytest.fixture(scope="module")
def admin(group_broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": group_broker.bootstrap})


@pytest.fixture(scope="module")
def live(group_broker: Broker, topic_prefix: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """Two members share six partitions, and have committed all that there is."""
    directory = tmp_path_factory.mktemp("live-group") / "group"
    with open_group(group_broker.bootstrap, directory, f"{topic_prefix}-live", "range") as group:
        group.writer.write(PARTITION_COUNT * RECORDS_PER_PARTITION)
        group.writer.flush()
        group.wait_until_shared_by(group.join(CONFLUENT), group.join(CONFLUENT))
        group.wait_until_read()
        yield group


@pytest.fixture
def idle(group_broker: Broker, admin: AdminClient, topic_prefix: str, request: pytest.FixtureRequest) -> str:
    """A group without members, which has read 8 of the 10 records of both partitions of the topic of its name."""
    name = re.sub(r"[^\w-]", "-", f"{topic_prefix}-{request.node.name}")
    create_topic(group_broker.bootstrap, name, partition_count=2)
    for partition in range(2):
        produce_numbers(group_broker.bootstrap, name, partition=partition, count=RECORDS_PER_PARTITION)
    offsets = [TopicPartition(name, partition, 8) for partition in range(2)]
    (altered,) = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(name, offsets)]).values()
    altered.result(30)
    return name


def _table(text: str) -> list[dict[str, str]]:
    """The rows below the line of headings."""
    lines = [line.split() for line in text.splitlines() if line.strip()]
    at = next(number for number, words in enumerate(lines) if words[0] == "GROUP")
    return [dict(zip(lines[at], words, strict=True)) for words in lines[at + 1 :]]


def test_list_has_it(tools: KafkaTools, live: Group, idle: str) -> None:
    assert {live.name, idle} <= set(tools.output(CONSUMER_GROUPS, "--list").split())
    states = {row["GROUP"]: row["STATE"] for row in _table(tools.output(CONSUMER_GROUPS, "--list", "--state"))}
    assert (states[live.name], states[idle]) == ("Stable", "Empty")
    only_empty = {row["GROUP"] for row in _table(tools.output(CONSUMER_GROUPS, "--list", "--state", "Empty"))}
    assert idle in only_empty and live.name not in only_empty


def test_describe_shows_offsets_lag_and_owners(tools: KafkaTools, live: Group) -> None:
    rows = _table(tools.output(CONSUMER_GROUPS, "--describe", "--group", live.name))
    by_partition = {int(row["PARTITION"]): row for row in rows}
    assert sorted(by_partition) == list(range(PARTITION_COUNT))
    for partition, row in by_partition.items():
        (owner,) = [member for member in live.members if partition in member.owned()]
        assert (row["CURRENT-OFFSET"], row["LOG-END-OFFSET"], row["LAG"]) == ("10", "10", "0")
        assert row["CLIENT-ID"] == owner.name
        assert row["CONSUMER-ID"] == owner.told("assigned")[-1]["member"]
        assert row["HOST"] == "/127.0.0.1"


def test_describe_shows_the_state(tools: KafkaTools, live: Group, group_broker: Broker) -> None:
    out = tools.output(CONSUMER_GROUPS, "--describe", "--group", live.name, "--state")
    coordinator = re.escape(coordinator_address(group_broker.bootstrap, live.name))
    pattern = rf"{live.name}\s+{coordinator}\s+\(\d+\)\s+range\s+Stable\s+2\s"
    assert re.search(pattern, out), out


def test_describe_shows_the_members(tools: KafkaTools, live: Group) -> None:
    out = tools.output(CONSUMER_GROUPS, "--describe", "--group", live.name, "--members", "--verbose")
    for member in live.members:
        (line,) = [line for line in out.splitlines() if member.name in line]
        partitions = ",".join(str(partition) for partition in sorted(member.owned()))
        assert f"{live.topic}:{partitions}" in line.replace("(", ":").replace(")", ""), out
        assert line.split()[4] == str(len(member.owned())), out


def test_live_group_is_neither_reset_nor_deleted(tools: KafkaTools, live: Group, admin: AdminClient) -> None:
    before = committed(admin, live.name)
    to_earliest = ["--group", live.name, "--topic", live.topic, "--reset-offsets", "--to-earliest", "--execute"]
    reset = tools.run(CONSUMER_GROUPS, *to_earliest)
    assert "Assignments can only be reset if the group" in reset.out + reset.err
    deleted = tools.run(CONSUMER_GROUPS, "--group", live.name, "--delete")
    assert "GroupNotEmptyException" in deleted.out + deleted.err
    offsets = tools.run(CONSUMER_GROUPS, "--group", live.name, "--topic", live.topic, "--delete-offsets")
    assert "GroupSubscribedToTopicException" in offsets.out
    assert committed(admin, live.name) == before


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (["--to-earliest"], 0),
        (["--to-latest"], 10),
        (["--shift-by", "-3"], 5),
        (["--shift-by", "1"], 9),
        (["--to-datetime", "2023-11-14T22:13:23.500Z"], 4),  # Of FIRST_TIMESTAMP_MS + 3.5 s.
    ],
    ids=["to-earliest", "to-latest", "shift-back", "shift-forward", "to-datetime"],
)
def test_offsets_can_be_reset(
    tools: KafkaTools, idle: str, admin: AdminClient, target: list[str], expected: int
) -> None:
    out = tools.output(CONSUMER_GROUPS, "--group", idle, "--topic", idle, "--reset-offsets", *target, "--execute")
    assert {int(row["PARTITION"]): int(row["NEW-OFFSET"]) for row in _table(out)} == {0: expected, 1: expected}
    assert committed(admin, idle) == {0: expected, 1: expected}


def test_reset_without_execute_changes_nothing(tools: KafkaTools, idle: str, admin: AdminClient) -> None:
    tools.output(CONSUMER_GROUPS, "--group", idle, "--topic", idle, "--reset-offsets", "--to-earliest", "--dry-run")
    assert committed(admin, idle) == {0: 8, 1: 8}


def test_offsets_can_be_deleted(tools: KafkaTools, idle: str, admin: AdminClient) -> None:
    out = tools.output(CONSUMER_GROUPS, "--group", idle, "--topic", f"{idle}:0", "--delete-offsets")
    assert re.search(rf"{idle}\s+0\s+Successful", out), out
    assert committed(admin, idle) == {1: 8}


def test_idle_group_can_be_deleted(tools: KafkaTools, idle: str) -> None:
    out = tools.output(CONSUMER_GROUPS, "--group", idle, "--delete")
    assert f"Deletion of requested consumer groups ('{idle}') was successful." in out
    assert idle not in tools.output(CONSUMER_GROUPS, "--list").split()
    again = tools.run(CONSUMER_GROUPS, "--group", idle, "--delete")
    assert "GroupIdNotFoundException" in again.out + again.err


def _run_alone(tool: str, *arguments: str) -> list[dict[str, object]]:
    """In a JVM of its own, since it says goodbye in a shutdown hook. The JSON objects that it printed."""
    with skip_when_missing(tool):
        command = [*java.program(tool), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_S_MAX, check=False)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_verifiable_producer_and_consumer(
    group_broker: Broker, topic_prefix: str, admin: AdminClient, tmp_path: Path
) -> None:
    topic = f"{topic_prefix}-verifiable"
    create_topic(group_broker.bootstrap, topic, partition_count=2)
    to_broker = ["--bootstrap-server", group_broker.bootstrap, "--topic", topic]
    produced = _run_alone(VERIFIABLE_PRODUCER, *to_broker, "--max-messages", "500", "--acks", "-1")
    sent = Counter(event["name"] for event in produced)
    assert (sent["producer_send_success"], sent["producer_send_error"]) == (500, 0)
    assert produced[-1]["acked"] == produced[-1]["sent"] == 500
    written = {partition: len(read_values(group_broker.bootstrap, topic, partition)) for partition in range(2)}
    assert sum(written.values()) == 500

    group = f"{topic}-group"
    options = ["--group-id", group, "--reset-policy", "earliest", "--max-messages", "500"]
    consumed = _run_alone(VERIFIABLE_CONSUMER, *to_broker, *options)
    assert sum(int(str(event["count"])) for event in consumed if event["name"] == "records_consumed") == 500
    commits = [event for event in consumed if event["name"] == "offsets_committed"]
    assert commits and all(event["success"] for event in commits)
    reached = {partition: offset for partition, offset in committed(admin, group).items() if offset}
    assert reached == {partition: count for partition, count in written.items() if count}


def test_performance_tools(group_broker: Broker, tools: KafkaTools, topic_prefix: str) -> None:
    topic = f"{topic_prefix}-performance"
    create_topic(group_broker.bootstrap, topic, partition_count=2)
    amount = ["--num-records", "20000"]
    out = tools.output(
        PRODUCER_PERFORMANCE, "--topic", topic, *amount, "--record-size", "100", "--throughput", "-1"
    )  # fmt: skip
    assert "20000 records sent, " in out
    assert sum(len(read_values(group_broker.bootstrap, topic, partition)) for partition in range(2)) == 20_000
    headings, values = [
        [field.strip() for field in line.split(",")]
        for line in tools.output(CONSUMER_PERFORMANCE, "--topic", topic, *amount).splitlines()
        if line.count(",") > 5
    ]
    assert dict(zip(headings, values, strict=True))["data.consumed.in.nMsg"] == "20000"
