"""librdkafka as the load: a second opinion beside Kafka's own tools, and the client of most Python users."""

import threading
import time

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.client_load import ClientLoad, Moved
from bench.latencies import Latencies
from bench.pace import Pace
from ports import HOST

BATCH = 10_000  # Records handed over between two looks at the clock.
READ = 1_000  # Records taken at a time.
ANSWER_S_MAX = 120


class RdkafkaLoad(ClientLoad):
    def create(self, stream: str) -> None:
        topic = NewTopic(stream, num_partitions=1, replication_factor=1, config={"penstock.durability": "os"})
        admin = AdminClient(self._bootstrap())
        admin.create_topics([topic])[stream].result(60)

    def delete(self, stream: str) -> None:
        admin = AdminClient(self._bootstrap())
        admin.delete_topics([stream])[stream].result(60)

    def produce(self, stream: str, record_bytes: int, seconds: float) -> Moved:
        failed: list[str] = []
        # The default of 1 MB a batch, and time to fill it.
        producer = self._producer(failed, linger_ms=5)
        value = bytes(record_bytes)
        producer.list_topics(stream, timeout=10)  # Connected before the clock starts.
        begun, count = time.perf_counter(), 0
        while time.perf_counter() - begun < seconds:
            for _ in range(BATCH):
                while not _is_taken(producer, stream, value):
                    producer.poll(0.01)
            count += BATCH
        _finish(producer, failed)
        return Moved(count, time.perf_counter() - begun)

    def consume(self, stream: str, count: int, seconds: float) -> Moved:
        consumer = self._consumer(stream)
        begun, received = time.perf_counter(), 0
        consumer.assign([TopicPartition(stream, 0, 0)])
        while received < count and time.perf_counter() - begun < seconds:
            received += len(_values(consumer.consume(READ, timeout=0.1)))
        elapsed = time.perf_counter() - begun
        consumer.close()
        return Moved(received, elapsed)

    def at_rate(self, stream: str, rate: int, seconds: float) -> Latencies:
        failed: list[str] = []
        producer, consumer = self._producer(failed, linger_ms=0), self._consumer(stream)
        consumer.assign([TopicPartition(stream, 0, 0)])
        pace = Pace(rate, seconds)
        sender = threading.Thread(target=pace.send_all, args=[lambda record: producer.produce(stream, record)])
        sender.start()
        while not pace.is_complete:
            for value in _values([message] if (message := consumer.poll(1)) else []):
                pace.on_record(value)
        sender.join()
        consumer.close()
        _finish(producer, failed)
        return pace.latencies()

    def _producer(self, failed: list[str], linger_ms: int) -> Producer:
        return Producer(
            {
                **self._bootstrap(),
                "acks": "all",
                "linger.ms": linger_ms,
                "queue.buffering.max.messages": 200_000,
                "error_cb": lambda error: failed.append(str(error)),
                "delivery.report.only.error": True,
                "on_delivery": lambda error, message: failed.append(str(error)),
            }
        )

    def _consumer(self, stream: str) -> Consumer:
        """Connected, with nothing to read yet."""
        settings = {
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 1,  # The default rests for a second whenever 64 MB are read ahead.
        }
        consumer = Consumer(self._bootstrap() | settings)
        consumer.get_watermark_offsets(TopicPartition(stream, 0), timeout=10)
        return consumer

    def _bootstrap(self) -> dict[str, object]:
        return {"bootstrap.servers": f"{HOST}:{self._port}", "log_level": 0}


def _is_taken(producer: Producer, stream: str, value: bytes) -> bool:
    try:
        producer.produce(stream, value)
    except BufferError:
        return False
    return True


def _finish(producer: Producer, failed: list[str]) -> None:
    producer.flush(ANSWER_S_MAX)
    if failed or len(producer):
        raise RuntimeError(f"{len(failed) + len(producer)} records were not stored: {failed[:3]}")


def _values(messages: list[Message]) -> list[bytes]:
    values = []
    for message in messages:
        if message.error():
            raise KafkaException(message.error())
        values.append(message.value())
    return values
