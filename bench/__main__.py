"""`make bench`: the broker's hot paths beside the machine's own limits, in rounds, as ratios and CPU per unit."""

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from bench import limits
from bench.broker import BrokerProcess
from bench.raw_load import RawClient

ROUNDS = 1 if os.environ.get("QUICK") else 3
OUT = Path(__file__).parent / "out"


class Workload(NamedTuple):
    name: str
    durability: str
    record_bytes: int
    records: int
    requests: int
    in_flight: int


WORKLOADS = [
    Workload("produce 1 KB, 1 MB batches, os", "os", 1024, 970, 1000, 5),
    Workload("produce 100 B, 1 MB batches, os", "os", 100, 9000, 1000, 5),
    Workload("produce 1 KB, 1 MB batches, fsync", "fsync", 1024, 970, 300, 5),
    Workload("produce one 100 B record a request, os", "os", 100, 1, 20_000, 5),
    Workload("produce one 100 B record a request, fsync", "fsync", 100, 1, 3_000, 5),
]


class Sample(NamedTuple):
    mb_per_s: float
    requests_per_s: float
    cpu_us_per_request: float
    mb_per_cpu_s: float


def main() -> None:
    console = Console(width=120)
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        ceiling = {
            "loopback MB/s": _median(limits.loopback_mb_per_s),
            "page cache write MB/s": _median(lambda: limits.page_cache_write_mb_per_s(place)),
            "crc32c MB/s": _median(limits.checksum_mb_per_s),
            "fdatasync/s": _median(lambda: limits.syncs_per_s(place)),
        }
        console.print("This machine's limits: " + ", ".join(f"{name} {value:,.0f}" for name, value in ceiling.items()))
        samples: dict[str, list[Sample]] = {workload.name: [] for workload in WORKLOADS}
        samples["fetch 1 MB at a time, page cache"] = []
        starts, resident = [], []
        for number in range(ROUNDS):
            with BrokerProcess(place) as broker:
                starts.append(broker.start_s)
                resident.append(broker.resident_mb)
                client = RawClient(broker.port)
                for workload in WORKLOADS:
                    samples[workload.name].append(_produce(broker, client, workload, number))
                samples["fetch 1 MB at a time, page cache"].append(_fetch(broker, client, number))
                client.close()
    loopback = ceiling["loopback MB/s"]
    table = Table(
        "workload", "MB/s", "share of loopback", "requests/s", "CPU µs/request", "MB per CPU second", "spread"
    )
    for name, rounds in samples.items():
        best = sorted(rounds, key=lambda sample: sample.mb_per_s)[len(rounds) // 2]
        spread = max(sample.mb_per_s for sample in rounds) / max(1e-9, min(sample.mb_per_s for sample in rounds))
        table.add_row(
            name,
            f"{best.mb_per_s:,.1f}",
            f"{best.mb_per_s / loopback:.2f}",
            f"{best.requests_per_s:,.0f}",
            f"{best.cpu_us_per_request:,.0f}",
            f"{best.mb_per_cpu_s:,.0f}",
            f"{spread:.2f}x",
        )
    console.print(table)
    console.print(
        f"Start to open port {statistics.median(starts):.2f} s, {statistics.median(resident):.0f} MB resident"
    )
    OUT.mkdir(exist_ok=True)
    result = {"limits": ceiling, "samples": {name: [s._asdict() for s in rounds] for name, rounds in samples.items()}}
    (OUT / "bench.json").write_text(json.dumps(result, indent=2))


def _produce(broker: BrokerProcess, client: RawClient, workload: Workload, number: int) -> Sample:
    topic = f"{workload.durability}-{workload.record_bytes}-{workload.records}-{number}"
    client.create_topic(topic, workload.durability)
    cpu_s = broker.cpu_s
    elapsed = client.produce(topic, workload.record_bytes, workload.records, workload.requests, workload.in_flight)
    cpu_s = max(broker.cpu_s - cpu_s, 0.01)
    megabytes = workload.record_bytes * workload.records * workload.requests / 1e6
    return Sample(megabytes / elapsed, workload.requests / elapsed, cpu_s * 1e6 / workload.requests, megabytes / cpu_s)


def _fetch(broker: BrokerProcess, client: RawClient, number: int) -> Sample:
    first = WORKLOADS[0]
    topic = f"{first.durability}-{first.record_bytes}-{first.records}-{number}"
    total = first.record_bytes * first.records * first.requests
    cpu_s = broker.cpu_s
    elapsed = client.fetch(topic, total, 1 << 20)
    cpu_s = max(broker.cpu_s - cpu_s, 0.01)
    return Sample(total / 1e6 / elapsed, first.requests / elapsed, cpu_s * 1e6 / first.requests, total / 1e6 / cpu_s)


def _median(measure: Callable[[], float]) -> float:
    return statistics.median(measure() for _ in range(ROUNDS))


if __name__ == "__main__":
    sys.exit(main())
