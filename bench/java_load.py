"""The load generators in Java: Kafka's own performance tools, and ours for what those do not measure.

One JVM runs them all, against all brokers in turn, so that each of them meets compiled code.
"""

from bench.latencies import Latencies
from compat.kafka_tools import CONSUMER_PERFORMANCE, PRODUCER_PERFORMANCE, KafkaTools
from compat.parts import java

END_TO_END_LATENCY = "org.apache.kafka.tools.EndToEndLatency"
LOAD_JVM = ("-Xmx2g", "-XX:+UseG1GC")
BYTES_PER_MB = 1_000_000


class JavaLoad:
    def __init__(self) -> None:
        self._tools = KafkaTools("", java.program("ToolServer", LOAD_JVM))

    def close(self) -> None:
        self._tools.close()

    def produce(self, bootstrap: str, topic: str, *, count: int, record_bytes: int, **settings: str) -> float:
        """MB/s, from the first record to the last answer."""
        properties = {"bootstrap.servers": bootstrap, "acks": "all"}
        properties |= {name.replace("_", "."): value for name, value in settings.items()}
        options = ["--topic", topic, "--num-records", str(count), "--record-size", str(record_bytes)]
        options += ["--throughput", "-1", "--producer-props", *(f"{k}={v}" for k, v in properties.items())]
        # 1000 records sent, 500.0 records/sec (0.48 MB/sec), 1.0 ms avg latency, ...
        last = self._output(PRODUCER_PERFORMANCE, *options).strip().splitlines()[-1]
        sent, rate = last.split(",")[:2]
        assert int(sent.split()[0]) == count, last
        return float(rate.split()[0]) * record_bytes / BYTES_PER_MB

    def consume(self, bootstrap: str, topic: str, *, count: int, record_bytes: int) -> float:
        """MB/s of reading a topic from its start, without the time that joining the group takes."""
        options = ["--bootstrap-server", bootstrap, "--topic", topic, "--num-records", str(count)]
        options += ["--timeout", "60000", "--hide-header"]
        # start, end, MB, MB/s, records, records/s, rebalance ms, fetch ms, fetch MB/s, fetch records/s
        fields = self._output(CONSUMER_PERFORMANCE, *options).strip().splitlines()[-1].split(", ")
        assert int(fields[4]) >= count, fields
        return float(fields[9]) * record_bytes / BYTES_PER_MB

    def round_trips(self, bootstrap: str, topic: str, count: int) -> Latencies:
        """One record at a time, from the producer to the consumer."""
        options = ["--bootstrap-server", bootstrap, "--topic", topic, "--num-records", str(count)]
        out = self._output(END_TO_END_LATENCY, *options, "--producer-acks", "all", "--record-size", "100")
        # Percentiles: 50th = 1, 99th = 2, 99.9th = 5 — whole milliseconds; and "Avg latency: 1.2345 ms".
        parts = dict(part.strip().split(" = ") for part in out.rpartition("Percentiles:")[2].strip().split(","))
        return Latencies(count, 0.0, *(float(parts[name]) for name in ("50th", "99th", "99.9th")))

    def small_requests(self, bootstrap: str, topic: str, producers: int, seconds: float) -> Latencies:
        """Each producer sends one record and waits for its answer."""
        return self._latencies("small", bootstrap, topic, producers, seconds)

    def at_rate(self, bootstrap: str, topic: str, rate: int, seconds: float) -> Latencies:
        """Records at a steady rate, to a consumer that waits for them."""
        return self._latencies("latency", bootstrap, topic, rate, seconds)

    def _latencies(self, mode: str, bootstrap: str, topic: str, number: int, seconds: float) -> Latencies:
        out = self._output("Load", mode, bootstrap, topic, str(number), str(seconds))
        count, elapsed, *percentiles_us = out.split()
        return Latencies(int(count), float(elapsed), *(float(value) / 1000 for value in percentiles_us))

    def _output(self, tool: str, *arguments: str) -> str:
        result = self._tools.run_offline(tool, *arguments)
        if result.exit_code != 0:
            raise RuntimeError(f"{tool} {' '.join(arguments)}: {result}")
        return result.out
