"""kafka-transactions describe-producers, which is the Java Admin client's describeProducers in a table."""

import time

from confluent_kafka import Producer

from .broker import Broker
from .kafka_tools import TRANSACTIONS, KafkaTools
from .topics import create_topic

RECORD_COUNT = 5


def _described(kafka_tools: KafkaTools, topic: str, partition: int) -> list[dict[str, str]]:
    where = ["--topic", topic, "--partition", str(partition)]
    headings, *rows = kafka_tools.output(TRANSACTIONS, "describe-producers", *where).splitlines()
    return [dict(zip(headings.split(), row.split(), strict=True)) for row in rows if row.strip()]


def test_idempotent_producers_are_described(broker: Broker, kafka_tools: KafkaTools, topic_prefix: str) -> None:
    topic = f"{topic_prefix}-producers"
    create_topic(broker.bootstrap, topic, partition_count=2)
    before_ms = time.time_ns() // 1_000_000
    for _ in range(2):
        producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
        for _ in range(RECORD_COUNT):
            producer.produce(topic, b"value", partition=0)
        assert producer.flush(30) == 0
    plain = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": False})
    plain.produce(topic, b"value", partition=1)
    assert plain.flush(30) == 0

    rows = _described(kafka_tools, topic, 0)
    assert len({row["ProducerId"] for row in rows}) == 2
    for row in rows:
        assert (row["ProducerEpoch"], row["LastSequence"]) == ("0", str(RECORD_COUNT - 1))
        assert (row["LatestCoordinatorEpoch"], row["CurrentTransactionStartOffset"]) == ("-1", "None")
        assert before_ms <= int(row["LastTimestamp"]) <= time.time_ns() // 1_000_000
    assert _described(kafka_tools, topic, 1) == []
