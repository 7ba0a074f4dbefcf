"""A topic that is copied in transactions while things break; and the verdict: the copy is the same."""

import contextlib
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from .copy_job import TRANSACTION_TIMEOUT_S
from .load import CLIENT, create_topic, read_all

PARTITIONS = 2
GROUP = "copiers"
LOOK_EVERY_S = 0.2
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
COPIED_S_MAX = 240  # Only a failure takes so long.


class CopyWorld:
    def __init__(
        self, bootstrap: str, directory: Path, *, count: int, batch: int, replicas: int = 1, name: str = "copy"
    ) -> None:
        self.bootstrap, self._directory = bootstrap, directory
        self.count, self._batch, self._replicas = count, batch, replicas
        self.source, self.target = f"{name}-source", f"{name}-target"
        self.group = f"{name}-{GROUP}"
        self._id = f"{name}-job"
        self._job: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._failures: list[BaseException] = []
        self.starts = 0
        self.stuck_s = 0.0  # The longest time that a transaction has held readers of the copy up.
        self.stuck_s_max = TRANSACTION_TIMEOUT_S + 10
        self.has_own_id = True  # Whether the next job has the transactional id of the one before it.
        self._only_looks: Consumer | None = None
        self._lock = threading.Lock()  # Guards the job and the consumer.

    def prepare(self) -> None:
        for topic in (self.source, self.target):
            create_topic(self.bootstrap, topic, PARTITIONS, self._replicas)
        total, self.count = self.count, 0
        self.feed(total)

    def feed(self, count: int) -> None:
        """So many records more to copy."""
        producer = Producer({**CLIENT, "bootstrap.servers": self.bootstrap, "enable.idempotence": True})
        for number in range(self.count, self.count + count):
            while True:
                try:
                    producer.produce(self.source, b"%d" % number, partition=number % PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.05)
        assert producer.flush(60) == 0
        self.count += count

    @contextmanager
    def copying(self) -> Iterator[None]:
        """The job is started, and started again whenever it ends; what it holds up is watched."""
        self._threads = [threading.Thread(target=self._keep_running), threading.Thread(target=self._watch)]
        for thread in self._threads:
            thread.start()
        try:
            yield
            self.wait_until_copied()
        finally:
            self._stopping.set()
            self.kill_job()
            for thread in self._threads:
                thread.join(60)
            if self._only_looks is not None:
                self._only_looks.close()
        assert not self._failures, self._failures

    def kill_job(self) -> None:
        """kill -9."""
        with self._lock:
            if self._job is not None:
                self._job.kill()

    def wait_until_copied(self) -> None:
        deadline = time.monotonic() + COPIED_S_MAX
        while (done := self.copied_count()) < self.count:
            assert time.monotonic() < deadline, f"only {done} of {self.count} are copied: {self.job_log()[-3000:]}"
            assert not self._failures, self._failures
            time.sleep(LOOK_EVERY_S)

    def copied_count(self) -> int:
        """How far the group has come, of all partitions; 0 when nobody can tell."""
        places = [TopicPartition(self.source, partition) for partition in range(PARTITIONS)]
        try:
            return sum(max(0, one.offset) for one in self._looker().committed(places, timeout=5))
        except KafkaException:
            return 0

    def check(self) -> None:
        """Input equals output, in order, as a reader of what is committed sees it."""
        places = [(self.target, partition) for partition in range(PARTITIONS)]
        found = read_all(self.bootstrap, places)
        for topic, partition in places:
            values = [int(value) for _, value in found[topic, partition]]
            wanted = list(range(partition, self.count, PARTITIONS))
            missing, twice = set(wanted) - set(values), len(values) - len(set(values))
            assert values == wanted, (
                f"partition {partition}: {len(missing)} missing {sorted(missing)[:5]}, {twice} twice, "
                f"in order: {values == sorted(values)}\n{self.job_log()[-3000:]}"
            )
        assert self.stuck_s <= self.stuck_s_max, f"a transaction has held readers up for {self.stuck_s:.1f} s"

    def job_log(self) -> str:
        return "".join(path.read_text(errors="replace") for path in sorted(self._directory.glob("job-*.log")))

    # In threads

    def _keep_running(self) -> None:
        while not self._stopping.is_set():
            self.starts += 1
            name = self._id if self.has_own_id else "-"
            with (self._directory / f"job-{self.starts:03d}.log").open("wb") as log:
                words = [self.bootstrap, self.source, self.target, self.group, str(self._batch), name]
                with self._lock:
                    self._job = subprocess.Popen(
                        [sys.executable, "-m", "faults.copy_job", *words],
                        stdout=log,
                        stderr=log,
                        cwd=Path(__file__).parents[1],
                    )
                self._job.wait()
            if self.starts > 500:
                self._failures.append(AssertionError("the job does not stay up"))
                return
            self._stopping.wait(0.1)

    def _watch(self) -> None:
        """How long the last stable offset stands still below the high watermark."""
        stood: dict[int, tuple[int, float]] = {}  # Offset and since when, by partition.
        while not self._stopping.wait(LOOK_EVERY_S):
            stable, ends = self._ends(READ_COMMITTED), self._ends(READ_UNCOMMITTED)
            now = time.monotonic()
            for partition, offset in stable.items():
                before, since = stood.get(partition, (-1, now))
                if offset != before or offset >= ends.get(partition, 0):
                    stood[partition] = (offset, now)
                else:
                    self.stuck_s = max(self.stuck_s, now - since)

    def _ends(self, isolation: int) -> dict[int, int]:
        """As the leaders say, of those partitions that have one. librdkafka would not tell the last stable offset."""
        found: dict[int, int] = {}
        for address in self.bootstrap.split(","):
            with contextlib.suppress(OSError, struct.error):
                found |= end_offsets(address, self.target, isolation)
        return found

    def _looker(self) -> Consumer:
        """A consumer that only asks. Not librdkafka's admin client, which aborts the process when brokers go."""
        with self._lock:
            if self._only_looks is None:
                self._only_looks = Consumer({**CLIENT, "bootstrap.servers": self.bootstrap, "group.id": self.group})
            return self._only_looks


def end_offsets(address: str, topic: str, isolation: int) -> dict[int, int]:
    """By partition, of those that this broker leads: ListOffsets v2."""
    request = struct.pack(">hhih", 2, 2, 0, -1) + struct.pack(">ibi", -1, isolation, 1)
    request += struct.pack(">h", len(topic)) + topic.encode() + struct.pack(">i", PARTITIONS)
    request += b"".join(struct.pack(">iq", partition, -1) for partition in range(PARTITIONS))
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        with connection.makefile("rb") as stream:
            answer = stream.read(struct.unpack(">i", stream.read(4))[0])
    found = {}
    at = 4 + 4 + 4 + 2 + len(topic) + 4  # Correlation id, throttle time, one topic, its name, so many partitions.
    for partition, error, _, offset in struct.iter_unpack(">ihqq", answer[at:]):
        if error == 0:
            found[partition] = offset
    return found


def wait_until_sprung(sprung: threading.Event, what: str, timeout_s: float = 90) -> None:
    assert sprung.wait(timeout_s), f"not within {timeout_s} s: {what}"
