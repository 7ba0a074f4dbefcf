"""Reading topics of Penstock in Spark: through `format("penstock")`, and through Spark's own Kafka connector.

    python -m bench.spark [--quick] [--records N] [--only TEXT]

Part of `make bench`. The same query on the same topic, in turns; what comes first changes from round to round. Records
are of equal size, and of sizes between half and one and a half of it. CPU is that of Spark's JVM and its Python
processes; the broker's is counted by itself.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from bench import report
from bench.brokers import Penstock
from bench.process import CpuLaps, ProcessTree
from bench.raw_load import PRODUCE_VERSION, RawClient, _frame
from compat.parts.cache import PartMissing
from penstock.server.api import ApiKey
from penstock.spark import session
from penstock.wire.batch import Record, build_batch
from penstock.wire.codec import Struct
from spark.conftest import connector_jars

PARTITIONS = 4
BATCH_BYTES = 128 << 10  # As in `make bench`.
ROUNDS = 3
WARM_UPS = 3  # The JVM compiles during them.
WARM_UP_RECORDS = 500_000
QUICK_PART = 20
QUERY = ["count(*)", "sum(length(value))", "max(offset)", "max(timestamp)"]
OUT = Path(__file__).parent / "out"

SOURCE, CONNECTOR = "penstock", "kafka"
NAMES = {SOURCE: 'format("penstock")', CONNECTOR: "Kafka connector"}


class Topic(NamedTuple):
    record_bytes: int
    records: int
    is_mixed: bool

    @property
    def name(self) -> str:
        return f"{self.record_bytes}-bytes-{'mixed' if self.is_mixed else 'equal'}"


def fill(broker: Penstock, topic: Topic) -> int:
    """How many records it has, which are about as many as it is to have."""
    chance = random.Random(7)
    in_batch = BATCH_BYTES // topic.record_bytes
    spread = topic.record_bytes // 2 if topic.is_mixed else 0
    records = [
        Record(number, 1_760_000_000_000 + number, None, bytes(topic.record_bytes + chance.randint(-spread, spread)))
        for number in range(in_batch)
    ]
    batch = bytes(build_batch(records, base_offset=0))
    rounds = -(-topic.records // (in_batch * PARTITIONS))
    with closing(RawClient(broker.port)) as client:
        for partition in range(PARTITIONS):
            data = [Struct(name=topic.name, partition_data=[Struct(index=partition, records=batch)])]
            request = Struct(transactional_id=None, acks=-1, timeout_ms=30_000, topic_data=data)
            client.produce([_frame(ApiKey.PRODUCE, PRODUCE_VERSION, request)] * rounds, in_flight=5)
    return rounds * in_batch * PARTITIONS


class Comparison:
    def __init__(self, spark: Any, broker: Penstock, console: Console) -> None:
        self._spark = spark
        self._broker = broker
        self._console = console
        self.rounds = report.new_rounds()

    def warm_up(self, record_bytes: int) -> None:
        topic = Topic(record_bytes, WARM_UP_RECORDS * 100 // record_bytes, True)
        with self._broker.topic(topic.name, partitions=PARTITIONS):
            fill(self._broker, topic)
            for _ in range(WARM_UPS):
                for format in NAMES:
                    self._read(format, topic)

    def measure(self, topic: Topic) -> None:
        with self._broker.topic(topic.name, partitions=PARTITIONS):
            count = fill(self._broker, topic)
            self._broker.settle()
            for number in range(ROUNDS):
                answers = {self._measured(format, topic, count) for format in sorted(NAMES, reverse=number % 2 == 0)}
                assert len(answers) == 1, f"they read different things: {answers}"

    def _measured(self, format: str, topic: Topic, count: int) -> Any:
        spark_cpu, broker_cpu = CpuLaps(ProcessTree(os.getpid())), self._broker.cpu_laps()
        elapsed_s, answer = self._read(format, topic)
        assert answer[0] == count, f"{answer[0]} rows of {count}"
        figures = {
            "rows/s": count / elapsed_s,
            "CPU µs per row": spark_cpu.lap_s() / count * 1e6,
            "broker's CPU µs per row": broker_cpu.lap_s() / count * 1e6,
        }
        for figure, value in figures.items():
            self.rounds[f"{topic.name}, {count:,}"][figure][NAMES[format]].append(value)
        values = ", ".join(f"{name} {value:,.3g}" for name, value in figures.items())
        self._console.print(f"  {topic.name}, {NAMES[format]}: {values}", highlight=False)
        return answer

    def _read(self, format: str, topic: Topic) -> tuple[float, Any]:
        reader = self._spark.read.format(format).option("kafka.bootstrap.servers", self._broker.bootstrap)
        frame = reader.option("subscribe", topic.name).load()
        start = time.perf_counter()
        (row,) = frame.selectExpr(*QUERY).collect()
        return time.perf_counter() - start, row


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__)
    parser.add_argument("--quick", action="store_true", default=bool(os.environ.get("QUICK")), help="fewer records")
    parser.add_argument("--records", type=int, help="instead of 10 million and 2 million")
    parser.add_argument("--only", default="", metavar="TEXT", help="only topics with TEXT in their name")
    options = parser.parse_args()
    console = Console(width=140)
    topics = [
        Topic(record_bytes, options.records or records // (QUICK_PART if options.quick else 1), is_mixed)
        for record_bytes, records in ((100, 10_000_000), (1000, 2_000_000))
        for is_mixed in (False, True)
    ]
    try:
        jars = connector_jars()
    except PartMissing as missing:
        console.print(f"[red]Spark's own Kafka connector cannot be had here: {missing}")
        return 1
    config = {
        "spark.jars": ",".join(map(str, jars)),
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    with tempfile.TemporaryDirectory() as directory, Penstock(Path(directory)) as broker:
        spark = session(master="local[2]", config=config)
        spark.sparkContext.setLogLevel("ERROR")
        comparison = Comparison(spark, broker, console)
        for record_bytes in sorted({topic.record_bytes for topic in topics if options.only in topic.name}):
            comparison.warm_up(record_bytes)
        for topic in topics:
            if options.only in topic.name:
                comparison.measure(topic)
        spark.stop()
    console.print(f"Spark reads a topic of Penstock, {PARTITIONS} partitions, local[2]")
    report.print_comparison(console, comparison.rounds, NAMES[SOURCE], NAMES[CONNECTOR])
    OUT.mkdir(exist_ok=True)
    (OUT / "spark.json").write_text(json.dumps(comparison.rounds, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
