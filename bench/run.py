"""One run of the benchmarks: every server in turn, and what was seen of it."""

from pathlib import Path

from rich.console import Console

from bench import peer_workloads, report
from bench.brokers import Broker, Kafka, Penstock, PenstockWithJournal
from bench.java_load import JavaLoad
from bench.page_cache import FullPageCache
from bench.peer_workloads import PEERS, Peer, PeerWorkload
from bench.server import Server
from bench.workloads import Figures, Scale, Workload, measure, start, warm_up

START_AND_MEMORY = "start and memory"


class Run:
    def __init__(self, console: Console, place: Path, cache: FullPageCache | None, scale: Scale) -> None:
        """`cache`: who keeps memory full. Without it a run is quicker, and its figures are worse."""
        self._console = console
        self._cache = cache
        self.place = place
        self._scale = scale
        self.rounds = report.new_rounds()
        self.peers = report.PeerRounds()

    def warm_up_load(self, load: JavaLoad) -> None:
        """Have the load generator compiled before anyone is measured: whoever came first would pay for it."""
        with Penstock(self.place) as broker:
            warm_up(broker, load, self._scale, times=self._scale.warm_ups)

    def compare_with_kafka(self, workloads: list[Workload], load: JavaLoad, number: int) -> None:
        kinds: list[type[Broker]] = [Penstock, Kafka] if number % 2 == 0 else [Kafka, Penstock]
        for kind in kinds:
            with kind(self.place) as broker:
                self._begin(self.rounds, broker, number)
                warm_up(broker, load, self._scale)
                for order, workload in enumerate(workloads):
                    if self._cache:
                        self._cache.fill()
                    figures = measure(workload, broker, load, self._scale, order)
                    self._note(self.rounds, workload.name, broker, figures, number)
                _add(self.rounds, START_AND_MEMORY, broker.name, {"peak MB": broker.process.peak_mb})

    def measure_with_journal(self, workloads: list[Workload], load: JavaLoad, number: int) -> None:
        """Those that are synced once more, beside what Kafka has shown in this round: for it nothing is different."""
        with PenstockWithJournal(self.place) as broker:
            warm_up(broker, load, self._scale)
            for order, workload in enumerate(workloads):
                if self._cache:
                    self._cache.fill()
                figures = measure(workload, broker, load, self._scale, order)
                name = f"{workload.name}, with a journal"
                self._note(self.rounds, name, broker, figures, number)
                for figure in figures:
                    self.rounds[name][figure][Kafka.name] = self.rounds[workload.name][figure][Kafka.name]

    def compare_with_peers(self, workloads: list[PeerWorkload], number: int) -> None:
        """A peer that cannot be had, or fails, is named in the report; the others go on."""
        first = number % len(PEERS)
        for peer in PEERS[first:] + PEERS[:first]:
            if peer.server.name in self.peers.missing:
                continue
            try:
                self._measure_peer(peer, workloads, number)
            except Exception as error:
                self.peers.missing[peer.server.name] = f"{type(error).__name__}: {error}"

    def _measure_peer(self, peer: Peer, workloads: list[PeerWorkload], number: int) -> None:
        rounds = self.peers.rounds
        with peer.server(self.place) as server:
            self._begin(rounds, server, number)
            self.peers.legend[server.name] = peer.legend(server)
            load = peer.load(server.port)
            for order, workload in enumerate(workloads):
                if self._cache:
                    self._cache.fill()
                figures = peer_workloads.measure(workload, server, load, self._scale, order)
                self._note(rounds, workload.name, server, figures, number)
            _add(rounds, START_AND_MEMORY, server.name, {"peak MB": server.process.peak_mb})

    def _begin(self, rounds: report.Rounds, server: Server, number: int) -> None:
        if number == 0:
            self._console.print(f"{server.name}: {' '.join(map(_neutral, server.command()))}", highlight=False)
        _add(rounds, START_AND_MEMORY, server.name, start(server))

    def _note(self, rounds: report.Rounds, workload: str, server: Server, figures: Figures, number: int) -> None:
        values = ", ".join(f"{name} {value:.3g}" for name, value in figures.items())
        self._console.print(f"  round {number + 1}, {server.name}, {workload}: {values}", highlight=False)
        _add(rounds, workload, server.name, figures)


def _add(rounds: report.Rounds, workload: str, server: str, figures: Figures) -> None:
    for figure, value in figures.items():
        rounds[workload][figure][server].append(value)


def _neutral(word: str) -> str:
    """A word of a command line without this machine's folders."""
    return word if len(word) < 120 and not word.startswith("/") else f".../{Path(word.split(':')[0]).name}"
