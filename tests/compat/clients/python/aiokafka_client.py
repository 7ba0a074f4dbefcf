"""aiokafka."""

import asyncio

import job_loop
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from record_file import Record


class AiokafkaClient:
    def produce(self, topic: str, codec: str, records: list[Record]) -> None:
        asyncio.run(self._produce(topic, codec, records))

    def consume(self, topic: str, partition_count: int) -> list[Record]:
        return asyncio.run(self._consume(topic, partition_count))

    def topics(self) -> dict[str, int]:
        return asyncio.run(self._topics())

    def number(self, topic: str, partition_count: int, values: list[bytes]) -> None:
        asyncio.run(self._number(topic, partition_count, values))

    async def _number(self, topic: str, partition_count: int, values: list[bytes]) -> None:
        async with AIOKafkaProducer(bootstrap_servers=job_loop.bootstrap(), enable_idempotence=True) as producer:
            sent = [
                await producer.send(topic, partition=i % partition_count, value=value) for i, value in enumerate(values)
            ]
            await producer.flush()
            await asyncio.gather(*sent)

    async def _produce(self, topic: str, codec: str, records: list[Record]) -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=job_loop.bootstrap(),
            compression_type=None if codec == "none" else codec,
            acks="all",
            linger_ms=5,
            max_batch_size=65_536,
        ) as producer:
            sent = [
                await producer.send(
                    topic,
                    partition=record.partition,
                    key=record.key,
                    value=record.value,
                    headers=list(record.headers),
                    timestamp_ms=record.timestamp_ms,
                )
                for record in records
            ]
            await producer.flush()
            await asyncio.gather(*sent)

    async def _consume(self, topic: str, partition_count: int) -> list[Record]:
        partitions = [TopicPartition(topic, partition) for partition in range(partition_count)]
        records: list[Record] = []
        async with AIOKafkaConsumer(
            bootstrap_servers=job_loop.bootstrap(), group_id=None, auto_offset_reset="none"
        ) as consumer:
            consumer.assign(partitions)
            for partition in partitions:
                consumer.seek(partition, 0)
            end_offsets = await consumer.end_offsets(partitions)
            unfinished = {partition for partition in partitions if end_offsets[partition] > 0}
            while unfinished:
                polled = await consumer.getmany(timeout_ms=job_loop.IDLE_S_MAX * 1000, max_records=10_000)
                if not polled:
                    raise TimeoutError(f"nothing more after {len(records)} records, ends are {end_offsets}")
                for partition, messages in polled.items():
                    for m in messages:
                        records.append(Record(m.partition, m.offset, m.timestamp, m.key, m.value, tuple(m.headers)))
                    if messages[-1].offset + 1 >= end_offsets[partition]:
                        unfinished.discard(partition)
        return records

    async def _topics(self) -> dict[str, int]:
        admin = AIOKafkaAdminClient(bootstrap_servers=job_loop.bootstrap())
        await admin.start()
        try:
            described = await admin.describe_topics()
        finally:
            await admin.close()
        return {topic["topic"]: len(topic["partitions"]) for topic in described}


if __name__ == "__main__":
    job_loop.run(AiokafkaClient())
