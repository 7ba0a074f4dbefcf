"""What is measured: each workload runs on a stage and gives figures."""

import itertools
import statistics
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

from bench.brokers import Broker
from bench.java_load import JavaLoad
from bench.raw_load import RawClient, produce_frame
from bench.rdkafka_load import RdkafkaLoad
from bench.server import Server
from bench.waiting_load import deliver_to_waiting

Figures = dict[str, float]

BATCH_SIZE = "131072"  # The default of 16 KB is for latency; whoever wants throughput sets this first.
TAIL_MB_PER_S = 20  # Far below what either broker can take: the consumer is at the tail all the time.


class Scale(NamedTuple):
    """How much of everything: a full run, or a quick one."""

    megabytes: int  # A client's first second is not like the others: it takes more to measure a rate.
    seconds: float
    reads: int  # Of the same records, for a median: one takes a fifth of a second, and a collection a tenth.
    warm_ups: int  # Of the load generator. With two, what was read grew by half from the first round to the third.
    partitions: tuple[int, ...]  # Steps at which the cost of a record is measured.


FULL = Scale(megabytes=1_000, seconds=5.0, reads=5, warm_ups=4, partitions=(1, 10, 100, 1_000))
QUICK = Scale(megabytes=80, seconds=1.5, reads=1, warm_ups=1, partitions=(1, 100))  # Kafka may take a minute for 1,000.


class Stage(NamedTuple):
    """What a workload runs on. The topic is its own."""

    broker: Broker
    load: JavaLoad
    scale: Scale
    topic: str


@dataclass(frozen=True)
class Workload:
    name: str
    run: Callable[["Workload", Stage], Figures]
    record_bytes: int = 1000
    partitions: int = 1
    is_synced: bool = False
    compression: str = "none"
    number: int = 0  # Producers, consumers, records a second, or milliseconds of a transaction.
    is_quick: bool = True  # Whether it is part of a quick run.

    def count(self, megabytes: float) -> int:
        """Records that come to so much."""
        return int(megabytes * 1_000_000 / self.record_bytes)


def measure(workload: Workload, broker: Broker, load: JavaLoad, scale: Scale, number: int) -> Figures:
    """One round of it, on a topic of its own."""
    with broker.topic(f"bench-{number}", partitions=workload.partitions, is_synced=workload.is_synced) as topic:
        return workload.run(workload, Stage(broker, load, scale, topic))


def is_lower_better(figure: str) -> bool:
    """Of what is counted by the second, more is better; of time, memory and growth, less."""
    return not figure.endswith("/s")


def _produce_and_consume(workload: Workload, stage: Stage) -> Figures:
    broker, load, scale, topic = stage
    count, gigabytes, cpu = workload.count(scale.megabytes), scale.megabytes / 1000, broker.cpu_laps()
    produced = load.produce(
        broker.bootstrap,
        topic,
        count=count,
        record_bytes=workload.record_bytes,
        compression_type=workload.compression,
        batch_size=BATCH_SIZE,
    )
    produce_cpu_s = cpu.lap_s()
    consumed = [
        load.consume(broker.bootstrap, topic, count=count, record_bytes=workload.record_bytes)
        for _ in range(scale.reads)
    ]
    return {
        "produce MB/s": produced,
        "consume MB/s": statistics.median(consumed),
        "produce CPU s per GB": produce_cpu_s / gigabytes,
        "consume CPU s per GB": cpu.lap_s() / gigabytes / scale.reads,
    }


def _at_once(workload: Workload, stage: Stage) -> Figures:
    """At full speed; a GB goes in and out again."""
    broker, load, scale, topic = stage
    cpu = broker.cpu_laps()
    produced, consumed = load.both(
        broker.bootstrap,
        topic,
        count=workload.count(scale.megabytes),
        record_bytes=workload.record_bytes,
        batch_size=BATCH_SIZE,
    )
    return {
        "produce MB/s": produced,
        "consume MB/s": consumed,
        "CPU s per GB": cpu.lap_s() * 1000 / scale.megabytes,
    }


def _from_tail(workload: Workload, stage: Stage) -> Figures:
    """At a rate that is the same for both brokers, so that their cost is what differs."""
    broker, load, scale, topic = stage
    megabytes, cpu = TAIL_MB_PER_S * scale.seconds, broker.cpu_laps()
    load.both(
        broker.bootstrap,
        topic,
        count=workload.count(megabytes),
        record_bytes=workload.record_bytes,
        rate=workload.count(TAIL_MB_PER_S),
        batch_size=BATCH_SIZE,
    )
    return {"CPU s per GB": cpu.lap_s() * 1000 / megabytes}


def _produce_defaults(workload: Workload, stage: Stage) -> Figures:
    broker, load, scale, topic = stage
    megabytes, cpu = scale.megabytes / (6 if workload.is_synced else 2), broker.cpu_laps()
    produced = load.produce(
        broker.bootstrap, topic, count=workload.count(megabytes), record_bytes=workload.record_bytes
    )
    figure = "synced MB/s" if workload.is_synced else "produce MB/s"
    return {figure: produced, "CPU s per GB": cpu.lap_s() * 1000 / megabytes}


def _transactions(workload: Workload, stage: Stage) -> Figures:
    """In transactions of so many milliseconds: one long one costs little more than none, many short ones do."""
    broker, load, scale, topic = stage
    megabytes, cpu = scale.megabytes / 2, broker.cpu_laps()
    produced = load.produce(
        broker.bootstrap,
        topic,
        count=workload.count(megabytes),
        record_bytes=workload.record_bytes,
        transaction_ms=workload.number,
        batch_size=BATCH_SIZE,
    )
    return {"produce MB/s": produced, "CPU s per GB": cpu.lap_s() * 1000 / megabytes}


def _prebuilt(workload: Workload, stage: Stage) -> Figures:
    """Requests of a megabyte, made once: here the broker is the limit, not the client."""
    broker, _, scale, topic = stage
    requests, records = scale.megabytes, workload.count(1)
    frame = produce_frame(topic, record_bytes=workload.record_bytes, records=records)
    with closing(RawClient(broker.port)) as client:
        cpu = broker.cpu_laps()
        produce_s = client.produce(itertools.repeat(frame, requests), in_flight=5)
        produce_cpu_s = cpu.lap_s()
        consume_s = client.fetch(topic, end=requests * records, bytes_max=1 << 20)
        consume_cpu_s = cpu.lap_s()
    return {
        "produce MB/s": requests / produce_s,
        "consume MB/s": requests / consume_s,
        "produce CPU s per GB": produce_cpu_s * 1000 / requests,
        "consume CPU s per GB": consume_cpu_s * 1000 / requests,
    }


def _rdkafka(workload: Workload, stage: Stage) -> Figures:
    cpu = stage.broker.cpu_laps()
    moved = RdkafkaLoad(stage.broker.port).produce(stage.topic, workload.record_bytes, stage.scale.seconds / 4)
    megabytes = moved.count * workload.record_bytes / 1e6
    return {"produce MB/s": megabytes / moved.seconds, "CPU s per GB": cpu.lap_s() * 1000 / megabytes}


def _round_trips(workload: Workload, stage: Stage) -> Figures:
    broker, load, scale, topic = stage
    trips = load.round_trips(broker.bootstrap, topic, count=int(workload.number * scale.seconds))
    return {"mean ms": trips.mean_ms, "p99 ms": trips.p99_ms, "p99.9 ms": trips.p999_ms}


def _at_rate(workload: Workload, stage: Stage) -> Figures:
    broker, load, scale, topic = stage
    latencies = load.at_rate(broker.bootstrap, topic, workload.number, scale.seconds)
    return {"p50 ms": latencies.p50_ms, "p99 ms": latencies.p99_ms, "p99.9 ms": latencies.p999_ms}


def _small(workload: Workload, stage: Stage) -> Figures:
    broker, load, scale, topic = stage
    cpu = broker.cpu_laps()
    latencies = load.small_requests(broker.bootstrap, topic, workload.number, scale.seconds)
    return {
        "requests/s": latencies.count / latencies.seconds,
        "p99 ms": latencies.p99_ms,
        "CPU µs per request": cpu.lap_s() * 1e6 / latencies.count,
    }


def _waiting(workload: Workload, stage: Stage) -> Figures:
    cpu = stage.broker.cpu_laps()
    delivered = deliver_to_waiting(
        stage.broker.port, stage.topic, consumers=workload.number, seconds=stage.scale.seconds
    )
    return {
        "deliveries/s": delivered.count / delivered.seconds,
        "p50 ms": delivered.p50_ms,
        "p99 ms": delivered.p99_ms,
        "CPU µs per request": cpu.lap_s() * 1e6 / delivered.count,
    }


def warm_up(broker: Broker, load: JavaLoad, scale: Scale, times: int = 1) -> None:
    """Give all JVMs, Kafka's and the load's, the time to compile what they are about to be measured with."""
    for _ in range(times):
        _warm_up_once(broker, load, scale)


def _warm_up_once(broker: Broker, load: JavaLoad, scale: Scale) -> None:
    megabytes = scale.megabytes / 4
    with broker.topic("warm-up") as topic:
        for codec, record_bytes in (("none", 1000), ("none", 100), ("lz4", 1000), ("zstd", 1000)):
            count = int(megabytes * 1_000_000 / record_bytes)
            load.produce(broker.bootstrap, topic, count=count, record_bytes=record_bytes, compression_type=codec)
            for _ in range(scale.reads):
                load.consume(broker.bootstrap, topic, count=count, record_bytes=record_bytes)
        load.small_requests(broker.bootstrap, topic, 50, scale.seconds)
        load.at_rate(broker.bootstrap, topic, 1_000, scale.seconds / 2)


def start(server: Server) -> Figures:
    """Of a server that has just been started: how long that took, and what it holds with nothing to do."""
    time.sleep(1)
    return {"start s": server.start_s, "idle MB": server.process.resident_mb}


WORKLOADS = [
    Workload("1 KB, 1 partition", _produce_and_consume),
    Workload("1 KB, 12 partitions", _produce_and_consume, partitions=12, is_quick=False),
    Workload("100 B, 1 partition", _produce_and_consume, record_bytes=100),
    Workload("100 B, 12 partitions", _produce_and_consume, record_bytes=100, partitions=12, is_quick=False),
    Workload("1 KB, 1 partition, read at the tail", _from_tail, is_quick=False),
    Workload("1 KB, 12 partitions, read at the tail", _from_tail, partitions=12, is_quick=False),
    Workload("100 B, 1 partition, read at the tail", _from_tail, record_bytes=100, is_quick=False),
    Workload("100 B, 12 partitions, read at the tail", _from_tail, record_bytes=100, partitions=12, is_quick=False),
    Workload("1 KB, 1 partition, written and read at once", _at_once),
    Workload("1 KB, 12 partitions, written and read at once", _at_once, partitions=12, is_quick=False),
    Workload("1 KB, the producer's default batches", _produce_defaults),
    Workload("1 KB, lz4", _produce_and_consume, compression="lz4", is_quick=False),
    Workload("1 KB, zstd", _produce_and_consume, compression="zstd", is_quick=False),
    Workload("1 KB, fsync before every answer", _produce_defaults, is_synced=True),
    Workload("1 KB, transactions of 100 ms", _transactions, number=100),
    Workload("1 KB, 12 partitions, transactions of 10 ms", _transactions, partitions=12, number=10, is_quick=False),
    Workload("1 KB, librdkafka", _rdkafka),
    Workload("1 KB, prebuilt requests of 1 MB", _prebuilt),
    Workload("one record at a time, to a consumer", _round_trips, record_bytes=100, number=500),
    Workload("1,000 records/s, to a consumer", _at_rate, record_bytes=100, number=1_000),
    Workload("10,000 records/s, to a consumer", _at_rate, record_bytes=100, number=10_000),
    Workload("50 producers, one record a request", _small, record_bytes=100, number=50),
    Workload("50 producers, fsync before every answer", _small, record_bytes=100, number=50, is_synced=True),
    Workload(
        "50 producers, 12 partitions, fsync",
        _small,
        record_bytes=100,
        partitions=12,
        number=50,
        is_synced=True,
        is_quick=False,
    ),
    Workload("500 consumers waiting", _waiting, record_bytes=100, number=500),
]
