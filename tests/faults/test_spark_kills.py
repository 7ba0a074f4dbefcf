"""R29: driver, executors, tasks and broker are killed at random; every record of the source is in the sink once.

On a real Spark cluster, a master and two workers. A driver that dies leaves its tasks behind, and so does an executor
whose JVM is killed: the Python processes below it write on until they notice.

PENSTOCK_SPARK_ROUNDS=50 for the whole of it: a round takes about half a minute, most of it Spark's start.
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

from penstock.spark.brokers import Brokers
from penstock.spark.options import LATEST, Isolation
from penstock.spark.plan import OffsetRange
from penstock.spark.reader import Wanted, read
from spark_cluster import SparkCluster

from . import figures
from .broker_process import BrokerProcess

ROUNDS = int(os.environ.get("PENSTOCK_SPARK_ROUNDS", "3"))
RECORDS_PER_ROUND = 200  # Four batches.
SEED = int(os.environ.get("PENSTOCK_SPARK_SEED", "0")) or random.randrange(1 << 30)
SOURCE, TARGET = "source", "target"
VICTIMS = ("driver", "executor", "task", "broker")


class Driver:
    """A process group: its JVM dies with it, its executors live on for a moment."""

    def __init__(self, cluster: SparkCluster, bootstrap: str, directory: Path) -> None:
        script = Path(__file__).parent / "spark_copy.py"
        command = [sys.executable, str(script), cluster.url, bootstrap, SOURCE, TARGET, str(directory / "checkpoint")]
        with (directory / "driver.log").open("ab") as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=output, env=cluster.environment(), start_new_session=True
            )

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        if self.is_alive():
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(60)


def committed(bootstrap: str) -> Counter[bytes]:
    """All records of the sink that a consumer with read_committed gets now."""
    found: Counter[bytes] = Counter()
    with Brokers(bootstrap) as brokers:
        ends = brokers.offsets(dict.fromkeys(brokers.partitions([TARGET]), LATEST), Isolation.READ_COMMITTED)
    for (topic, partition), end in ends.items():
        part = OffsetRange(topic, partition, 0, end)
        for batch in read(Wanted(bootstrap, part, Isolation.READ_COMMITTED, False, True, 60_000)):
            found.update(batch["value"].to_pylist())
    return found


def produce(bootstrap: str, start: int, end: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
    for number in range(start, end):
        producer.produce(SOURCE, b"%d" % number, b"%d" % number)
    assert producer.flush(120) == 0


@pytest.mark.long
@pytest.mark.timeout(300 + ROUNDS * 240)
def test_every_record_once_whoever_dies(new_broker, tmp_path):
    chance = random.Random(SEED)
    print(f"seed={SEED}")
    broker = new_broker(config={"offsets.topic.num.partitions": "1"})
    broker.start()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for future in admin.create_topics([NewTopic(SOURCE, 2, 1), NewTopic(TARGET, 2, 1)]).values():
        future.result(60)
    with SparkCluster(tmp_path) as cluster:
        killed = kill_at_random(cluster, broker, tmp_path, chance)
    broker.stop()
    figures.note("R29, killed", ", ".join(f"{who} {count}" for who, count in sorted(killed.items())))


def kill_at_random(
    cluster: SparkCluster, broker: BrokerProcess, directory: Path, chance: random.Random
) -> Counter[str]:
    """Who was killed how often, when every record is in the sink once."""
    driver = Driver(cluster, broker.bootstrap, directory)
    killed: Counter[str] = Counter()
    seen = 0

    def is_moving() -> bool:
        """Or it has to be helped."""
        return committed(broker.bootstrap).total() > seen or not driver.is_alive()

    try:
        for round_number in range(ROUNDS):
            count = RECORDS_PER_ROUND * (round_number + 1)
            seen = committed(broker.bootstrap).total()
            produce(broker.bootstrap, count - RECORDS_PER_ROUND, count)
            # Somewhere in the work on these: wait for it to begin, then for part of it.
            wait_for(is_moving)
            time.sleep(chance.uniform(0, 1.5))
            victim = chance.choice(VICTIMS)
            print(f"round {round_number}: kill the {victim} at {committed(broker.bootstrap).total()} of {count}")
            if victim == "broker":
                broker.kill()
                time.sleep(chance.uniform(0, 2))
                broker.start()
            elif victim == "driver":
                driver.kill()
            else:
                there = cluster.executors() if victim == "executor" else cluster.tasks()
                try:
                    os.kill(chance.choice(there), signal.SIGKILL)
                except (IndexError, ProcessLookupError):  # Between two of them.
                    victim = f"no {victim}"
            killed[victim] += 1
            if not driver.is_alive():
                driver = Driver(cluster, broker.bootstrap, directory)
        expected = Counter(b"%d" % number for number in range(RECORDS_PER_ROUND * ROUNDS))
        while (seen := committed(broker.bootstrap).total()) < expected.total():
            if not driver.is_alive():
                driver = Driver(cluster, broker.bootstrap, directory)
            wait_for(is_moving)
        found = committed(broker.bootstrap)
        assert found == expected, f"seed={SEED}: missing {expected - found}, too many {found - expected}"
    finally:
        driver.kill()
    return killed


def wait_for(condition, limit_s: float = 240) -> None:
    give_up_at = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.2)
