"""Reading topics of Penstock in Spark: by `format("penstock")`, by Spark's own Kafka connector, and as a table.

    python -m bench.spark [--quick] [--records N] [--only TEXT]

Part of `make bench`. The same query on the same topic, in turns; what comes first changes from round to round. Records
are of equal size, and of sizes between half and one and a half of it. CPU is that of Spark's JVM and its Python
processes; the broker's is counted by itself. The table has its history in a lake of Parquet files, made by the archive:
compressed with zstd, as it is by default, and uncompressed. The lakes' sizes are printed, too.
"""

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import crc32c
import numpy as np
from rich.console import Console

from bench import report
from bench.brokers import Penstock
from bench.events import UNIQUE, event
from bench.page_cache import FullPageCache
from bench.process import CpuLaps, ProcessTree
from bench.raw_load import PRODUCE_VERSION, RawClient, _frame
from compat.parts.cache import PartMissing
from penstock.server.api import ApiKey
from penstock.spark import records, session, table
from penstock.spark.lake_store import LakeStore
from penstock.wire.batch import HEADER_BYTES, Record, build_batch
from penstock.wire.codec import Struct
from spark.conftest import connector_jars

PARTITIONS = 4
BATCH_BYTES = 128 << 10  # As in `make bench`.
CRC_END = 21  # Of a batch: what follows is what the checksum is of.
ROUNDS = 3
WARM_UPS = 3  # The JVM compiles during them, for all ways alike: the first reading is four times as slow as the fifth.
WARM_UP_BYTES = 500_000_000
QUICK_PART = 20
QUERY = ["count(*)", "sum(length(value))", "max(offset)", "max(timestamp)"]
OUT = Path(__file__).parent / "out"

SOURCE, CONNECTOR = 'format("penstock")', "Kafka connector"
TABLE, UNCOMPRESSED_TABLE = "table", "table, uncompressed"
FORMATS = {SOURCE: "penstock", CONNECTOR: "kafka"}
COMPRESSIONS = {TABLE: "zstd", UNCOMPRESSED_TABLE: "none"}
ARCHIVED_PER_BATCH = 2_000_000


class Way(NamedTuple):
    """One of those that are compared."""

    name: str
    load: Callable[[], Any]


class Topic(NamedTuple):
    record_bytes: int
    records: int
    is_mixed: bool
    prefix: str = ""

    @property
    def name(self) -> str:
        return f"{self.prefix}{self.record_bytes}-bytes-{'mixed' if self.is_mixed else 'equal'}"


def fill(broker: Penstock, topic: Topic) -> int:
    """How many records it has, which are about as many as it is to have: log events, no two of them the same."""
    chance = random.Random(7)
    in_batch = BATCH_BYTES // topic.record_bytes
    spread = topic.record_bytes // 2 if topic.is_mixed else 0
    now_ms = int(time.time() * 1000)
    batch_records = [
        Record(number, now_ms + number, None, event(chance, topic.record_bytes + chance.randint(-spread, spread)))
        for number in range(in_batch)
    ]
    batch = bytes(build_batch(batch_records, base_offset=0))
    rounds = -(-topic.records // (in_batch * PARTITIONS))
    with closing(RawClient(broker.port)) as client:
        for partition in range(PARTITIONS):
            data = [Struct(name=topic.name, partition_data=[Struct(index=partition, records=batch)])]
            request = Struct(transactional_id=None, acks=-1, timeout_ms=30_000, topic_data=data)
            frame = _frame(ApiKey.PRODUCE, PRODUCE_VERSION, request)
            client.produce(_different(frame, batch, partition, rounds), in_flight=5)
    return rounds * in_batch * PARTITIONS


def _different(frame: bytes, batch: bytes, seed: int, count: int) -> Iterator[bytes]:
    """The request `count` times, each with other digits in its events."""
    start = frame.index(batch)
    # No length or delta in these batches has that byte: they are even numbers below 4,480.
    places = HEADER_BYTES + np.flatnonzero(np.frombuffer(batch, np.uint8)[HEADER_BYTES:] == UNIQUE)
    chance = np.random.default_rng(seed)
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    made = np.frombuffer(frame, np.uint8).copy()
    for _ in range(count):
        made[start + places] = digits[chance.integers(0, 16, len(places), np.uint8)]
        checksum = crc32c.crc32c(made[start + CRC_END : start + len(batch)].tobytes())
        made[start + CRC_END - 4 : start + CRC_END] = np.frombuffer(checksum.to_bytes(4, "big"), np.uint8)
        yield made.tobytes()


class Comparison:
    def __init__(self, spark: Any, broker: Penstock, directory: Path, console: Console) -> None:
        self._spark = spark
        self._broker = broker
        self._directory = directory
        self._console = console
        self.rounds = report.new_rounds()

    def warm_up(self, record_bytes: int, total_bytes: int) -> None:
        # A name of its own: the connector keeps consumers, and their next look for the topic makes it anew.
        topic = Topic(record_bytes, total_bytes // record_bytes, True, prefix="warm-up-")
        with self._broker.topic(topic.name, partitions=PARTITIONS):
            fill(self._broker, topic)
            lakes = self._archived(topic)
            for _ in range(WARM_UPS):
                for way in self._ways(topic, lakes):
                    self._query(way)
        self._remove(lakes)

    def measure(self, topic: Topic) -> None:
        with self._broker.topic(topic.name, partitions=PARTITIONS):
            count = fill(self._broker, topic)
            lakes = self._archived(topic)
            for name, lake in lakes.items():
                self._console.print(f"  {topic.name}, {name}: a lake of {_size_mb(lake):,.0f} MB", highlight=False)
            self._broker.settle()
            for number in range(ROUNDS):
                ways = self._ways(topic, lakes)
                turn = [*ways[number % len(ways) :], *ways[: number % len(ways)]]
                answers = {self._measured(way, topic, count) for way in turn}
                assert len(answers) == 1, f"they read different things: {answers}"
        self._remove(lakes)

    def _ways(self, topic: Topic, lakes: dict[str, Path]) -> list[Way]:
        def load(name: str) -> Any:
            reader = self._spark.read.format(FORMATS[name]).option("kafka.bootstrap.servers", self._broker.bootstrap)
            return reader.option("subscribe", topic.name).load()

        def load_table(name: str) -> Any:
            return table(self._spark, topic.name, lake=str(lakes[name]), bootstrap=self._broker.bootstrap)

        return [
            *(Way(name, partial(load, name)) for name in FORMATS),
            *(Way(name, partial(load_table, name)) for name in lakes),
        ]

    def _archived(self, topic: Topic) -> dict[str, Path]:
        """The lake of each table."""
        return {name: self._archive(topic, compression) for name, compression in COMPRESSIONS.items()}

    def _archive(self, topic: Topic, compression: str) -> Path:
        """All of the topic as it is now, as the archive's pipeline does it."""
        lake = self._directory / f"lake-{compression}"
        frame = records(
            self._spark,
            topic.name,
            lake=str(lake),
            bootstrap=self._broker.bootstrap,
            max_offsets_per_trigger=ARCHIVED_PER_BATCH,
        )
        writer = frame.writeStream.format("penstock-lake").option("path", str(lake))
        writer = writer.option("compression", compression)
        writer = writer.option("checkpointLocation", str(lake / "checkpoint")).trigger(availableNow=True)
        writer.start().awaitTermination()
        return lake

    def _remove(self, lakes: dict[str, Path]) -> None:
        for lake in lakes.values():
            shutil.rmtree(lake)

    def _measured(self, way: Way, topic: Topic, count: int) -> Any:
        spark_cpu, broker_cpu = CpuLaps(ProcessTree(os.getpid())), self._broker.cpu_laps()
        elapsed_s, answer = self._query(way)
        assert answer[0] == count, f"{answer[0]} rows of {count}"
        figures = {
            "rows/s": count / elapsed_s,
            "CPU µs per row": spark_cpu.lap_s() / count * 1e6,
            "broker's CPU µs per row": broker_cpu.lap_s() / count * 1e6,
        }
        for figure, value in figures.items():
            self.rounds[f"{topic.name}, {count:,}"][figure][way.name].append(value)
        values = ", ".join(f"{name} {value:,.3g}" for name, value in figures.items())
        self._console.print(f"  {topic.name}, {way.name}: {values}", highlight=False)
        return answer

    def _query(self, way: Way) -> tuple[float, Any]:
        start = time.perf_counter()
        (row,) = way.load().selectExpr(*QUERY).collect()
        return time.perf_counter() - start, row


def _size_mb(lake: Path) -> float:
    """Of the files that count: those that were merged stay for a while."""
    return sum((lake / each.path).stat().st_size for each in LakeStore(str(lake)).latest().files) / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__)
    parser.add_argument("--quick", action="store_true", default=bool(os.environ.get("QUICK")), help="fewer records")
    parser.add_argument("--records", type=int, help="instead of 10 million and 2 million")
    parser.add_argument("--only", default="", metavar="TEXT", help="only topics with TEXT in their name")
    options = parser.parse_args()
    console = Console(width=140)
    part = QUICK_PART if options.quick else 1
    topics = [
        Topic(record_bytes, options.records or records // part, is_mixed)
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
    with (
        tempfile.TemporaryDirectory() as name,
        closing(FullPageCache(Path(name))) as cache,
        Penstock(Path(name)) as broker,
    ):
        spark = session(master="local[2]", config=config)
        spark.sparkContext.setLogLevel("ERROR")
        comparison = Comparison(spark, broker, Path(name), console)
        for record_bytes in sorted({topic.record_bytes for topic in topics if options.only in topic.name}):
            comparison.warm_up(record_bytes, WARM_UP_BYTES // part)
        for topic in topics:
            if options.only in topic.name:
                cache.fill()
                comparison.measure(topic)
        spark.stop()
    console.print(f"Spark reads a topic of Penstock, {PARTITIONS} partitions, local[2]")
    report.print_comparison(console, comparison.rounds, SOURCE, CONNECTOR)
    console.print("The same history as a table: all of it is in the lake, and the topic is asked for what came after")
    for name in COMPRESSIONS:
        report.print_comparison(console, comparison.rounds, name, CONNECTOR)
    OUT.mkdir(exist_ok=True)
    (OUT / "spark.json").write_text(json.dumps(comparison.rounds, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
