"""Transactions of aiokafka."""

import asyncio

import transactor_loop
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from transactor_loop import BATCH, END, IDLE_S_MAX


class AiokafkaTransactor:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def open(self, transactional_id: str, timeout_ms: int) -> None:
        self._loop.run_until_complete(self._open(transactional_id, timeout_ms))

    async def _open(self, transactional_id: str, timeout_ms: int) -> None:
        self._producer = AIOKafkaProducer(
            bootstrap_servers=transactor_loop.bootstrap(),
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
        )
        await self._producer.start()

    def begin(self) -> None:
        self._loop.run_until_complete(self._producer.begin_transaction())

    def send(self, topic: str, partition: int, value: str) -> None:
        self._loop.run_until_complete(self._producer.send_and_wait(topic, value.encode(), partition=partition))

    def commit(self) -> None:
        self._loop.run_until_complete(self._producer.commit_transaction())

    def abort(self) -> None:
        self._loop.run_until_complete(self._producer.abort_transaction())

    def read(self, isolation: str, topic: str, partition: int) -> list[str]:
        return self._loop.run_until_complete(self._read(isolation, topic, partition))

    async def _read(self, isolation: str, topic: str, partition: int) -> list[str]:
        async with _consumer(None, isolation) as consumer:
            place = TopicPartition(topic, partition)
            consumer.assign([place])
            consumer.seek(place, 0)
            values: list[str] = []
            while END not in values:
                values += [record.value.decode() for record in await _poll(consumer)]
            return values[: values.index(END)]

    def copy(self, transactional_id: str, source: str, target: str, group: str) -> int:
        self.open(transactional_id, 30_000)
        return self._loop.run_until_complete(self._copy(source, target, group))

    async def _copy(self, source: str, target: str, group: str) -> int:
        async with _consumer(group, "committed") as consumer:
            consumer.subscribe([source])
            count, is_done = 0, False
            while not is_done:
                records = await _poll(consumer)
                await self._producer.begin_transaction()
                for record in records:
                    is_done = record.value == END.encode()
                    if is_done:
                        break
                    await self._producer.send(target, record.value, partition=0)
                offsets = {place: await consumer.position(place) for place in consumer.assignment()}
                await self._producer.send_offsets_to_transaction(offsets, group)
                count += 1
                if count == 2:
                    await self._producer.flush()  # What was not sent yet never would be.
                    await self._producer.abort_transaction()
                    is_done = False
                    for place in consumer.assignment():
                        consumer.seek(place, await consumer.committed(place))
                else:
                    await self._producer.commit_transaction()
            return count


def _consumer(group: str | None, isolation: str) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        bootstrap_servers=transactor_loop.bootstrap(),
        group_id=group,
        isolation_level=f"read_{isolation}",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )


async def _poll(consumer: AIOKafkaConsumer) -> list[ConsumerRecord]:
    polled = await consumer.getmany(timeout_ms=IDLE_S_MAX * 1000, max_records=BATCH)
    if not polled:
        raise TimeoutError("nothing more to read")
    return [record for records in polled.values() for record in records]


if __name__ == "__main__":
    transactor_loop.run(AiokafkaTransactor())
