"""kafka-topics creates, lists, describes, grows and deletes topics."""

import time

import pytest

from .broker import Broker
from .kafka_tools import TOPICS, KafkaTools
from .topics import wait_until_led


@pytest.fixture
def topic(kafka_tools: KafkaTools, broker: Broker, topic_prefix: str, request: pytest.FixtureRequest) -> str:
    name = f"{topic_prefix}-{request.node.name}"
    created = kafka_tools.output(
        TOPICS, "--create", "--topic", name, "--partitions", "2", "--config", "retention.ms=3600000"
    )
    assert f"Created topic {name}." in created
    wait_until_led(broker.bootstrap, name, 2)
    return name


def _described(kafka_tools: KafkaTools, topic: str) -> tuple[dict[str, str], list[dict[str, str]]]:
    """The topic's line and its partitions' lines, by field name."""
    summary, *partitions = kafka_tools.described(topic)
    return summary, partitions


def _listed(kafka_tools: KafkaTools) -> list[str]:
    return kafka_tools.output(TOPICS, "--list").split()


def test_created_topic_is_listed(kafka_tools: KafkaTools, topic: str) -> None:
    assert topic in _listed(kafka_tools)


def test_topic_cannot_be_created_twice(kafka_tools: KafkaTools, topic: str) -> None:
    again = kafka_tools.run(TOPICS, "--create", "--topic", topic)
    assert again.exit_code == 1
    assert f"Topic '{topic}' already exists." in again.out
    assert kafka_tools.run(TOPICS, "--create", "--topic", topic, "--if-not-exists").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--topic", "no spaces please"], "InvalidTopicException"),
        (["--topic", "too-many-replicas", "--replication-factor", "9"], "InvalidReplicationFactorException"),
    ],
    ids=["name", "replication-factor"],
)
def test_bad_topic_is_refused(kafka_tools: KafkaTools, arguments: list[str], complaint: str) -> None:
    result = kafka_tools.run(TOPICS, "--create", *arguments)
    assert result.exit_code == 1
    assert complaint in result.out + result.err


def test_describe_shows_partitions_with_leader_and_replicas(
    kafka_tools: KafkaTools, broker: Broker, topic: str
) -> None:
    summary, partitions = _described(kafka_tools, topic)
    assert (summary["Topic"], summary["PartitionCount"]) == (topic, "2")
    assert summary["ReplicationFactor"] == str(broker.replication_factor)
    assert len(summary["TopicId"]) == 22  # 16 bytes in base64
    assert "retention.ms=3600000" in summary["Configs"].split(",")
    assert [partition["Partition"] for partition in partitions] == ["0", "1"]
    for partition in partitions:
        replicas = partition["Replicas"].split(",")
        assert partition["Leader"] == replicas[0] != ""
        assert sorted(partition["Isr"].split(",")) == sorted(replicas)
        assert len(set(replicas)) == broker.replication_factor


def test_describe_all_topics_includes_it(kafka_tools: KafkaTools, topic: str) -> None:
    assert f"Topic: {topic}\t" in kafka_tools.output(TOPICS, "--describe")


def test_nothing_is_under_replicated(kafka_tools: KafkaTools, topic: str) -> None:
    for filter_option in ("--under-replicated-partitions", "--unavailable-partitions", "--under-min-isr-partitions"):
        assert kafka_tools.output(TOPICS, "--describe", "--topic", topic, filter_option).strip() == ""


def test_partitions_can_be_added_but_not_taken_away(kafka_tools: KafkaTools, broker: Broker, topic: str) -> None:
    kafka_tools.output(TOPICS, "--alter", "--topic", topic, "--partitions", "5")
    wait_until_led(broker.bootstrap, topic, 5)
    summary, partitions = _described(kafka_tools, topic)
    assert summary["PartitionCount"] == "5"
    assert [partition["Partition"] for partition in partitions] == ["0", "1", "2", "3", "4"]
    fewer = kafka_tools.run(TOPICS, "--alter", "--topic", topic, "--partitions", "3")
    assert fewer.exit_code == 1
    assert "InvalidPartitionsException" in fewer.err


def test_deleted_topic_is_gone(kafka_tools: KafkaTools, topic: str) -> None:
    kafka_tools.output(TOPICS, "--delete", "--topic", topic)
    deadline = time.monotonic() + 60  # Kafka answers before every broker has let go of it.
    while topic in _listed(kafka_tools) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert topic not in _listed(kafka_tools)
    gone = kafka_tools.run(TOPICS, "--describe", "--topic", topic)
    assert gone.exit_code == 1
    assert f"Topic '{topic}' does not exist as expected" in gone.out


def test_unknown_topic_cannot_be_deleted(kafka_tools: KafkaTools, topic_prefix: str) -> None:
    result = kafka_tools.run(TOPICS, "--delete", "--topic", f"{topic_prefix}-never-created")
    assert result.exit_code == 1
    assert "does not exist as expected" in result.out
