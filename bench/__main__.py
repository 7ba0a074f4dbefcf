"""`make bench`: Penstock and its peers on this machine, one after another, under the same load, in interleaved rounds.

make bench                  three rounds
make bench QUICK=1          one short round
python -m bench --only "50 producers" --rounds 9
"""

import argparse
import os
import platform
import sys
import tempfile
from contextlib import closing, nullcontext
from pathlib import Path

from rich.console import Console

from bench import report
from bench.brokers import Kafka, Penstock
from bench.ceiling import Ceiling
from bench.growth import GROWTH_WORKLOADS
from bench.java_load import JavaLoad
from bench.page_cache import FullPageCache
from bench.peer_workloads import PEER_WORKLOADS
from bench.run import Run
from bench.workloads import FULL, QUICK, WORKLOADS
from compat.parts.cache import PartMissing
from penstock.base.build import full_version

ROUNDS = 3
OUT = Path(__file__).parent / "out"


def main() -> int:
    options = _options()
    console = Console(width=140)
    workloads = [
        workload
        for workload in WORKLOADS + GROWTH_WORKLOADS
        if options.only in workload.name and (workload.is_quick or not options.quick or options.only)
    ]
    synced = [workload for workload in workloads if workload.is_synced]
    peer_workloads = [workload for workload in PEER_WORKLOADS if options.only in workload.name]
    try:
        load = JavaLoad()
    except PartMissing as missing:
        console.print(f"[red]Apache Kafka and its tools cannot be had here: {missing}")
        return 1
    with (
        tempfile.TemporaryDirectory() as directory,
        nullcontext() if options.quick else closing(FullPageCache(Path(directory))) as cache,
    ):
        run = Run(console, Path(directory), cache, QUICK if options.quick else FULL)
        if cache:
            cache.fill()
        ceiling = Ceiling.measure(run.place)
        console.print(f"This machine's limits: {ceiling}")
        console.print(f"Penstock {full_version()}", highlight=False)
        if workloads:
            run.warm_up_load(load)
        for number in range(1 if options.quick else options.rounds):
            if workloads:
                run.compare_with_kafka(workloads, load, number)
            if synced and not options.quick:
                run.measure_with_journal(synced, load, number)
            if peer_workloads:
                run.compare_with_peers(peer_workloads, number)
    load.close()
    if workloads:
        report.print_table(console, run.rounds, ceiling, Penstock.name, Kafka.name)
    if peer_workloads:
        report.print_peers(console, run.peers, Penstock.name)
    report.write(run.rounds, run.peers, ceiling, _machine(), OUT)
    (OUT / "bench.md").write_text(report.markdown(run.rounds, ceiling, Penstock.name, Kafka.name))
    console.print(f"All figures and the pictures are in {OUT.relative_to(Path.cwd())}/")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", default=bool(os.environ.get("QUICK")), help="one short round")
    parser.add_argument("--only", default="", metavar="TEXT", help="only workloads with TEXT in their name")
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help="more of them, for what differs most")
    return parser.parse_args()


def _machine() -> dict[str, str]:
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        "processors": str(os.cpu_count()),
        "memory GiB": f"{pages * size / 2**30:.0f}",
        "system": platform.system(),
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    sys.exit(main())
