"""R29: an archive and a replay of it, while driver, executors, tasks and broker are killed at random.

In the end the replayed topic is the original, record for record, and so is the lake.

PENSTOCK_SPARK_ROUNDS=50 for the whole of it, on a real Spark cluster; the short form kills twice, in local mode.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.spark import environment
from penstock.spark.brokers import Brokers
from penstock.spark.lake_files import read_range
from penstock.spark.lake_store import LakeStore
from penstock.spark.options import LATEST, Isolation
from penstock.spark.plan import OffsetRange
from penstock.spark.reader import Wanted, read
from spark_cluster import SparkCluster

from . import figures

ROUNDS = int(os.environ.get("PENSTOCK_SPARK_ROUNDS", "3"))
SEED = int(os.environ.get("PENSTOCK_SPARK_SEED", "0")) or random.randrange(1 << 30)
RECORDS_PER_ROUND = 200  # Four batches of the archive.
SOURCE, TARGET = "source", "target"
PARTITIONS = 2
DAY_MS = 86_400_000
COLUMNS = ("key", "value", "timestamp", "headers")


class World:
    """A broker, a driver that archives and replays, and perhaps a cluster that it runs on."""

    def __init__(self, broker, directory: Path, cluster: SparkCluster | None) -> None:
        self.broker, self._directory, self._cluster = broker, directory, cluster
        self._count = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """The driver, if it does not run."""
        if self._process is not None and self._process.poll() is None:
            return
        master = self._cluster.url if self._cluster else "local[2]"
        variables = self._cluster.environment() if self._cluster else {**os.environ, **environment()}
        script = Path(__file__).parent / "spark_lake.py"
        command = [sys.executable, str(script), master, self.broker.bootstrap, SOURCE, TARGET, str(self._directory)]
        with (self._directory / "driver.log").open("ab") as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=output, env=variables, start_new_session=True
            )

    def stop(self) -> None:
        if self._process is not None:
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(60)

    def kill(self, victim: str, chance: random.Random) -> str:
        """Who was killed in fact."""
        if victim == "broker":
            self.broker.kill()
            time.sleep(chance.uniform(0, 2))
            self.broker.start()
        elif victim == "driver":
            self.stop()
        else:
            assert self._cluster is not None
            there = self._cluster.executors() if victim == "executor" else self._cluster.tasks()
            try:
                os.kill(chance.choice(there), signal.SIGKILL)
            except (IndexError, ProcessLookupError):  # Between two of them.
                return f"no {victim}"
        return victim

    def produce(self) -> None:
        """Records of all kinds, also tombstones, and of several days: a batch makes several files."""
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, "enable.idempotence": True, "log_level": 0})
        now_ms = int(time.time() * 1000)
        for number in range(self._count, self._count + RECORDS_PER_ROUND):
            producer.produce(
                SOURCE,
                None if number % 7 == 0 else b"%d" % number,
                None if number % 3 == 0 else b"%d" % (number % 10),
                number % PARTITIONS,
                timestamp=now_ms - number % 3 * DAY_MS,
                headers=None if number % 2 else [("n", b"%d" % number), ("n", None)],
            )
        assert producer.flush(120) == 0
        self._count += RECORDS_PER_ROUND

    def rows(self, topic: str) -> dict[int, list[tuple]]:
        """Committed records of each partition, in order."""
        bootstrap = self.broker.bootstrap
        with Brokers(bootstrap) as brokers:
            ends = brokers.offsets(dict.fromkeys(brokers.partitions([topic]), LATEST), Isolation.READ_COMMITTED)
        found: dict[int, list[tuple]] = {}
        for (_, partition), end in ends.items():
            wanted = Wanted(
                bootstrap, OffsetRange(topic, partition, 0, end), Isolation.READ_COMMITTED, True, True, 60_000
            )
            found[partition] = rows_of(read(wanted))
        return found

    def lake_rows(self) -> dict[int, list[tuple]]:
        store = LakeStore(str(self._directory / "lake"))
        files = store.latest().files
        return {number: rows_of(read_range(store.root, files, number, 0, 1 << 60)) for number in range(PARTITIONS)}

    def replayed_count(self) -> int:
        return sum(map(len, self.rows(TARGET).values()))

    def lake_count(self) -> int:
        return sum(each.rows for each in LakeStore(str(self._directory / "lake")).latest().files)

    def finish(self) -> None:
        while (seen := self.replayed_count()) < self._count:
            self.start()
            self.wait_for_progress(seen)

    def wait_for_progress(self, seen: int, limit_s: float = 240) -> None:
        """Until more is replayed, or the driver has to be helped."""
        give_up_at = time.monotonic() + limit_s
        while self.replayed_count() <= seen and self._process is not None and self._process.poll() is None:
            assert time.monotonic() < give_up_at, f"stuck at {self.lake_count()} in the lake, {seen} replayed"
            time.sleep(0.2)


def rows_of(batches) -> list[tuple]:
    return [row for each in batches for row in zip(*(each[name].to_pylist() for name in COLUMNS), strict=True)]


def make(new_broker, directory: Path, cluster: SparkCluster | None = None) -> World:
    broker = new_broker(config={"offsets.topic.num.partitions": "1"})
    broker.start()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for future in admin.create_topics([NewTopic(SOURCE, PARTITIONS, 1), NewTopic(TARGET, PARTITIONS, 1)]).values():
        future.result(60)
    return World(broker, directory, cluster)


def run(world: World, victims, rounds: int, chance: random.Random) -> Counter[str]:
    killed: Counter[str] = Counter()
    try:
        world.start()
        for number in range(rounds):
            seen = world.replayed_count()
            world.produce()
            world.wait_for_progress(seen)
            time.sleep(chance.uniform(0, 1.5))
            victim = world.kill(chance.choice(victims) if rounds > len(victims) else victims[number], chance)
            print(f"round {number}: {victim} killed, {world.lake_count()} archived, {world.replayed_count()} replayed")
            killed[victim] += 1
            world.start()
        world.finish()
        original = world.rows(SOURCE)
        assert sum(map(len, original.values())) == rounds * RECORDS_PER_ROUND
        assert world.lake_rows() == original, f"seed={SEED}"
        assert world.rows(TARGET) == original, f"seed={SEED}"
    finally:
        world.stop()
    return killed


def test_a_replay_is_the_original_after_two_kills(new_broker, tmp_path):
    run(make(new_broker, tmp_path), ("broker", "driver"), 2, random.Random(SEED))


@pytest.mark.long
@pytest.mark.timeout(300 + ROUNDS * 240)
def test_a_replay_is_the_original_whoever_dies(new_broker, tmp_path):
    print(f"seed={SEED}")
    with SparkCluster(tmp_path) as cluster:
        world = make(new_broker, tmp_path, cluster)
        killed = run(world, ("driver", "executor", "task", "broker"), ROUNDS, random.Random(SEED))
    world.broker.stop()
    figures.note("R29, archive and replay, killed", ", ".join(f"{who} {n}" for who, n in sorted(killed.items())))
