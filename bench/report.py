"""What a run found: tables of ratios on the terminal, all of it as JSON, and one picture a workload."""

import json
import statistics
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.workloads import LOWER_IS_BETTER

Rounds = dict[str, dict[str, dict[str, list[float]]]]  # Workload → figure → broker → one value a round.


def is_lower_better(figure: str) -> bool:
    return figure.endswith(LOWER_IS_BETTER)


def print_table(console: Console, rounds: Rounds, own: str, peer: str) -> None:
    table = Table("workload", "figure", own, peer, f"{own} / {peer}", "spread")
    for workload, figures in rounds.items():
        for figure, values in figures.items():
            ours, theirs = values.get(own, []), values.get(peer, [])
            if not ours or not theirs:
                continue
            ratio = statistics.median(ours) / max(1e-9, statistics.median(theirs))
            is_ahead = ratio < 1 if is_lower_better(figure) else ratio > 1
            table.add_row(
                workload,
                figure,
                _short(statistics.median(ours)),
                _short(statistics.median(theirs)),
                f"[{'green' if is_ahead else 'red'}]{ratio:.2f}x[/]",
                f"{_spread(ours)}, {_spread(theirs)}",
            )
    console.print(table)


def write(rounds: Rounds, limits: Mapping[str, float], machine: Mapping[str, str], out: Path) -> None:
    out.mkdir(exist_ok=True)
    result = {"machine": machine, "limits": limits, "rounds": rounds}
    (out / "bench.json").write_text(json.dumps(result, indent=2))
    for workload, figures in rounds.items():
        _draw(workload, figures, out)


def _draw(workload: str, figures: dict[str, dict[str, list[float]]], out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(figures), figsize=(3 * len(figures), 3.2), squeeze=False)
    for axis, (name, values) in zip(axes[0], figures.items(), strict=True):
        for position, (broker, samples) in enumerate(values.items()):
            axis.bar(position, statistics.median(samples), width=0.6, label=broker)
            axis.plot([position] * len(samples), samples, "k.", markersize=4)
        axis.set_title(name, fontsize=9)
        axis.set_xticks(range(len(values)), list(values), fontsize=8)
        axis.set_ylim(bottom=0)
    figure.suptitle(f"{workload} (bars: medians, dots: rounds)", fontsize=9)
    figure.tight_layout()
    name = "".join(letter if letter.isalnum() else "-" for letter in workload.lower())
    figure.savefig(out / f"{name}.png", dpi=110)
    pyplot.close(figure)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _spread(values: list[float]) -> str:
    """The largest by the smallest."""
    return f"{max(values) / max(1e-9, min(values)):.1f}x"
