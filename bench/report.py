"""What a run found: tables of ratios on the terminal and for the docs, all of it as JSON, and a picture a workload."""

import json
import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.ceiling import Ceiling
from bench.workloads import is_lower_better

PICTURE_COLUMNS = 5

Rounds = dict[str, dict[str, dict[str, list[float]]]]  # Workload → figure → broker → one value a round.


def new_rounds() -> Rounds:
    return defaultdict(lambda: defaultdict(lambda: defaultdict(list)))


@dataclass
class PeerRounds:
    rounds: Rounds = field(default_factory=new_rounds)
    legend: dict[str, str] = field(default_factory=dict)  # Server → its version, client and durability.
    missing: dict[str, str] = field(default_factory=dict)  # Server → why there is nothing of it, or not all.


def print_table(console: Console, rounds: Rounds, ceiling: Ceiling, own: str, peer: str) -> None:
    """Medians, their ratio, how much of the machine's fitting limit both reached, and the spread of both."""
    table = Table("workload", "figure", own, peer, f"{own} / {peer}", "share of limit", "spread")
    for workload, figures in rounds.items():
        table.add_section()
        for order, (figure, values) in enumerate(figures.items()):
            ours, theirs = values.get(own, []), values.get(peer, [])
            table.add_row(
                "" if order else workload,
                figure,
                _median(ours),
                _median(theirs),
                _ratio(figure, ours, theirs),
                _shares(figure, ceiling, ours, theirs),
                f"{_spread(ours)}, {_spread(theirs)}",
            )
    console.print(table)


def markdown(rounds: Rounds, ceiling: Ceiling, own: str, peer: str) -> str:
    """The same for docs/performance.md, with the rounds themselves instead of their spread."""
    head = ["workload", "figure", own, peer, "ratio", "share of a limit", f"{own} by round", f"{peer} by round"]
    lines = [head, ["---"] * len(head)]
    for workload, figures in rounds.items():
        for figure, values in figures.items():
            ours, theirs = values.get(own, []), values.get(peer, [])
            share = ceiling.share(figure, statistics.median(ours)) if ours else None
            cells = [_median(ours), _median(theirs), _quotient(ours, theirs), "" if share is None else f"{share:.0%}"]
            lines.append([workload, figure, *cells, *(", ".join(map(_number, each)) for each in (ours, theirs))])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def print_comparison(console: Console, rounds: Rounds, own: str, peer: str) -> None:
    """Medians, their ratio and the spread of both, where no limit of the machine fits."""
    table = Table("workload", "figure", own, peer, "ratio", "spread")
    for workload, figures in rounds.items():
        table.add_section()
        for order, (figure, values) in enumerate(figures.items()):
            ours, theirs = values.get(own, []), values.get(peer, [])
            spreads = f"{_spread(ours)}, {_spread(theirs)}"
            cells = _median(ours), _median(theirs), _ratio(figure, ours, theirs), spreads
            table.add_row("" if order else workload, figure, *cells)
    console.print(table)


def print_peers(console: Console, peers: PeerRounds, own: str) -> None:
    """Each peer's median, and in brackets how many times of it is our own."""
    others = [name for name in peers.legend if name != own]
    table = Table("workload", "figure", own, *(f"{name} (own protocol)" for name in others), "spread")
    for workload, figures in peers.rounds.items():
        for figure, values in figures.items():
            ours = values.get(own, [])
            cells = [_beside(figure, ours, values.get(name, [])) for name in others]
            table.add_row(workload, figure, _median(ours), *cells, ", ".join(map(_spread, values.values())))
    console.print(f"Other protocols, each with its client in Python (in brackets: {own} / peer)")
    console.print(table)
    for name, text in peers.legend.items():
        console.print(f"{name} {text}", highlight=False)
    for name, reason in peers.missing.items():
        console.print(f"[red]{name} is missing: {escape(reason)}", highlight=False)
    console.print("Throughput and latency here are of a client in Python: it, not the server, is usually the limit.")
    console.print("What the servers themselves need stands under CPU, memory and start.")


def write(rounds: Rounds, peers: PeerRounds, ceiling: Ceiling, machine: Mapping[str, str], out: Path) -> None:
    out.mkdir(exist_ok=True)
    result = {
        "machine": machine,
        "limits": ceiling._asdict(),
        "rounds": rounds,
        "shares of limits": _all_shares(rounds, ceiling),
        "other protocols": vars(peers),
    }
    (out / "bench.json").write_text(json.dumps(result, indent=2))
    for workload, figures in rounds.items():
        _draw(workload, figures, out)
    for workload, figures in peers.rounds.items():
        _draw(f"other protocols, {workload}", figures, out)


def _draw(workload: str, figures: dict[str, dict[str, list[float]]], out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = min(len(figures), PICTURE_COLUMNS)
    rows = -(-len(figures) // columns)
    figure, axes = pyplot.subplots(rows, columns, figsize=(3 * columns, 3.2 * rows), squeeze=False)
    for axis in axes.flat[len(figures) :]:
        axis.set_axis_off()
    for axis, (name, values) in zip(axes.flat, figures.items(), strict=False):
        for position, (broker, samples) in enumerate(values.items()):
            axis.bar(position, statistics.median(samples), width=0.6, label=broker)
            axis.plot([position] * len(samples), samples, "k.", markersize=4)
        axis.set_title(name, fontsize=9)
        axis.set_xticks(range(len(values)), [name.split()[0] for name in values], fontsize=7)
        axis.set_ylim(bottom=0)
    figure.suptitle(f"{workload} (bars: medians, dots: rounds)", fontsize=9)
    figure.tight_layout()
    name = "".join(letter if letter.isalnum() else "-" for letter in workload.lower())
    figure.savefig(out / f"{name}.png", dpi=110)
    pyplot.close(figure)


def _beside(figure: str, ours: list[float], theirs: list[float]) -> str:
    return f"{_median(theirs)} ({_ratio(figure, ours, theirs)})" if ours and theirs else _median(theirs)


def _ratio(figure: str, ours: list[float], theirs: list[float]) -> str:
    quotient = _quotient(ours, theirs)
    if quotient == "-":
        return quotient
    is_ahead = float(quotient) < 1 if is_lower_better(figure) else float(quotient) > 1
    return f"[{'green' if is_ahead else 'red'}]{quotient}x[/]"


def _quotient(ours: list[float], theirs: list[float]) -> str:
    if not ours or not theirs or not statistics.median(theirs):
        return "-"  # Less than the load generator can tell from nothing.
    return f"{statistics.median(ours) / statistics.median(theirs):.2f}"


def _shares(figure: str, ceiling: Ceiling, *brokers: list[float]) -> str:
    """The share of each broker, and of what."""
    limit = ceiling.fitting(figure)
    shares = [ceiling.share(figure, statistics.median(values)) for values in brokers]
    return f"{', '.join('-' if share is None else f'{share:.0%}' for share in shares)} {limit.name}" if limit else ""


def _all_shares(rounds: Rounds, ceiling: Ceiling) -> dict[str, dict[str, dict[str, float | None]]]:
    return {
        workload: {
            figure: {broker: ceiling.share(figure, statistics.median(samples)) for broker, samples in values.items()}
            for figure, values in figures.items()
            if ceiling.fitting(figure)
        }
        for workload, figures in rounds.items()
    }


def _median(values: list[float]) -> str:
    if not values:
        return "-"
    return _number(statistics.median(values))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _spread(values: list[float]) -> str:
    """The largest by the smallest."""
    return f"{max(values) / min(values):.1f}x" if values and min(values) > 0 else "-"
