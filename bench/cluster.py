"""Three brokers against three of Kafka's: every record on all of them before it is acknowledged.

    python -m bench.cluster [--rounds N] [--quick]

Part of `make bench`. The load generators are those of the single broker.
"""

import argparse
import tempfile
from contextlib import closing
from pathlib import Path

from rich.console import Console

from bench import report
from bench.ceiling import Ceiling
from bench.clusters import BrokerCluster, KafkaCluster, PenstockCluster
from bench.java_load import JavaLoad
from bench.page_cache import FullPageCache
from bench.workloads import FULL, QUICK, WORKLOADS, measure, warm_up
from penstock.base.build import full_version

NAMES = (
    "1 KB, 12 partitions",
    "1 KB, the producer's default batches",
    "1,000 records/s, to a consumer",
    "10,000 records/s, to a consumer",
    "50 producers, one record a request",
    "1 KB, fsync before every answer",
    "50 producers, fsync before every answer",
)

WARM_UPS = 2  # Of each cluster: Kafka's share the work of one broker among three JVMs.


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cluster", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="short workloads")
    parser.add_argument("--only", default="", metavar="TEXT", help="only workloads with TEXT in their name")
    options = parser.parse_args()
    scale = QUICK if options.quick else FULL
    workloads = [workload for workload in WORKLOADS if workload.name in NAMES and options.only in workload.name]
    console, rounds, load = Console(width=140), report.new_rounds(), JavaLoad()
    with tempfile.TemporaryDirectory() as directory, closing(FullPageCache(Path(directory))) as cache:
        place = Path(directory)
        cache.fill()
        ceiling = Ceiling.measure(place)
        console.print(f"Penstock {full_version()}", highlight=False)
        with PenstockCluster(place) as cluster:
            warm_up(cluster, load, scale, times=scale.warm_ups)
        kinds: list[type[BrokerCluster]] = [PenstockCluster, KafkaCluster]
        for number in range(options.rounds):
            for kind in kinds if number % 2 == 0 else kinds[::-1]:
                with kind(place) as cluster:
                    warm_up(cluster, load, scale, times=WARM_UPS)
                    for order, workload in enumerate(workloads):
                        cache.fill()
                        figures = measure(workload, cluster, load, scale, order)
                        values = ", ".join(f"{name} {value:.3g}" for name, value in figures.items())
                        console.print(f"  round {number + 1}, {cluster.name}, {workload.name}: {values}")
                        for figure, value in figures.items():
                            rounds[workload.name][figure][cluster.name].append(value)
                    rounds["memory"]["peak MB"][cluster.name].append(cluster.peak_mb)
    load.close()
    console.print("Three brokers, replication factor 3, acks=all, min.insync.replicas=2")
    report.print_table(console, rounds, ceiling, PenstockCluster.name, KafkaCluster.name)


if __name__ == "__main__":
    main()
