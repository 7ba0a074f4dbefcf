"""A topic that is copied in transactions while things break; and the verdict: the copy is the same."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from .copy_job import TRANSACTION_TIMEOUT_S
from .load import CLIENT, create_topic, read_all

PARTITIONS = 2
GROUP = "copiers"
LOOK_EVERY_S = 0.2
STUCK_S_MAX = TRANSACTION_TIMEOUT_S + 10
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
        self.has_own_id = True  # Whether the next job has the transactional id of the one before it.
        self._lock = threading.Lock()

    def prepare(self) -> None:
        for topic in (self.source, self.target):
            create_topic(self.bootstrap, topic, PARTITIONS, self._replicas)
        producer = Producer({**CLIENT, "bootstrap.servers": self.bootstrap, "enable.idempotence": True})
        for number in range(self.count):
            while True:
                try:
                    producer.produce(self.source, b"%d" % number, partition=number % PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.05)
        assert producer.flush(60) == 0

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
        asked = self._admin().list_consumer_group_offsets([ConsumerGroupTopicPartitions(self.group)], request_timeout=5)
        try:
            offsets = next(iter(asked.values())).result(10).topic_partitions
        except KafkaException:
            return 0
        return sum(max(0, one.offset) for one in offsets)

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
        assert self.stuck_s <= STUCK_S_MAX, f"a transaction has held readers up for {self.stuck_s:.1f} s"

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
            try:
                stable = self._ends(IsolationLevel.READ_COMMITTED)
                ends = self._ends(IsolationLevel.READ_UNCOMMITTED)
            except KafkaException:
                continue
            now = time.monotonic()
            for partition, offset in stable.items():
                before, since = stood.get(partition, (-1, now))
                if offset != before or offset >= ends[partition]:
                    stood[partition] = (offset, now)
                else:
                    self.stuck_s = max(self.stuck_s, now - since)

    def _ends(self, isolation: IsolationLevel) -> dict[int, int]:
        places = [TopicPartition(self.target, partition) for partition in range(PARTITIONS)]
        asked = self._admin().list_offsets(
            dict.fromkeys(places, OffsetSpec.latest()), isolation_level=isolation, request_timeout=5
        )
        return {place.partition: int(listed.result(10).offset) for place, listed in asked.items()}

    def _admin(self) -> AdminClient:
        with self._lock:
            if not hasattr(self, "_admin_client"):
                self._admin_client = AdminClient({**CLIENT, "bootstrap.servers": self.bootstrap})
            return self._admin_client


def wait_until_sprung(sprung: threading.Event, what: str, timeout_s: float = 90) -> None:
    assert sprung.wait(timeout_s), f"not within {timeout_s} s: {what}"
