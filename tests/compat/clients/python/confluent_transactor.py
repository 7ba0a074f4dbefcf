"""Transactions of confluent-kafka (librdkafka)."""

import transactor_loop
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from transactor_loop import BATCH, END, IDLE_S_MAX


class ConfluentTransactor:
    def open(self, transactional_id: str, timeout_ms: int) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": transactor_loop.bootstrap(),
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "message.timeout.ms": timeout_ms,
            }
        )
        self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, partition: int, value: str) -> None:
        failures: list[KafkaError] = []

        def on_delivery(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failures.append(error)

        self._producer.produce(topic, value.encode(), partition=partition, on_delivery=on_delivery)
        if self._producer.flush(IDLE_S_MAX):
            raise TimeoutError("not acknowledged")
        if failures:
            raise KafkaException(failures[0])

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.abort_transaction()

    def read(self, isolation: str, topic: str, partition: int) -> list[str]:
        consumer = self._consumer("not-used", isolation)
        consumer.assign([TopicPartition(topic, partition, 0)])
        values: list[str] = []
        while (value := _next(consumer).value().decode()) != END:
            values.append(value)
        consumer.close()
        return values

    def copy(self, transactional_id: str, source: str, target: str, group: str) -> int:
        self.open(transactional_id, 30_000)
        consumer = self._consumer(group, "committed")
        consumer.subscribe([source])
        count, is_done = 0, False
        while not is_done:
            self.begin()
            for _ in range(BATCH):
                message = _next(consumer)
                is_done = message.value() == END.encode()
                if is_done:
                    break
                self._producer.produce(target, message.value(), partition=0)
            self._producer.send_offsets_to_transaction(
                consumer.position(consumer.assignment()), consumer.consumer_group_metadata()
            )
            count += 1
            if count == 2:
                self._producer.flush(IDLE_S_MAX)  # What was not sent yet never would be.
                self.abort()
                is_done = False
                for place in consumer.committed(consumer.assignment(), IDLE_S_MAX):
                    consumer.seek(place)
            else:
                self.commit()
        consumer.close()
        return count

    def _consumer(self, group: str, isolation: str) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": transactor_loop.bootstrap(),
                "group.id": group,
                "isolation.level": f"read_{isolation}",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )


def _next(consumer: Consumer) -> Message:
    message = consumer.poll(IDLE_S_MAX)
    if message is None:
        raise TimeoutError("nothing more to read")
    if message.error() is not None:
        raise KafkaException(message.error())
    return message


if __name__ == "__main__":
    transactor_loop.run(ConfluentTransactor())
