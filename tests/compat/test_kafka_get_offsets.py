"""kafka-get-offsets finds the first, the last and the offset of a time."""

import pytest

from .broker import Broker
from .kafka_tools import GET_OFFSETS, KafkaTools
from .topics import BETWEEN_RECORDS_MS, FIRST_TIMESTAMP_MS, create_topic, produce_numbers

COUNTS = (10, 3, 0)  # Records per partition.


@pytest.fixture(scope="module")
def topic(broker: Broker, topic_prefix: str) -> str:
    name = f"{topic_prefix}-get-offsets"
    create_topic(broker.bootstrap, name, partition_count=len(COUNTS))
    for partition, count in enumerate(COUNTS):
        produce_numbers(broker.bootstrap, name, partition=partition, count=count)
    return name


def _offsets(kafka_tools: KafkaTools, topic: str, *options: str) -> list[int | None]:
    """Offset by partition; None where the tool prints none."""
    lines = kafka_tools.output(GET_OFFSETS, "--topic", topic, *options).split()
    found = {line.rsplit(":", 1)[0]: int(line.rsplit(":", 1)[1]) for line in lines}
    return [found.get(f"{topic}:{partition}") for partition in range(len(COUNTS))]


def test_latest_is_the_default(kafka_tools: KafkaTools, topic: str) -> None:
    assert _offsets(kafka_tools, topic) == [10, 3, 0]
    assert _offsets(kafka_tools, topic, "--time", "latest") == [10, 3, 0]
    assert _offsets(kafka_tools, topic, "--time", "-1") == [10, 3, 0]


def test_earliest(kafka_tools: KafkaTools, topic: str) -> None:
    assert _offsets(kafka_tools, topic, "--time", "earliest") == [0, 0, 0]


def test_max_timestamp(kafka_tools: KafkaTools, topic: str) -> None:
    assert _offsets(kafka_tools, topic, "--time", "max-timestamp") == [9, 2, None]


@pytest.mark.parametrize(
    ("after_first_ms", "expected"),
    [
        (-BETWEEN_RECORDS_MS, [0, 0, None]),
        (0, [0, 0, None]),
        (1, [1, 1, None]),
        (2 * BETWEEN_RECORDS_MS, [2, 2, None]),
        (5 * BETWEEN_RECORDS_MS - 1, [5, None, None]),
        (9 * BETWEEN_RECORDS_MS, [9, None, None]),
        (9 * BETWEEN_RECORDS_MS + 1, [None, None, None]),
    ],
)
def test_by_time_is_the_first_record_not_older(
    kafka_tools: KafkaTools, topic: str, after_first_ms: int, expected: list[int | None]
) -> None:
    assert _offsets(kafka_tools, topic, "--time", str(FIRST_TIMESTAMP_MS + after_first_ms)) == expected


def test_only_the_partitions_asked_for(kafka_tools: KafkaTools, topic: str) -> None:
    assert _offsets(kafka_tools, topic, "--partitions", "1") == [None, 3, None]
