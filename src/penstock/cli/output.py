"""What every command prints with: tables, JSON, progress, and errors that say what happened, why and what to do."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from json import JSONEncoder

    from rich.table import Table


RICH_ROWS_MAX = 1000  # Rich lays out about a thousand rows a second; nobody looks at the colours of more.


class Failure(Exception):
    """The command cannot go on: `what` happened and why, and as `hint` what to do about it."""

    def __init__(self, what: str, *, hint: str = "", code: str = "FAILED") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint
        self.code = code  # For scripts: Kafka's name of the error, or ours.
        self.exit_code = 2 if code == "USAGE" else 1


def print_failure(failure: Failure, *, as_json: bool) -> None:
    """One or two lines on stderr, or one JSON object."""
    if as_json:
        error = {"code": failure.code, "message": failure.what}
        if failure.hint:
            error["hint"] = failure.hint
        print(dump_json({"error": error}), file=sys.stderr)
        return
    print(_colored("error:", "31", sys.stderr), printable(failure.what, keep="\n"), file=sys.stderr)
    if failure.hint:
        print(_colored("hint: ", "36", sys.stderr), printable(failure.hint, keep="\n"), file=sys.stderr)


def note(text: str) -> None:
    """One line on stderr for the person at the terminal; nothing when a script reads stderr."""
    if sys.stderr.isatty():
        print(_colored(printable(text), "2", sys.stderr), file=sys.stderr)


def program() -> str:
    """How to call this program from the current directory, for lines to paste."""
    in_local_venv = os.path.realpath(sys.prefix) == os.path.realpath(".venv")
    return ".venv/bin/penstock" if in_local_venv else "penstock"


def printable(text: str, keep: str = "") -> str:
    """The text with control and other invisible characters escaped, so that data cannot steer a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def dump_json(value: object, *, indent: int | None = None) -> str:
    """JSON on one line (or indented) that keeps letters of all languages and escapes what a terminal would obey."""
    text = _json_encoder(indent).encode(value)
    if text.isprintable():
        return text
    # Outside strings JSON has only printable characters and line breaks, so an escape lands inside a string.
    return "".join(c if c.isprintable() or c == "\n" else f"\\u{ord(c):04x}" if ord(c) < 0x10000 else c for c in text)


@cache
def _json_encoder(indent: int | None) -> "JSONEncoder":
    from json import JSONEncoder

    return JSONEncoder(ensure_ascii=False, indent=indent)


def print_json(value: object) -> None:
    print(dump_json(value, indent=2))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Aligned columns; with a header rule and colour on a terminal, plain and never cut when piped."""
    cells = [list(row) for row in rows]
    if not sys.stdout.isatty() or len(cells) > RICH_ROWS_MAX:
        for line in _plain_lines(columns, cells):
            print(line)
        return
    from rich.console import Console

    console = Console(highlight=False)
    with console.capture() as capture:
        console.print(rich_table(columns, cells))
    for line in capture.get().splitlines():
        print(line.rstrip())


def _plain_lines(columns: Sequence[str], cells: Sequence[Sequence[object]]) -> Iterator[str]:
    from rich.cells import cell_len  # Letters of some languages take two cells.

    texts = [list(columns), *([printable(_cell_text(cell)) for cell in row] for row in cells)]
    widths = [max(map(cell_len, column)) for column in zip(*texts, strict=True)]
    to_right = [_is_numeric(cells, index) for index in range(len(columns))]
    for row in texts:
        parts = []
        for text, width, right in zip(row, widths, to_right, strict=True):
            space = " " * (width - cell_len(text))
            parts.append(space + text if right else text + space)
        yield "  ".join(parts).rstrip()


def rich_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> "Table":
    """The table for rich to draw on a terminal; None in a cell is a value that nobody knows."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    cells = [list(row) for row in rows]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for index, name in enumerate(columns):
        table.add_column(name, justify="right" if _is_numeric(cells, index) else "left", overflow="fold")
    for row in cells:
        table.add_row(*(Text(printable(_cell_text(cell))) for cell in row))
    return table


def _is_numeric(cells: Sequence[Sequence[object]], index: int) -> bool:
    return bool(cells) and all(isinstance(row[index], int | float | None) for row in cells)


def _cell_text(cell: object) -> str:
    if cell is None:
        return "-"
    return f"{cell:,.1f}" if isinstance(cell, float) else str(cell)


class Lines:
    """A table of any length, row by row in columns of fixed width; a wider cell moves only its own row."""

    def __init__(self, columns: Sequence[tuple[str, int]]) -> None:
        self._widths = [width for _, width in columns]  # A negative width aligns left.
        self.header_row = self.row([name for name, _ in columns])

    def row(self, cells: Sequence[object]) -> str:
        parts = []
        for cell, width in zip(cells, self._widths, strict=True):
            text = str(cell)
            parts.append(text.rjust(width) if width >= 0 else text.ljust(-width))
        return printable("  ".join(parts).rstrip())


def local_time(timestamp_ms: int) -> str:
    """Milliseconds since 1970 as a time on this machine's clock; the number itself when there is no such time."""
    seconds, milliseconds = divmod(timestamp_ms, 1000)
    try:
        return f"{_local_second(seconds)}.{milliseconds:03}"
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)


@lru_cache(1024)  # Records come in order of time, many to the second; `astimezone` is what a dump would wait for.
def _local_second(seconds: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


Advance = Callable[[int], None]


@contextmanager
def progress(description: str, total: int | None = None, *, unit: str = "", after_s: float = 0.5) -> Iterator[Advance]:
    """A function to report steps done with: draws a bar on a terminal's stderr once the work takes long."""
    if not sys.stderr.isatty():
        yield lambda steps: None
        return
    bar = _Bar(description, total, unit, after_s)
    try:
        yield bar.advance
    finally:
        bar.stop()


class _Bar:
    def __init__(self, description: str, total: int | None, unit: str, after_s: float) -> None:
        import time

        self._clock = time.monotonic
        self._due_at = self._clock() + after_s
        self._description = description
        self._total = total
        self._unit = unit
        self._done = 0
        self._bar: Any = None
        self._task: Any = None

    def advance(self, steps: int) -> None:
        self._done += steps
        now = self._clock()
        if now < self._due_at:
            return
        if self._bar is None:
            self._start()
        # Callers report every message; drawing costs a hundred times what that may.
        self._due_at = now + 0.1
        self._bar.update(self._task, completed=self._done)

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _start(self) -> None:
        from rich import progress as rich_progress
        from rich.console import Console

        if self._unit == "bytes":
            amount: list[Any] = [rich_progress.DownloadColumn(), rich_progress.TransferSpeedColumn()]
        else:
            amount = [rich_progress.TextColumn("{task.completed:,} " + self._unit)]
        self._bar = rich_progress.Progress(
            rich_progress.TextColumn("{task.description}"),
            rich_progress.BarColumn(),
            *amount,
            rich_progress.TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._bar.start()
        self._task = self._bar.add_task(self._description, total=self._total, completed=self._done)


def duration(seconds: float) -> str:
    """So long, in the two largest units that matter: 42s, 3m 05s, 2h 10m, 4d 01h."""
    whole = round(seconds)
    for size, unit, smaller_size, smaller in ((86_400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            return f"{whole // size:,}{unit} {whole % size // smaller_size:02}{smaller}"
    return f"{whole}s"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _colored(text: str, code: str, stream: TextIO) -> str:
    wanted = stream.isatty() and not os.environ.get("NO_COLOR")
    return f"\x1b[{code}m{text}\x1b[0m" if wanted else text
