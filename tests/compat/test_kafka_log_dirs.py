"""kafka-log-dirs tells how much each partition holds."""

import json
from pathlib import Path
from typing import Any

import pytest

from .broker import Broker
from .kafka_tools import LOG_DIRS, KafkaTools
from .topics import create_topic, produce_numbers


@pytest.fixture(scope="module")
def topic(broker: Broker, topic_prefix: str) -> str:
    """Records in partition 0, none in partition 1."""
    name = f"{topic_prefix}-log-dirs"
    create_topic(broker.bootstrap, name, partition_count=2)
    produce_numbers(broker.bootstrap, name, partition=0, count=5)
    return name


def _described(kafka_tools: KafkaTools, *options: str) -> dict[str, Any]:
    """The one directory of the one broker. The JSON is the last of three lines."""
    brokers = json.loads(kafka_tools.output(LOG_DIRS, "--describe", *options).strip().splitlines()[-1])["brokers"]
    assert len(brokers) == 1 and len(brokers[0]["logDirs"]) == 1
    log_dir: dict[str, Any] = brokers[0]["logDirs"][0]
    assert log_dir["error"] is None
    return log_dir


def test_size_is_that_of_the_partitions_log(kafka_tools: KafkaTools, broker: Broker, topic: str) -> None:
    log_dir = _described(kafka_tools, "--topic-list", topic)
    partitions = {partition["partition"]: partition for partition in log_dir["partitions"]}
    assert set(partitions) == {f"{topic}-0", f"{topic}-1"}
    assert partitions[f"{topic}-0"]["size"] > 5 * 61  # Five batches, each with a header of 61 bytes.
    assert partitions[f"{topic}-1"]["size"] == 0
    for partition in partitions.values():
        assert (partition["offsetLag"], partition["isFuture"]) == (0, False)
    if broker.data:
        on_disk = sum(log.stat().st_size for log in (broker.data / f"{topic}-0").glob("*.log"))
        assert partitions[f"{topic}-0"]["size"] == on_disk


def test_directory_is_the_brokers(kafka_tools: KafkaTools, broker: Broker, topic: str) -> None:
    log_dir = _described(kafka_tools, "--topic-list", topic)["logDir"]
    assert Path(log_dir).is_absolute()
    if broker.data:
        assert Path(log_dir).resolve() == broker.data.resolve()


def test_all_topics_are_described_without_a_list(kafka_tools: KafkaTools, topic: str) -> None:
    assert f"{topic}-0" in {partition["partition"] for partition in _described(kafka_tools)["partitions"]}
