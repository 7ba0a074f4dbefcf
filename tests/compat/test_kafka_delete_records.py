"""kafka-delete-records moves the start of a partition, and says so when it cannot."""

import json
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from .broker import Broker
from .kafka_tools import DELETE_RECORDS, GET_OFFSETS, KafkaTools
from .topics import create_topic, produce_numbers

RECORD_COUNT = 8
TO_THE_END = -1


@pytest.fixture
def topic(broker: Broker, topic_prefix: str, request: pytest.FixtureRequest) -> str:
    name = f"{topic_prefix}-{request.node.name}"
    create_topic(broker.bootstrap, name, partition_count=2)
    for partition in range(2):
        produce_numbers(broker.bootstrap, name, partition=partition, count=RECORD_COUNT)
    return name


def _delete_before(kafka_tools: KafkaTools, topic: str, offsets: list[int], directory: Path) -> list[str]:
    """The tool's line for each partition."""
    partitions = [{"topic": topic, "partition": i, "offset": offset} for i, offset in enumerate(offsets)]
    request = directory / "delete.json"
    request.write_text(json.dumps({"version": 1, "partitions": partitions}))
    out = kafka_tools.output(DELETE_RECORDS, "--offset-json-file", str(request))
    assert "Records delete operation completed:" in out
    return sorted(line for line in out.splitlines() if line.startswith("partition: "))


def _earliest(kafka_tools: KafkaTools, topic: str) -> list[str]:
    return kafka_tools.output(GET_OFFSETS, "--topic", topic, "--time", "earliest").split()


def test_partition_starts_at_the_offset(kafka_tools: KafkaTools, topic: str, tmp_path: Path) -> None:
    assert _delete_before(kafka_tools, topic, [3, TO_THE_END], tmp_path) == [
        f"partition: {topic}-0\tlow_watermark: 3",
        f"partition: {topic}-1\tlow_watermark: {RECORD_COUNT}",
    ]
    assert _earliest(kafka_tools, topic) == [f"{topic}:0:3", f"{topic}:1:{RECORD_COUNT}"]
    assert kafka_tools.output(GET_OFFSETS, "--topic", topic).split() == [f"{topic}:0:8", f"{topic}:1:8"]


def test_consumer_gets_the_rest(kafka_tools: KafkaTools, broker: Broker, topic: str, tmp_path: Path) -> None:
    _delete_before(kafka_tools, topic, [5, 0], tmp_path)
    config = {"group.id": "not-used", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, **config})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])  # Deleted: the broker must say out of range, not hand it out.
        messages = consumer.consume(RECORD_COUNT - 5, timeout=60)
    finally:
        consumer.close()
    assert [(message.offset(), message.value()) for message in messages] == [(5, b"5"), (6, b"6"), (7, b"7")]


def test_offset_beyond_the_end_is_refused(kafka_tools: KafkaTools, topic: str, tmp_path: Path) -> None:
    lines = _delete_before(kafka_tools, topic, [RECORD_COUNT + 1, 1], tmp_path)
    assert lines[0].startswith(f"partition: {topic}-0\terror: ") and "OffsetOutOfRangeException" in lines[0]
    assert lines[1] == f"partition: {topic}-1\tlow_watermark: 1"
    assert _earliest(kafka_tools, topic) == [f"{topic}:0:0", f"{topic}:1:1"]
