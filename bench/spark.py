"""`python -m bench.spark`: read a topic of Penstock through `format("penstock")` and through Spark's own connector.

The same query on the same topic, in turn; a first round is not counted, since the JVM compiles during it. Records are
of equal size, and of sizes between half and one and a half of it.

python -m bench.spark                     10 million of 100 bytes, 2 million of 1 KB
python -m bench.spark --records 1000000   as many of each
"""

import argparse
import random
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from bench.brokers import Penstock
from bench.raw_load import PRODUCE_VERSION, RawClient, _frame
from penstock.server.api import ApiKey
from penstock.spark import session
from penstock.wire.batch import Record, build_batch
from penstock.wire.codec import Struct
from spark.conftest import connector_jars

PARTITIONS = 4
BATCH_BYTES = 128 << 10  # As in `make bench`.
ROUNDS = 3
QUERY = ["count(*)", "sum(length(value))", "max(offset)", "max(timestamp)"]


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
    rounds = topic.records // (in_batch * PARTITIONS)
    with closing(RawClient(broker.port)) as client:
        for partition in range(PARTITIONS):
            data = [Struct(name=topic.name, partition_data=[Struct(index=partition, records=batch)])]
            request = Struct(transactional_id=None, acks=-1, timeout_ms=30_000, topic_data=data)
            client.produce([_frame(ApiKey.PRODUCE, PRODUCE_VERSION, request)] * rounds, in_flight=5)
    return rounds * in_batch * PARTITIONS


def read(spark: Any, format: str, broker: Penstock, topic: Topic) -> tuple[float, Any]:
    reader = spark.read.format(format).option("kafka.bootstrap.servers", broker.bootstrap)
    frame = reader.option("subscribe", topic.name).load()
    start = time.perf_counter()
    (row,) = frame.selectExpr(*QUERY).collect()
    return time.perf_counter() - start, row


def compare(spark: Any, broker: Penstock, topic: Topic) -> None:
    with broker.topic(topic.name, partitions=PARTITIONS):
        count = fill(broker, topic)
        rates: dict[str, list[float]] = {"penstock": [], "kafka": []}
        for number in range(ROUNDS + 1):
            answers = set()
            for format in sorted(rates, reverse=bool(number % 2)):
                elapsed_s, answer = read(spark, format, broker, topic)
                answers.add(answer)
                if number:
                    rates[format].append(count / elapsed_s)
            assert len(answers) == 1, answers
    ours, theirs = (sorted(rates[format])[ROUNDS // 2] for format in ("penstock", "kafka"))
    print(f"{topic.name:20} {count:,} records: penstock {ours:,.0f}/s, kafka {theirs:,.0f}/s, {ours / theirs:.2f}x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, help="instead of 10 million and 2 million")
    parser.add_argument("--only", default="", help="topics whose name has this in it, such as 1000-bytes")
    options = parser.parse_args()
    topics = [
        Topic(record_bytes, options.records or records, is_mixed)
        for record_bytes, records in ((100, 10_000_000), (1000, 2_000_000))
        for is_mixed in (False, True)
    ]
    config = {
        "spark.jars": ",".join(map(str, connector_jars())),
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    with tempfile.TemporaryDirectory() as directory, Penstock(Path(directory)) as broker:
        spark = session(master="local[2]", config=config)
        spark.sparkContext.setLogLevel("ERROR")
        for topic in topics:
            if options.only in topic.name:
                compare(spark, broker, topic)
        spark.stop()


if __name__ == "__main__":
    main()
