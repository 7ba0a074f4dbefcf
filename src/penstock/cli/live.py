"""Tables that change: redrawn in place on a terminal, one after the other when piped, JSON lines for scripts."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

import typer

from penstock.cli.output import dump_json, local_time, plural, print_table, rich_table

T = TypeVar("T")

INTERVAL_S = 2.0
_LINES_AROUND = 6  # Header, rules, caption and the cursor's line: what a table needs beside its rows.

Interval = Annotated[
    float, typer.Option("--interval", "-i", metavar="SECONDS", min=0.1, help="Time between two looks.")
]
Count = Annotated[
    int | None,
    typer.Option("--count", "-n", metavar="N", min=1, help="Stop after so many intervals.", show_default="Ctrl-C"),
]


class Frame(NamedTuple):
    """One look, ready to be shown."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    json: dict[str, Any]
    short_rows: Sequence[Sequence[object]] | None = None  # For a terminal on which the rows do not fit.


class Look(NamedTuple, Generic[T]):
    """Two samples and the time between them; no time and the same sample twice at the first look."""

    before: T
    now: T
    elapsed_s: float | None


def watch_live(
    sample: Callable[[], T], draw: Callable[[Look[T]], Frame], *, interval_s: float, count: int | None, as_json: bool
) -> None:
    """Sample and draw until Ctrl-C, or so many times. The first look has no rates: only a terminal shows it."""
    with _screen(as_json) as show:
        try:
            for look in _looks(sample, interval_s, count):
                show(draw(look), look.elapsed_s is None)
        except KeyboardInterrupt:
            return


def _looks(sample: Callable[[], T], interval_s: float, count: int | None) -> Iterator[Look[T]]:
    before, before_at = sample(), time.monotonic()
    yield Look(before, before, None)
    due_at = before_at
    done = 0
    while done != count:
        # A sample that takes longer than the interval moves the ones after it, and is not made up for.
        due_at = max(due_at + interval_s, time.monotonic())
        time.sleep(max(0.0, due_at - time.monotonic()))
        now, now_at = sample(), time.monotonic()
        yield Look(before, now, now_at - before_at)
        before, before_at = now, now_at
        done += 1


@contextmanager
def _screen(as_json: bool) -> Iterator[Callable[[Frame, bool], None]]:
    if as_json:
        yield _print_json
    elif not sys.stdout.isatty():
        yield _print_plain
    else:
        from rich.console import Console
        from rich.live import Live

        console = Console(highlight=False)
        with Live(console=console, auto_refresh=False) as live:

            def redraw(frame: Frame, first: bool) -> None:
                rows, left_out = _fitting(frame, max(1, console.height - _LINES_AROUND))
                table = rich_table(frame.columns, rows)
                table.caption, table.caption_justify = _time() + left_out, "left"
                live.update(table, refresh=True)

            yield redraw


def _fitting(frame: Frame, lines: int) -> tuple[Sequence[Sequence[object]], str]:
    """The rows for so many lines, and in words what is not among them."""
    rows, left_out = frame.rows, ""
    if len(rows) > lines and frame.short_rows is not None:
        rows, left_out = frame.short_rows, ", totals only"
    if len(rows) > lines:
        left_out += f", {plural(len(rows) - lines, 'more row')}"
    return rows[:lines], f"{left_out}: the terminal is too low" if left_out else ""


def _print_json(frame: Frame, first: bool) -> None:
    if not first:
        print(dump_json({"timestamp": time.time_ns() // 1_000_000, **frame.json}), flush=True)


def _print_plain(frame: Frame, first: bool) -> None:
    if not first:
        print(_time())
        print_table(frame.columns, frame.rows)
        print(flush=True)


def _time() -> str:
    return local_time(time.time_ns() // 1_000_000).partition(".")[0]
