"""kafka-log-dirs tells how much each partition holds."""

import json
from pathlib import Path
from typing import Any

import pytest

from .broker import Broker, addresses
from .kafka_tools import LOG_DIRS, KafkaTools
from .topics import create_topic, produce_numbers


@pytest.fixture(scope="module")
def topic(broker: Broker, topic_prefix: str) -> str:
    """Records in partition 0, none in partition 1."""
    name = f"{topic_prefix}-log-dirs"
    create_topic(broker.bootstrap, name, partition_count=2)
    produce_numbers(broker.bootstrap, name, partition=0, count=5)
    return name


def _described(kafka_tools: KafkaTools, *options: str) -> list[dict[str, Any]]:
    """The directory of each broker, in the order of their node ids. The JSON is the last of three lines."""
    brokers = json.loads(kafka_tools.output(LOG_DIRS, "--describe", *options).strip().splitlines()[-1])["brokers"]
    found: list[dict[str, Any]] = []
    for broker in sorted(brokers, key=lambda broker: int(broker["broker"])):
        (log_dir,) = broker["logDirs"]
        assert log_dir["error"] is None
        found.append(log_dir)
    return found


def test_size_is_that_of_the_partitions_log(kafka_tools: KafkaTools, broker: Broker, topic: str) -> None:
    log_dirs = _described(kafka_tools, "--topic-list", topic)
    assert len(log_dirs) == len(addresses(broker)) == broker.replication_factor
    for number, log_dir in enumerate(log_dirs):
        _check_sizes(log_dir, topic, broker.log_dirs[number] if broker.log_dirs else None)


def _check_sizes(log_dir: dict[str, Any], topic: str, on_disk: Path | None) -> None:
    partitions = {partition["partition"]: partition for partition in log_dir["partitions"]}
    assert set(partitions) == {f"{topic}-0", f"{topic}-1"}
    assert partitions[f"{topic}-0"]["size"] > 5 * 61  # Five batches, each with a header of 61 bytes.
    assert partitions[f"{topic}-1"]["size"] == 0
    for partition in partitions.values():
        assert (partition["offsetLag"], partition["isFuture"]) == (0, False)
    if on_disk is not None:
        size = sum(log.stat().st_size for log in (on_disk / f"{topic}-0").glob("*.log"))
        assert partitions[f"{topic}-0"]["size"] == size


def test_directory_is_the_brokers(kafka_tools: KafkaTools, broker: Broker, topic: str) -> None:
    log_dirs = [Path(log_dir["logDir"]) for log_dir in _described(kafka_tools, "--topic-list", topic)]
    assert all(log_dir.is_absolute() for log_dir in log_dirs)
    if broker.log_dirs:
        assert [log_dir.resolve() for log_dir in log_dirs] == [log_dir.resolve() for log_dir in broker.log_dirs]


def test_all_topics_are_described_without_a_list(kafka_tools: KafkaTools, topic: str) -> None:
    for log_dir in _described(kafka_tools):
        assert f"{topic}-0" in {partition["partition"] for partition in log_dir["partitions"]}
