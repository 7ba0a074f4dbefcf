"""What the fault tests measure: printed at the end of the run, and kept in .cache/figures.json for the docs to quote.

A run of a part of the tests replaces the figures of that part only.
"""

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from .broker_process import Start

FILE = Path(__file__).resolve().parents[2] / ".cache" / "figures.json"


@dataclass(frozen=True)
class Figure:
    name: str
    value: str
    promise: str  # What the project says it is; empty when it says nothing.


_of_this_run: list[Figure] = []


def note(name: str, value: str, promise: str = "") -> None:
    """Keep one figure, and print it where it was measured."""
    figure = Figure(name, value, promise)
    _of_this_run.append(figure)
    print(f"figure: {name}: {value}" + (f" (promised: {promise})" if promise else ""))


def note_starts(name: str, starts: Sequence[Start], promise: str) -> None:
    """Keep how long several starts took, and how long they would have taken if nobody else had used the machine."""
    seconds = sorted(start.seconds for start in starts)
    own = sorted(start.own_s for start in starts)
    note(
        name,
        f"median {statistics.median(seconds):.2f} s, max {seconds[-1]:.2f} s; without waiting for a processor: "
        f"median {statistics.median(own):.2f} s, max {own[-1]:.2f} s",
        promise,
    )
    if len(starts) > 1:
        note(f"{name}, each", " ".join(f"{start.seconds:.2f}" for start in starts) + " s")


def table() -> list[str]:
    """The figures of this run as lines, in order; empty when nothing was measured."""
    width = max((len(figure.name) for figure in _of_this_run), default=0)
    return [
        f"{figure.name:<{width}}  {figure.value}" + (f"   [promised: {figure.promise}]" if figure.promise else "")
        for figure in _of_this_run
    ]


def store() -> None:
    known: dict[str, dict[str, str]] = {}
    if FILE.exists():
        known = {entry["name"]: entry for entry in json.loads(FILE.read_text())}
    known |= {figure.name: asdict(figure) for figure in _of_this_run}
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(json.dumps(list(known.values()), indent=2) + "\n")
