"""Topics that are ready to be used once they are created, and records in them that tests can count on."""

import time
from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

READY_S_MAX = 60

FIRST_TIMESTAMP_MS = 1_700_000_000_000
BETWEEN_RECORDS_MS = 1_000


def create_topic(bootstrap: str, topic: str, *, partition_count: int = 1) -> None:
    create_topics(bootstrap, {topic: partition_count}, {"retention.ms": "-1"})


def create_topics(bootstrap: str, partition_counts: Mapping[str, int], config: Mapping[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = [NewTopic(topic, count, -1, config=dict(config)) for topic, count in partition_counts.items()]
    for created in admin.create_topics(new, operation_timeout=READY_S_MAX).values():
        created.result(READY_S_MAX)
    for topic, count in partition_counts.items():
        wait_until_led(bootstrap, topic, count)


def wait_until_led(bootstrap: str, topic: str, partition_count: int) -> None:
    """Kafka answers CreateTopics before its brokers know. A batch refused then, and repeated, would overtake others."""
    deadline = time.monotonic() + READY_S_MAX
    for address in bootstrap.split(","):
        admin = AdminClient({"bootstrap.servers": address})
        while not _has_leaders(admin, topic, partition_count):
            assert time.monotonic() < deadline, f"{address} knows no leaders of {topic}"
            time.sleep(0.05)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    partitions = [TopicPartition(topic, partition) for partition in range(partition_count)]
    while True:
        try:
            for listed in admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.latest())).values():
                listed.result(READY_S_MAX)
            return
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _has_leaders(admin: AdminClient, topic: str, partition_count: int) -> bool:
    topics = admin.list_topics(timeout=READY_S_MAX).topics  # All: one that is asked for by its name might be created.
    partitions = topics[topic].partitions if topic in topics else {}
    return len(partitions) == partition_count and all(partition.leader >= 0 for partition in partitions.values())


def wait_until_in_sync(bootstrap: str, topic: str, replication_factor: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    deadline = time.monotonic() + READY_S_MAX
    while True:
        partitions = admin.list_topics(topic, READY_S_MAX).topics[topic].partitions.values()
        if partitions and all(len(partition.isrs) == replication_factor for partition in partitions):
            return
        assert time.monotonic() < deadline, f"replicas of {topic} are out of sync: {list(partitions)}"
        time.sleep(0.1)


def leader_address(bootstrap: str, topic: str, partition: int = 0) -> str:
    """host:port of the broker that leads the partition."""
    metadata = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, READY_S_MAX)
    leader = metadata.brokers[metadata.topics[topic].partitions[partition].leader]
    return f"{leader.host}:{leader.port}"


def produce_numbers(bootstrap: str, topic: str, *, partition: int, count: int) -> None:
    """Record i has value i and timestamp FIRST_TIMESTAMP_MS + i * BETWEEN_RECORDS_MS, each in a batch of its own."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "batch.num.messages": 1, "max.in.flight": 1})
    for i in range(count):
        timestamp_ms = FIRST_TIMESTAMP_MS + i * BETWEEN_RECORDS_MS
        producer.produce(topic, value=str(i).encode(), partition=partition, timestamp=timestamp_ms)
    unsent = producer.flush(30)
    assert not unsent, f"{unsent} records were not acknowledged"


def read_values(bootstrap: str, topic: str, partition: int) -> list[bytes]:
    """Of every record from the first to the last, in the order of the log."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "not-used", "enable.partition.eof": True})
    values: list[bytes] = []
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        while True:
            message = consumer.poll(READY_S_MAX)
            assert message is not None, f"{topic}-{partition} has no end"
            error = message.error()
            if error is None:
                values.append(message.value())
            elif error.code() == KafkaError._PARTITION_EOF:
                return values
            else:
                raise KafkaException(error)
    finally:
        consumer.close()
