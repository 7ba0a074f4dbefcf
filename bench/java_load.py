"""The load generators in Java: Kafka's own performance tools, and ours for what those do not measure.

One JVM consumes and one does the rest, against all brokers in turn, so that each broker meets compiled code.
"""

import random
import string
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Self

from bench.latencies import Latencies
from bench.process import prompt_timers
from compat.kafka_tools import CONSUMER_PERFORMANCE, PRODUCER_PERFORMANCE, KafkaTools
from compat.parts import java

END_TO_END_LATENCY = "org.apache.kafka.tools.EndToEndLatency"
LOAD_JVM = ("-Xmx2g", "-XX:+UseG1GC")
BYTES_PER_MB = 1_000_000
PAYLOADS = 10_000  # So many that a batch of 128 KB hardly has one twice, which codecs would make the most of.


class RoundTrips(NamedTuple):
    """What EndToEndLatency prints; its percentiles are whole milliseconds, too coarse for a median."""

    mean_ms: float
    p99_ms: float
    p999_ms: float

    @classmethod
    def parse(cls, out: str) -> Self:
        # Avg latency: 1.2345 ms
        # Percentiles: 50th = 1, 99th = 2, 99.9th = 5
        mean = out.rpartition("Avg latency:")[2].split()[0]
        parts = dict(part.strip().split(" = ") for part in out.rpartition("Percentiles:")[2].strip().split(","))
        return cls(float(mean), *(float(parts[name]) for name in ("99th", "99.9th")))


class JavaLoad:
    def __init__(self) -> None:
        with prompt_timers():
            self._tools = KafkaTools("", java.program("ToolServer", LOAD_JVM))
            self._consumer = KafkaTools("", java.program("ToolServer", LOAD_JVM))
        self._payloads = tempfile.TemporaryDirectory(prefix="payloads-")

    def close(self) -> None:
        self._payloads.cleanup()
        self._tools.close()
        self._consumer.close()

    def produce(
        self,
        bootstrap: str,
        topic: str,
        *,
        count: int,
        record_bytes: int,
        rate: int = -1,
        transaction_ms: int = 0,
        **settings: str,
    ) -> float:
        """MB/s, from the first record to the last answer; at most `rate` records a second, if one is given.

        With `transaction_ms`, in transactions that are committed after so long each.
        """
        properties = {"bootstrap.servers": bootstrap, "acks": "all"}
        properties |= {name.replace("_", "."): value for name, value in settings.items()}
        options = ["--topic", topic, "--num-records", str(count), "--payload-file", str(self._payload(record_bytes))]
        options += ["--throughput", str(rate), "--producer-props", *(f"{k}={v}" for k, v in properties.items())]
        if transaction_ms:
            options += ["--transactional-id", f"bench-{topic}", "--transaction-duration-ms", str(transaction_ms)]
        # 1000 records sent, 500.0 records/sec (0.48 MB/sec), 1.0 ms avg latency, ...
        last = _output(self._tools, PRODUCER_PERFORMANCE, *options).strip().splitlines()[-1]
        sent, per_s = last.split(",")[:2]
        check_count(int(sent.split()[0]), count, last)
        return float(per_s.split()[0]) * record_bytes / BYTES_PER_MB

    def consume(self, bootstrap: str, topic: str, *, count: int, record_bytes: int) -> float:
        """MB/s of reading a topic from its start, without the time that joining the group takes."""
        options = ["--bootstrap-server", bootstrap, "--topic", topic, "--num-records", str(count)]
        options += ["--timeout", "60000", "--hide-header"]
        # start, end, MB, MB/s, records, records/s, rebalance ms, fetch ms, fetch MB/s, fetch records/s
        last = _output(self._consumer, CONSUMER_PERFORMANCE, *options).strip().splitlines()[-1]
        fields = last.split(", ")
        check_count(int(fields[4]), count, last)
        return float(fields[9]) * record_bytes / BYTES_PER_MB

    def both(
        self, bootstrap: str, topic: str, *, count: int, record_bytes: int, rate: int = -1, **settings: str
    ) -> tuple[float, float]:
        """MB/s of `produce` and of `consume`, begun at the same time."""
        with ThreadPoolExecutor(1) as pool:
            consumed = pool.submit(self.consume, bootstrap, topic, count=count, record_bytes=record_bytes)
            produced = self.produce(bootstrap, topic, count=count, record_bytes=record_bytes, rate=rate, **settings)
            return produced, consumed.result()

    def round_trips(self, bootstrap: str, topic: str, count: int) -> RoundTrips:
        """One record at a time: sent, acknowledged, and read by a consumer."""
        options = ["--bootstrap-server", bootstrap, "--topic", topic, "--num-records", str(count)]
        options += ["--producer-acks", "all", "--record-size", "100"]
        return RoundTrips.parse(_output(self._tools, END_TO_END_LATENCY, *options))

    def small_requests(self, bootstrap: str, topic: str, producers: int, seconds: float) -> Latencies:
        """Each producer sends one record and waits for its answer."""
        return self._latencies("small", bootstrap, topic, producers, seconds)

    def at_rate(self, bootstrap: str, topic: str, rate: int, seconds: float) -> Latencies:
        """Records at a steady rate, to a consumer that waits for them."""
        return self._latencies("latency", bootstrap, topic, rate, seconds)

    def _payload(self, record_bytes: int) -> Path:
        """Records to choose from: to make up each letter of each takes ProducerPerformance longer than to send it."""
        path = Path(self._payloads.name, str(record_bytes))
        if not path.exists():
            letters = random.Random(record_bytes).choices(string.ascii_uppercase, k=PAYLOADS * record_bytes)
            lines = ("".join(letters[start : start + record_bytes]) for start in range(0, len(letters), record_bytes))
            path.write_text("\n".join(lines))
        return path

    def _latencies(self, mode: str, bootstrap: str, topic: str, number: int, seconds: float) -> Latencies:
        out = _output(self._tools, "Load", mode, bootstrap, topic, str(number), str(seconds))
        count, elapsed, *percentiles_us = out.split()
        return Latencies(int(count), float(elapsed), *(float(value) / 1000 for value in percentiles_us))


def _output(tools: KafkaTools, tool: str, *arguments: str) -> str:
    result = tools.run_offline(tool, *arguments)
    if result.exit_code != 0:
        raise RuntimeError(f"{tool} {' '.join(arguments)}: {result}")
    return result.out


def check_count(count: int, expected: int, line: str) -> None:
    """The tools print a record's error, leave it out of the count, and end as if all were well."""
    if count < expected:
        raise RuntimeError(f"{expected - count} of {expected} records failed: {line}")
