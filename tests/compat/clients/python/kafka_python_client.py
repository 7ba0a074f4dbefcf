"""kafka-python. Its snappy, lz4 and zstd codecs are optional packages: requirements.txt beside this file."""

import job_loop
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from record_file import Record


class KafkaPythonClient:
    def produce(self, topic: str, codec: str, records: list[Record]) -> None:
        producer = KafkaProducer(
            bootstrap_servers=job_loop.bootstrap(),
            compression_type=None if codec == "none" else codec,
            acks="all",
            enable_idempotence=False,
            linger_ms=5,
            batch_size=65_536,
        )
        sent = [
            producer.send(
                topic,
                partition=record.partition,
                key=record.key,
                value=record.value,
                headers=list(record.headers),
                timestamp_ms=record.timestamp_ms,
            )
            for record in records
        ]
        producer.flush(90)
        for future in sent:
            future.get(0)
        producer.close(10)

    def number(self, topic: str, partition_count: int, values: list[bytes]) -> None:
        # Idempotent by default. The backoff doubles with every connection that is cut.
        producer = KafkaProducer(bootstrap_servers=job_loop.bootstrap(), reconnect_backoff_max_ms=200)
        sent = [producer.send(topic, partition=i % partition_count, value=value) for i, value in enumerate(values)]
        producer.flush(60)
        for future in sent:
            future.get(0)
        producer.close(10)

    def consume(self, topic: str, partition_count: int) -> list[Record]:
        consumer = KafkaConsumer(
            bootstrap_servers=job_loop.bootstrap(), group_id=None, enable_auto_commit=False, auto_offset_reset="none"
        )
        partitions = [TopicPartition(topic, partition) for partition in range(partition_count)]
        consumer.assign(partitions)
        for partition in partitions:
            consumer.seek(partition, 0)
        end_offsets = consumer.end_offsets(partitions)
        records: list[Record] = []
        while any(consumer.position(partition) < end_offsets[partition] for partition in partitions):
            polled = consumer.poll(timeout_ms=job_loop.IDLE_S_MAX * 1000, max_records=10_000)
            if not polled:
                raise TimeoutError(f"nothing more after {len(records)} records, ends are {end_offsets}")
            for messages in polled.values():
                for m in messages:
                    records.append(Record(m.partition, m.offset, m.timestamp, m.key, m.value, tuple(m.headers)))
        consumer.close()
        return records

    def topics(self) -> dict[str, int]:
        consumer = KafkaConsumer(bootstrap_servers=job_loop.bootstrap())
        topics = {topic: len(consumer.partitions_for_topic(topic) or ()) for topic in consumer.topics()}
        consumer.close()
        return topics


if __name__ == "__main__":
    job_loop.run(KafkaPythonClient())
