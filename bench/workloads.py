"""What is measured: each workload takes a broker and gives figures."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from bench.brokers import Broker
from bench.java_load import JavaLoad
from bench.raw_load import RawClient
from bench.rdkafka_load import RdkafkaLoad
from bench.server import Server
from bench.waiting_load import deliver_to_waiting

Figures = dict[str, float]

# Endings of their names; of all others, more is better.
LOWER_IS_BETTER = ("ms", "CPU s per GB", "CPU µs per request", "start s", "idle MB", "peak MB")


class Scale(NamedTuple):
    """How much of everything: a full run, or a quick one."""

    megabytes: int
    seconds: float


FULL = Scale(megabytes=500, seconds=8.0)
QUICK = Scale(megabytes=80, seconds=1.5)


@dataclass(frozen=True)
class Workload:
    name: str
    run: Callable[["Workload", Broker, JavaLoad, Scale, str], Figures]
    record_bytes: int = 1000
    partitions: int = 1
    is_synced: bool = False
    compression: str = "none"
    number: int = 0  # Producers, consumers or records a second.


def measure(workload: Workload, broker: Broker, load: JavaLoad, scale: Scale, number: int) -> Figures:
    """One round of it, on a topic of its own."""
    topic = f"bench-{number}"
    broker.create_topic(topic, partitions=workload.partitions, is_synced=workload.is_synced)
    try:
        return workload.run(workload, broker, load, scale, topic)
    finally:
        broker.delete_topic(topic)


def _produce_and_consume(workload: Workload, broker: Broker, load: JavaLoad, scale: Scale, topic: str) -> Figures:
    count = scale.megabytes * 1_000_000 // workload.record_bytes
    gigabytes = scale.megabytes / 1000
    cpu_s = broker.process.cpu_s
    produced = load.produce(
        broker.bootstrap,
        topic,
        count=count,
        record_bytes=workload.record_bytes,
        compression_type=workload.compression,
        batch_size="131072",  # The default of 16 KB is for latency; whoever wants throughput sets this first.
    )
    produce_cpu_s = broker.process.cpu_s - cpu_s
    cpu_s = broker.process.cpu_s
    consumed = load.consume(broker.bootstrap, topic, count=count, record_bytes=workload.record_bytes)
    consume_cpu_s = broker.process.cpu_s - cpu_s
    return {
        "produce MB/s": produced,
        "consume MB/s": consumed,
        "produce CPU s per GB": produce_cpu_s / gigabytes,
        "consume CPU s per GB": consume_cpu_s / gigabytes,
    }


def _produce_defaults(workload: Workload, broker: Broker, load: JavaLoad, scale: Scale, topic: str) -> Figures:
    count = scale.megabytes * 1_000_000 // workload.record_bytes // 2
    cpu_s = broker.process.cpu_s
    produced = load.produce(broker.bootstrap, topic, count=count, record_bytes=workload.record_bytes)
    return {"MB/s": produced, "CPU s per GB": (broker.process.cpu_s - cpu_s) * 2000 / scale.megabytes}


def _prebuilt(workload: Workload, broker: Broker, load: JavaLoad, scale: Scale, topic: str) -> Figures:
    """Requests of a megabyte, made once: here the broker is the limit, not the client."""
    client = RawClient(broker.port)
    requests, records = scale.megabytes, 1_000_000 // workload.record_bytes
    cpu_s = broker.process.cpu_s
    produce_s = client.produce(topic, workload.record_bytes, records, requests, in_flight=5)
    produce_cpu_s = broker.process.cpu_s - cpu_s
    consume_s = client.fetch(topic, requests * 1_000_000, 1 << 20)
    client.close()
    return {
        "produce MB/s": requests / produce_s,
        "consume MB/s": requests / consume_s,
        "produce CPU s per GB": produce_cpu_s * 1000 / requests,
        "consume CPU s per GB": (broker.process.cpu_s - cpu_s - produce_cpu_s) * 1000 / requests,
    }


def _rdkafka(workload: Workload, broker: Broker, load: JavaLoad, scale: Scale, topic: str) -> Figures:
    cpu_s = broker.process.cpu_s
    moved = RdkafkaLoad(broker.port).produce(topic, workload.record_bytes, scale.seconds / 4)
    megabytes = moved.count * workload.record_bytes / 1e6
    return {"MB/s": megabytes / moved.seconds, "CPU s per GB": (broker.process.cpu_s - cpu_s) * 1000 / megabytes}


def _at_rate(workload: Workload, broker: Broker, load: JavaLoad, scale: Scale, topic: str) -> Figures:
    latencies = load.at_rate(broker.bootstrap, topic, workload.number, scale.seconds)
    return {"p50 ms": latencies.p50_ms, "p99 ms": latencies.p99_ms, "p99.9 ms": latencies.p999_ms}


def _small(workload: Workload, broker: Broker, load: JavaLoad, scale: Scale, topic: str) -> Figures:
    cpu_s = broker.process.cpu_s
    latencies = load.small_requests(broker.bootstrap, topic, workload.number, scale.seconds)
    cpu_s = broker.process.cpu_s - cpu_s
    return {
        "requests/s": latencies.count / latencies.seconds,
        "p99 ms": latencies.p99_ms,
        "CPU µs per request": cpu_s * 1e6 / latencies.count,
    }


def _waiting(workload: Workload, broker: Broker, load: JavaLoad, scale: Scale, topic: str) -> Figures:
    cpu_s = broker.process.cpu_s
    delivered = deliver_to_waiting(broker.port, topic, consumers=workload.number, seconds=scale.seconds)
    cpu_s = broker.process.cpu_s - cpu_s
    return {
        "p50 ms": delivered.p50_ms,
        "p99 ms": delivered.p99_ms,
        "CPU µs per request": cpu_s * 1e6 / delivered.count,
    }


def warm_up(broker: Broker, load: JavaLoad, scale: Scale) -> None:
    """Give both JVMs, Kafka's and the load's, the time to compile what they are about to be measured with."""
    topic = "warm-up"
    broker.create_topic(topic)
    count = scale.megabytes * 1000 // 4
    load.produce(broker.bootstrap, topic, count=count, record_bytes=1000)
    load.consume(broker.bootstrap, topic, count=count, record_bytes=1000)
    load.small_requests(broker.bootstrap, topic, 50, scale.seconds)
    broker.delete_topic(topic)


def start(server: Server) -> Figures:
    """Of a server that has just been started: how long that took, and what it holds with nothing to do."""
    time.sleep(1)
    return {"start s": server.start_s, "idle MB": server.process.resident_mb}


WORKLOADS = [
    Workload("1 KB, 1 partition", _produce_and_consume),
    Workload("1 KB, 12 partitions", _produce_and_consume, partitions=12),
    Workload("100 B, 1 partition", _produce_and_consume, record_bytes=100),
    Workload("100 B, 12 partitions", _produce_and_consume, record_bytes=100, partitions=12),
    Workload("1 KB, the producer's default batches", _produce_defaults),
    Workload("1 KB, lz4", _produce_and_consume, compression="lz4"),
    Workload("1 KB, zstd", _produce_and_consume, compression="zstd"),
    Workload("1 KB, fsync before every answer", _produce_defaults, is_synced=True),
    Workload("1 KB, librdkafka", _rdkafka),
    Workload("1 KB, prebuilt requests of 1 MB", _prebuilt),
    Workload("1,000 records/s, to a consumer", _at_rate, number=1_000),
    Workload("10,000 records/s, to a consumer", _at_rate, number=10_000),
    Workload("50 producers, one record a request", _small, record_bytes=100, number=50),
    Workload("500 consumers waiting", _waiting, record_bytes=100, number=500),
    Workload("1 KB, 100 partitions", _produce_and_consume, partitions=100),
    Workload("1 KB, 1,000 partitions", _produce_and_consume, partitions=1000),
]
