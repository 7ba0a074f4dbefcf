"""Transactions of kafka-python."""

import transactor_loop
from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from transactor_loop import BATCH, END, IDLE_S_MAX


class KafkaPythonTransactor:
    def open(self, transactional_id: str, timeout_ms: int) -> None:
        self._producer = KafkaProducer(
            bootstrap_servers=transactor_loop.bootstrap(),
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            linger_ms=0,
        )
        self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, partition: int, value: str) -> None:
        self._producer.send(topic, value.encode(), partition=partition).get(IDLE_S_MAX)

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.abort_transaction()

    def read(self, isolation: str, topic: str, partition: int) -> list[str]:
        consumer = self._consumer(None, isolation)
        place = TopicPartition(topic, partition)
        consumer.assign([place])
        consumer.seek(place, 0)
        values: list[str] = []
        while END not in values:
            values += [record.value.decode() for record in _poll(consumer)]
        consumer.close()
        return values[: values.index(END)]

    def copy(self, transactional_id: str, source: str, target: str, group: str) -> int:
        self.open(transactional_id, 30_000)
        consumer = self._consumer(group, "committed")
        consumer.subscribe([source])
        count, is_done = 0, False
        while not is_done:
            records = _poll(consumer)
            self.begin()
            for record in records:
                is_done = record.value == END.encode()
                if is_done:
                    break
                self._producer.send(target, record.value, partition=0)
            offsets = {place: OffsetAndMetadata(consumer.position(place), "", -1) for place in consumer.assignment()}
            self._producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
            count += 1
            if count == 2:
                self._producer.flush(IDLE_S_MAX)  # What was not sent yet never would be.
                self.abort()
                is_done = False
                for place in consumer.assignment():
                    consumer.seek(place, consumer.committed(place))
            else:
                self.commit()
        consumer.close()
        return count

    def _consumer(self, group: str | None, isolation: str) -> KafkaConsumer:
        return KafkaConsumer(
            bootstrap_servers=transactor_loop.bootstrap(),
            group_id=group,
            isolation_level=f"read_{isolation}",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )


def _poll(consumer: KafkaConsumer) -> list:
    polled = consumer.poll(timeout_ms=IDLE_S_MAX * 1000, max_records=BATCH)
    if not polled:
        raise TimeoutError("nothing more to read")
    return [record for records in polled.values() for record in records]


if __name__ == "__main__":
    transactor_loop.run(KafkaPythonTransactor())
