"""Penstock and servers with other protocols, each through its best client in Python."""

import re
from collections.abc import Callable
from importlib.metadata import version
from typing import NamedTuple

from bench.brokers import Penstock
from bench.client_load import ClientLoad, Moved
from bench.nats_load import NatsLoad
from bench.peers.nats import Nats
from bench.peers.rabbitmq import RabbitMq
from bench.peers.redis import Redis
from bench.rdkafka_load import RdkafkaLoad
from bench.redis_load import RedisLoad
from bench.rstream_load import RstreamLoad
from bench.server import Server
from bench.workloads import Figures, Scale


class Peer(NamedTuple):
    server: type[Server]
    version: str  # What stands before it in the server's log.
    load: type[ClientLoad]
    client: str  # Its name on PyPI.
    durability: str  # What is true of a record when it is acknowledged.

    def legend(self, server: Server) -> str:
        found = re.search(self.version + r"([\w.]+)", server.process.log.read_text())
        return f"{found[1] if found else '?'}, client {self.client} {version(self.client)}; {self.durability}"


PEERS = [
    Peer(Penstock, "version='?", RdkafkaLoad, "confluent-kafka", "penstock.durability=os: in the page cache"),
    Peer(Nats, r"Version:\s+", NatsLoad, "nats-py", "file storage, default sync_interval: in the page cache"),
    Peer(RabbitMq, "RabbitMQ ", RstreamLoad, "rstream", "a stream of one replica: in the page cache"),
    Peer(Redis, "version=", RedisLoad, "redis", "appendonly yes, appendfsync everysec: in the page cache"),
]


class PeerWorkload(NamedTuple):
    name: str
    run: Callable[["PeerWorkload", Server, ClientLoad, Scale, str], Figures]
    record_bytes: int = 100
    rate: int = 0


def measure(workload: PeerWorkload, server: Server, load: ClientLoad, scale: Scale, number: int) -> Figures:
    """One round of it, on a stream of its own."""
    stream = f"bench-{number}"
    load.create(stream)
    try:
        return workload.run(workload, server, load, scale, stream)
    finally:
        load.delete(stream)


def _produce_and_consume(
    workload: PeerWorkload, server: Server, load: ClientLoad, scale: Scale, stream: str
) -> Figures:
    cpu_s = [server.process.cpu_s]
    produced = load.produce(stream, workload.record_bytes, scale.seconds / 4)
    cpu_s.append(server.process.cpu_s)
    consumed = load.consume(stream, produced.count, scale.seconds)
    cpu_s.append(server.process.cpu_s)

    def megabytes(moved: Moved) -> float:
        return moved.count * workload.record_bytes / 1e6

    return {
        "produce MB/s": megabytes(produced) / produced.seconds,
        "consume MB/s": megabytes(consumed) / consumed.seconds,
        "produce CPU s per GB": (cpu_s[1] - cpu_s[0]) * 1000 / megabytes(produced),
        "consume CPU s per GB": (cpu_s[2] - cpu_s[1]) * 1000 / megabytes(consumed),
    }


def _at_rate(workload: PeerWorkload, server: Server, load: ClientLoad, scale: Scale, stream: str) -> Figures:
    latencies = load.at_rate(stream, workload.rate, scale.seconds)
    return {"p50 ms": latencies.p50_ms, "p99 ms": latencies.p99_ms, "p99.9 ms": latencies.p999_ms}


PEER_WORKLOADS = [
    PeerWorkload("Python: 1 KB", _produce_and_consume, record_bytes=1000),
    PeerWorkload("Python: 100 B", _produce_and_consume),
    PeerWorkload("Python: 1,000 records/s", _at_rate, rate=1_000),
]
