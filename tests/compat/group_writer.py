"""A producer that keeps writing numbered records while the members of a group come and go."""

import threading

from confluent_kafka import KafkaError, Message, Producer

PERIOD_S = 0.05
RECORDS_PER_PERIOD = 12
FLUSH_S_MAX = 60


class GroupWriter:
    """`acked`: the value at each (partition, offset) that the broker has acknowledged."""

    def __init__(self, bootstrap: str, topic: str, partition_count: int) -> None:
        self.acked: dict[tuple[int, int], str] = {}
        self.errors: list[KafkaError] = []
        self._topic, self._partition_count = topic, partition_count
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "reconnect.backoff.max.ms": 500}
        )
        self._number = 0
        self._shall_stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait until all of it is acknowledged."""
        self._shall_stop.set()
        if self._thread.is_alive():
            self._thread.join(FLUSH_S_MAX)
        self.flush()

    def close(self) -> None:
        """Stop, whatever has become of it."""
        self._shall_stop.set()

    def flush(self) -> None:
        unsent = self._producer.flush(FLUSH_S_MAX)
        assert not unsent and not self.errors, f"{unsent} records were not acknowledged: {self.errors[:1]}"

    def write(self, count: int) -> None:
        for _ in range(count):
            partition = self._number % self._partition_count
            self._producer.produce(
                self._topic, value=str(self._number).encode(), partition=partition, on_delivery=self._delivered
            )
            self._number += 1

    def _run(self) -> None:
        while not self._shall_stop.wait(PERIOD_S):
            self.write(RECORDS_PER_PERIOD)
            self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(error)
        else:
            self.acked[message.partition(), message.offset()] = message.value().decode()
