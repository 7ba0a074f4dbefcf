"""Producers at full speed that remember what was acked, and the auditor who looks for it in the log.

A value is `<producer>:<sequence>:<filling>`. Each producer numbers its records for each partition, and sends each of
them once (no retries): a record whose fate is unknown may be in the log, but only once and in its place.
"""

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

CLIENT: dict[str, Any] = {
    "log_level": 0,  # Brokers that die are what these tests are about.
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    "socket.timeout.ms": 30_000,
}
PRODUCER: dict[str, Any] = {
    **CLIENT,
    "acks": "all",
    "enable.idempotence": False,
    "message.send.max.retries": 0,
    "max.in.flight": 5,
    "linger.ms": 2,
    "message.timeout.ms": 5_000,
    "topic.metadata.refresh.fast.interval.ms": 50,
}

Place = tuple[str, int]  # Topic and partition.
Record = tuple[int, bytes]  # Offset and value.


@dataclass
class Ledger:
    """What the producers know."""

    acked: dict[Place, dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))  # Offset → value.
    sent_count: int = 0
    errors: Counter[int] = field(default_factory=Counter)
    first_error_at: dict[int, float] = field(default_factory=dict)  # By code, in time.time().
    last_ack_at: float = 0.0

    @property
    def acked_count(self) -> int:
        return sum(len(offsets) for offsets in self.acked.values())

    def on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors[error.code()] += 1
            self.first_error_at.setdefault(error.code(), time.time())
            return
        place = (message.topic(), message.partition())
        assert message.offset() not in self.acked[place], f"two acks for {place} at {message.offset()}"
        self.acked[place][message.offset()] = message.value()
        self.last_ack_at = time.time()


class Load:
    """Background threads, each with a producer of its own that fills its queue as fast as it empties."""

    def __init__(
        self,
        bootstrap: str,
        ledger: Ledger,
        places: Sequence[Place],
        *,
        producers: Sequence[str],
        value_bytes: int,
        queued_max: int = 5_000,
        **settings: Any,
    ) -> None:
        self._ledger = ledger
        self._places = places
        self._filling = b"x" * value_bytes
        self._stopping = threading.Event()
        self._failures: list[BaseException] = []
        config = {**PRODUCER, "bootstrap.servers": bootstrap, "queue.buffering.max.messages": queued_max, **settings}
        self._threads = [threading.Thread(target=self._run, args=(name, config), name=name) for name in producers]

    def _run(self, name: str, config: dict[str, Any]) -> None:
        try:
            producer = Producer(config)
            sequences = dict.fromkeys(self._places, 0)
            while not self._stopping.is_set():
                for place in self._places:
                    self._send(producer, name, place, sequences)
                producer.poll(0)
            producer.flush(60)
        except BaseException as error:
            self._failures.append(error)
            raise

    def _send(self, producer: Producer, name: str, place: Place, sequences: dict[Place, int]) -> None:
        topic, partition = place
        value = b"%s:%d:%s" % (name.encode(), sequences[place], self._filling)
        for _ in range(10_000):
            try:
                producer.produce(topic, value, partition=partition, on_delivery=self._ledger.on_delivery)
            except BufferError:
                producer.poll(0.005)
                if self._stopping.is_set():
                    return
                continue
            sequences[place] += 1
            self._ledger.sent_count += 1
            return
        raise AssertionError("the producer's queue does not empty")

    @contextmanager
    def running(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            for thread in self._threads:
                thread.join(90)
        assert not self._failures, self._failures
        assert not any(thread.is_alive() for thread in self._threads), "a producer hangs"


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 120) -> None:
    """Return when it is so, which takes a moment unless the machine is busy."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.01)


def create_topic(
    bootstrap: str, name: str, partitions: int = 1, replication_factor: int = 1, **config: str
) -> list[Place]:
    """Make a topic; config names have underscores for dots. Gives its places."""
    admin = AdminClient({**CLIENT, "bootstrap.servers": bootstrap})
    settings = {key.replace("_", "."): value for key, value in config.items()}
    topic = NewTopic(name, num_partitions=partitions, replication_factor=replication_factor, config=settings)
    admin.create_topics([topic], request_timeout=60)[name].result(90)
    return [(name, partition) for partition in range(partitions)]


def delete_topic(bootstrap: str, name: str) -> None:
    admin = AdminClient({**CLIENT, "bootstrap.servers": bootstrap})
    admin.delete_topics([name], request_timeout=60, operation_timeout=60)[name].result(90)


def produce_one(bootstrap: str, place: Place, value: bytes, timeout_s: float = 60) -> KafkaError | None:
    """Send one record with acks=all; gives its error."""
    outcome: list[KafkaError | None] = []
    producer = Producer({**PRODUCER, "bootstrap.servers": bootstrap, "message.timeout.ms": int(timeout_s * 1000)})
    producer.produce(place[0], value, partition=place[1], on_delivery=lambda error, _: outcome.append(error))
    producer.flush(timeout_s + 5)
    assert outcome, "neither an ack nor an error"
    return outcome[0]


def read_all(bootstrap: str, places: Sequence[Place], timeout_s: float = 120) -> dict[Place, list[Record]]:
    """Every committed record of each place, with its offset, as a consumer gets them."""
    consumer = Consumer(
        {
            **CLIENT,
            "bootstrap.servers": bootstrap,
            "group.id": "auditor",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
            "fetch.wait.max.ms": 10,
            "max.partition.fetch.bytes": 4 << 20,
            "queued.max.messages.kbytes": 65_536,
        }
    )
    records: dict[Place, list[Record]] = {place: [] for place in places}
    unfinished = set(places)
    try:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for topic, partition in places])
        deadline = time.monotonic() + timeout_s
        while unfinished and time.monotonic() < deadline:
            for message in consumer.consume(10_000, timeout=0.1):
                place = (message.topic(), message.partition())
                error = message.error()
                if error is None:
                    records[place].append((message.offset(), message.value()))
                elif error.code() == KafkaError._PARTITION_EOF:
                    unfinished.discard(place)
                else:
                    raise AssertionError(f"{place}: {error}")
    finally:
        consumer.close()
    assert not unfinished, f"not read to the end within {timeout_s} s: {sorted(unfinished)}"
    return records


def audit(ledger: Ledger, records: dict[Place, list[Record]]) -> int:
    """Check that all that was acked is where it was promised, in order and once; gives how many records there are."""
    for place, acked in ledger.acked.items():
        found = dict(records[place])
        assert len(found) == len(records[place]), f"{place}: an offset was read twice"
        missing = [offset for offset in acked if offset not in found]
        assert not missing, (
            f"{place}: {len(missing)} of {len(acked)} acked records are lost, e.g. {sorted(missing)[:5]}"
        )
        changed = [offset for offset, value in acked.items() if found[offset] != value]
        assert not changed, f"{place}: {len(changed)} offsets have another record than promised: {sorted(changed)[:5]}"
    for place, found_records in records.items():
        latest: dict[bytes, int] = {}
        for expected_offset, (offset, value) in enumerate(found_records):
            assert offset == expected_offset, f"{place}: offset {expected_offset} is missing"
            producer, sequence_text, _ = value.split(b":", 2)
            sequence = int(sequence_text)
            assert sequence > latest.get(producer, -1), f"{place}: {producer!r} has {sequence} after {latest[producer]}"
            latest[producer] = sequence
    return sum(map(len, records.values()))
