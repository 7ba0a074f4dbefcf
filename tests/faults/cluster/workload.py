"""The standard load: producers of unique numbers, an auditor who reads everything, a group of three, and a watcher.

Producers are idempotent and wait for all in-sync replicas; the auditor is assigned every partition from offset 0; the
group's members subscribe and commit what they have read; the watcher asks for end offsets and committed offsets. All
write into one history, each operation before it begins and when its outcome is known.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.sim.history import Log, Poll, Polled, Send, Sent

from ..load import CLIENT, wait_until
from .timed_history import TimedHistory, log_of

PARTITIONS = 8
PRODUCERS = 4
MEMBERS = 3
RATE = 1_600  # Records a second, of all producers together.
AUDITOR, GROUP = "auditor", "readers"

PRODUCER: dict[str, Any] = {
    **CLIENT,
    "acks": "all",
    "enable.idempotence": True,
    "linger.ms": 5,
    "retry.backoff.ms": 50,
    "retry.backoff.max.ms": 250,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "socket.timeout.ms": 10_000,
    "socket.connection.setup.timeout.ms": 3_000,
    "message.timeout.ms": 180_000,  # Longer than every fault: a record is sent until its fate is known.
    "queue.buffering.max.messages": 20_000,
}
CONSUMER: dict[str, Any] = {
    **CLIENT,
    "enable.auto.commit": False,
    "auto.offset.reset": "error",  # A position that is no longer there is a finding, not a reason to begin anew.
    "isolation.level": "read_committed",
    "check.crcs": True,
    "socket.timeout.ms": 10_000,
    "socket.connection.setup.timeout.ms": 3_000,
    "fetch.wait.max.ms": 100,
    "retry.backoff.ms": 50,
    "topic.metadata.refresh.fast.interval.ms": 50,
}
# The producer's own queue had it, and no broker was ever sent it.
NEVER_SENT = {KafkaError._PURGE_QUEUE, KafkaError.MSG_SIZE_TOO_LARGE}


class Workload:
    def __init__(
        self, bootstrap: str, topic: str, *, partitions: int = PARTITIONS, rate: int = RATE, readers: bool = True
    ) -> None:
        self.topic = topic
        self.history = TimedHistory()
        self.partitions = partitions
        self._bootstrap = bootstrap
        self._rate = rate
        self._stop_sending = threading.Event()
        self._stop_reading = threading.Event()
        self._failures: list[BaseException] = []
        self.acked_count = 0
        self.acked_end = [0] * partitions  # First offset after all that was acked.
        self.audited_end = [0] * partitions  # First offset that the auditor has not read.
        self.seen: dict[str, dict[Log, set[int]]] = {  # Offsets that each kind of reader was shown.
            reader: {log_of(topic, partition): set() for partition in range(partitions)} for reader in (AUDITOR, GROUP)
        }
        self.errors: list[str] = []  # What clients were told that does not end them; for the report.
        self._senders = [self._thread(self._send, f"producer-{number}", number) for number in range(PRODUCERS)]
        self._readers: list[threading.Thread] = []
        if readers:
            self._readers += [self._thread(self._audit, "auditor"), self._thread(self._watch, "watcher")]
            self._readers += [self._thread(self._read_in_group, f"member-{n}", n) for n in range(MEMBERS)]

    def create_topic(self, replication_factor: int = 3, **config: str) -> None:
        admin = AdminClient({**CLIENT, "bootstrap.servers": self._bootstrap})
        settings = {key.replace("_", "."): value for key, value in config.items()}
        topic = NewTopic(self.topic, self.partitions, replication_factor=replication_factor, config=settings)
        admin.create_topics([topic], request_timeout=60)[self.topic].result(90)

    # From outside

    @contextmanager
    def running(self) -> Iterator[None]:
        """Everybody at work inside the block. After it the producers know the fate of all that they sent."""
        for thread in (*self._senders, *self._readers):
            thread.start()
        try:
            self.wait_for_acks()
            yield
        except BaseException:
            self.abandon()
            raise
        self.stop_sending()

    def wait_for_acks(self, partitions: Sequence[int] | None = None, timeout_s: float = 120) -> None:
        """Return when every partition, or each of these, has taken a record since now."""
        before = list(self.acked_end)
        of = range(self.partitions) if partitions is None else partitions
        wait_until(
            lambda: self._fail_fast() and all(self.acked_end[partition] > before[partition] for partition in of),
            f"partitions {list(of)} take a record",
            timeout_s,
        )

    def stop_sending(self) -> None:
        self._stop_sending.set()
        for thread in self._senders:
            thread.join(PRODUCER["message.timeout.ms"] / 1000 + 30)
        assert not any(thread.is_alive() for thread in self._senders), "a producer hangs"
        self._fail_fast()

    def wait_until_read(self, timeout_s: float = 60) -> float:
        """The seconds until the auditor and the group have come to the end of all that was acked, or the limit."""
        begin = time.monotonic()
        while time.monotonic() - begin < timeout_s and not self._is_read():
            self._fail_fast()
            time.sleep(0.05)
        return time.monotonic() - begin

    def _is_read(self) -> bool:
        """Whether the last record of each partition was shown to all; whether all were is for the verdict."""
        return all(
            end == 0 or end - 1 in seen[log_of(self.topic, partition)]
            for seen in self.seen.values()
            for partition, end in enumerate(self.acked_end)
        )

    def stop_reading(self) -> None:
        self._stop_reading.set()
        for thread in self._readers:
            thread.join(60)
        assert not any(thread.is_alive() for thread in self._readers), "a reader hangs"
        self._fail_fast()

    def abandon(self) -> None:
        """End all threads of a run that has failed."""
        self._stop_sending.set()
        self._stop_reading.set()
        for thread in (*self._senders, *self._readers):
            if thread.ident is not None:
                thread.join(30)

    def _fail_fast(self) -> bool:
        assert not self._failures, f"a client failed: {self._failures[0]!r}"
        return True

    # Producers

    def _send(self, number: int) -> None:
        producer = Producer({**PRODUCER, "bootstrap.servers": self._bootstrap, "client.id": f"producer-{number}"})
        interval_s = PRODUCERS / self._rate
        due_at = time.monotonic()
        sequence = 0
        while not self._stop_sending.is_set():
            due_at = max(due_at + interval_s, time.monotonic() - 1.0)  # At most a second is made up for.
            while (left_s := due_at - time.monotonic()) > 0:
                producer.poll(min(left_s, 0.01))
            partition = sequence % self.partitions
            self._send_one(producer, number, partition, b"%d" % (sequence * PRODUCERS + number))
            sequence += 1
            producer.poll(0)
        # Those that were not sent in time are not lost in silence: their callbacks say so.
        for _ in range(10):
            if producer.flush(PRODUCER["message.timeout.ms"] / 10_000) == 0:
                return
        raise AssertionError("records are left in a producer's queue")

    def _send_one(self, producer: Producer, link: int, partition: int, value: bytes) -> None:
        operation = Send(log_of(self.topic, partition), link, (value,))
        number = self.history.invoke(operation)

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            try:
                self._on_delivery(number, operation, error, message)
            except BaseException as failure:  # Through the library it would come out as something else, if at all.
                self._failures.append(failure)

        while not self._stop_sending.is_set():
            try:
                producer.produce(self.topic, value, partition=partition, on_delivery=on_delivery)
                return
            except BufferError:
                producer.poll(0.05)
        self.history.fail(number, operation, "the queue was full to the end")

    def _on_delivery(self, number: int, operation: Send, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.history.ok(number, operation, Sent(message.offset()))
            self.acked_count += 1
            partition = operation.log.partition.partition
            self.acked_end[partition] = max(self.acked_end[partition], message.offset() + 1)
        elif error.code() in NEVER_SENT:
            self.history.fail(number, operation, error.name())
        else:
            self.history.info(number, operation, error.name())
            self.errors.append(f"producer {operation.link}: {error}")

    # Readers

    def _audit(self) -> None:
        consumer = Consumer({**CONSUMER, "bootstrap.servers": self._bootstrap, "group.id": AUDITOR})
        try:
            consumer.assign([TopicPartition(self.topic, partition, 0) for partition in range(self.partitions)])
            while not self._stop_reading.is_set():
                for partition, records in self._consume(consumer):
                    self._show(AUDITOR, partition, self.audited_end[partition], records)
                    self.audited_end[partition] = records[-1][0] + 1
        finally:
            consumer.close()

    def _read_in_group(self, number: int) -> None:
        settings = {
            **CONSUMER,
            "bootstrap.servers": self._bootstrap,
            "group.id": GROUP,
            "client.id": f"member-{number}",
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 10_000,
            "heartbeat.interval.ms": 1_000,
            "partition.assignment.strategy": "cooperative-sticky",
        }
        consumer = Consumer(settings)
        try:
            consumer.subscribe([self.topic])
            while not self._stop_reading.is_set():
                for partition, records in self._consume(consumer):
                    # A member may begin anywhere: what it has not committed is read again by the next.
                    self._show(GROUP, partition, records[0][0], records)
                    self._commit(consumer, partition, records[-1][0] + 1)
        finally:
            consumer.close()

    def _consume(self, consumer: Consumer) -> Iterator[tuple[int, list[tuple[int, bytes]]]]:
        """Records of one poll, by partition. Errors that pass are noted, others raised."""
        found: dict[int, list[tuple[int, bytes]]] = {}
        for message in consumer.consume(2_000, timeout=0.1):
            error = message.error()
            if error is None:
                found.setdefault(message.partition(), []).append((message.offset(), message.value()))
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                raise AssertionError(f"a reader was sent away from its position: {error}")
            else:
                self.errors.append(f"reader: {error}")
        yield from found.items()

    def _show(self, reader: str, partition: int, start: int, records: list[tuple[int, bytes]]) -> None:
        operation = Poll(log_of(self.topic, partition), start)
        self.seen[reader][operation.log].update(offset for offset, _ in records)
        number = self.history.invoke(operation)
        self.history.ok(number, operation, Polled(records[-1][0] + 1, tuple(records)))

    def _commit(self, consumer: Consumer, partition: int, end: int) -> None:
        operation = Poll(self.committed_log(partition), end)
        number = self.history.invoke(operation)
        try:
            consumer.commit(offsets=[TopicPartition(self.topic, partition, end)], asynchronous=False)
        except KafkaException as exception:
            self.history.info(number, operation, exception.args[0].name())
        else:
            self.history.ok(number, operation, Polled(end, ()))

    def committed_log(self, partition: int) -> Log:
        """The group's offset of a partition, as if it were a log of its own: it only ever grows."""
        return log_of(f"{GROUP}@{self.topic}", partition)

    # What is promised to grow

    def _watch(self) -> None:
        watcher = Consumer({**CONSUMER, "bootstrap.servers": self._bootstrap, "group.id": "watcher"})
        # Asks as the group, without being a member. (An AdminClient can abort the process here: librdkafka asserts.)
        of_group = Consumer({**CONSUMER, "bootstrap.servers": self._bootstrap, "group.id": GROUP})
        try:
            while not self._stop_reading.wait(0.2):
                for partition in range(self.partitions):
                    self._ask(log_of(self.topic, partition), lambda p=partition: self._end_offset(watcher, p))
                    if self._stop_reading.is_set():
                        break
                self._ask_committed(of_group)
        finally:
            watcher.close()
            of_group.close()

    def _end_offset(self, watcher: Consumer, partition: int) -> int:
        low, high = watcher.get_watermark_offsets(TopicPartition(self.topic, partition), timeout=3)
        if low == high:
            # An empty partition, or librdkafka's answer when the broker gave it the start and refused the end.
            raise KafkaException(KafkaError(KafkaError.OFFSET_NOT_AVAILABLE))
        return int(high)

    def _ask(self, log: Log, ask: Callable[[], int]) -> None:
        operation = Poll(log, 0)
        number = self.history.invoke(operation)
        try:
            self.history.ok(number, operation, Polled(ask(), ()))
        except KafkaException as exception:
            self.history.info(number, operation, exception.args[0].name())

    def _ask_committed(self, of_group: Consumer) -> None:
        partitions = range(self.partitions)
        operations = [Poll(self.committed_log(partition), 0) for partition in partitions]
        numbers = [self.history.invoke(operation) for operation in operations]
        try:
            answer = of_group.committed([TopicPartition(self.topic, partition) for partition in partitions], timeout=3)
        except KafkaException as exception:
            for number, operation in zip(numbers, operations, strict=True):
                self.history.info(number, operation, exception.args[0].name())
            return
        for number, operation, found in zip(numbers, operations, answer, strict=True):
            if found.error is not None:
                self.history.info(number, operation, found.error.name())
            else:
                self.history.ok(number, operation, Polled(max(0, found.offset), ()))

    def _thread(self, function: Callable[..., None], name: str, *arguments: Any) -> threading.Thread:
        def run() -> None:
            try:
                function(*arguments)
            except BaseException as error:
                self._failures.append(error)
                raise

        return threading.Thread(target=run, name=name, daemon=True)
