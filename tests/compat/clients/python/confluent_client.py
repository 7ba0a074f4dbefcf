"""confluent-kafka (librdkafka)."""

import time

import job_loop
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from record_file import Record


class ConfluentClient:
    def produce(self, topic: str, codec: str, records: list[Record]) -> None:
        errors: list[KafkaError] = []
        producer = Producer(
            {
                "bootstrap.servers": job_loop.bootstrap(),
                "compression.type": codec,
                "acks": "all",
                "enable.idempotence": False,
                "linger.ms": 5,
                "message.timeout.ms": 60_000,
                "queue.buffering.max.messages": len(records) + 1,
            }
        )

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                errors.append(error)

        for record in records:
            producer.produce(
                topic,
                partition=record.partition,
                key=record.key,
                value=record.value,
                headers=list(record.headers),
                timestamp=record.timestamp_ms,
                on_delivery=delivered,
            )
        unsent = producer.flush(90)
        if errors:
            raise KafkaException(errors[0])
        if unsent:
            raise TimeoutError(f"{unsent} records were not acknowledged")

    def number(self, topic: str, partition_count: int, values: list[bytes]) -> None:
        errors: list[KafkaError] = []
        producer = Producer(
            {
                "bootstrap.servers": job_loop.bootstrap(),
                "enable.idempotence": True,
                "batch.size": 16_384,  # As Java's: else all of it fits into a few requests.
                "reconnect.backoff.max.ms": 200,  # It doubles with every connection that is cut.
            }
        )
        for i, value in enumerate(values):
            producer.produce(
                topic,
                partition=i % partition_count,
                value=value,
                on_delivery=lambda error, _: errors.append(error) if error is not None else None,
            )
            producer.poll(0)
        unsent = producer.flush(60)
        if errors:
            raise KafkaException(errors[0])
        if unsent:
            raise TimeoutError(f"{unsent} records were not acknowledged")

    def consume(self, topic: str, partition_count: int) -> list[Record]:
        consumer = Consumer(
            {
                "bootstrap.servers": job_loop.bootstrap(),
                "group.id": "not-used",  # librdkafka wants the name even where no group is joined.
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
            }
        )
        try:
            consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partition_count)])
            return self._read_to_end(consumer, partition_count)
        finally:
            consumer.close()

    def _read_to_end(self, consumer: Consumer, partition_count: int) -> list[Record]:
        records: list[Record] = []
        unfinished = set(range(partition_count))
        give_up_at = time.monotonic() + job_loop.IDLE_S_MAX
        while unfinished:
            messages = consumer.consume(5_000, 0.1)  # Waits for all 5,000, so the time must be short.
            if messages:
                give_up_at = time.monotonic() + job_loop.IDLE_S_MAX
            elif time.monotonic() > give_up_at:
                raise TimeoutError(f"no end of partitions {sorted(unfinished)} after {len(records)} records")
            for message in messages:
                error = message.error()
                if error is None:
                    records.append(_record(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    unfinished.discard(message.partition())
                else:
                    raise KafkaException(error)
        return records

    def topics(self) -> dict[str, int]:
        topics = AdminClient({"bootstrap.servers": job_loop.bootstrap()}).list_topics(timeout=20).topics
        return {name: len(topic.partitions) for name, topic in topics.items()}


def _record(message: Message) -> Record:
    _, timestamp_ms = message.timestamp()
    headers = tuple(message.headers() or ())
    return Record(message.partition(), message.offset(), timestamp_ms, message.key(), message.value(), headers)


if __name__ == "__main__":
    job_loop.run(ConfluentClient())
