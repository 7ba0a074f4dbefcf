"""`penstock log`: look into segment files and check them, without a broker.

The reading and checking is imported by the commands that do it: every other command's start would wait for it.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.output import Failure, plural, print_json, print_table, program, progress

if TYPE_CHECKING:
    from penstock.cli.log_verify import Problem, Verifier

commands = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Look into segment files and check them, without a broker."
)

PROBLEMS_MAX = 1000  # Listed; beyond that the number says enough.

Paths = Annotated[
    list[Path], typer.Argument(metavar="PATH", help="Segment files, partition directories or a data directory.")
]
AsJsonLines = Annotated[bool, typer.Option("--json", help="Print one JSON object a line, and errors as JSON too.")]


@commands.command()
def dump(
    paths: Paths,
    records: Annotated[bool, typer.Option("--records", "-r", help="Show the records of each batch, too.")] = False,
    json: AsJsonLines = False,
) -> None:
    """Show what is in .log, .index, .timeindex and .txnindex files.

    \b
    Examples:
      penstock log dump penstock-data/orders-0
      penstock log dump penstock-data/orders-0/00000000000000000000.log --records
      penstock log dump penstock-data/orders-0/00000000000000000000.index --json
    """
    from penstock.cli.log_dump import dump_file
    from penstock.cli.log_files import segment_files

    files = segment_files(paths)
    if not files:
        raise _nothing_found(paths)
    damaged = 0
    for number, path in enumerate(files):
        if not json:
            print(f"\n{path}" if number else path)
        damaged += dump_file(path, with_records=records, as_json=json)
    if damaged:
        sys.stdout.flush()
        raise Failure(
            f"{plural(damaged, 'part')} of these files cannot be read as written.",
            hint=f"See what is wrong, and what to do: {program()} log verify {' '.join(map(str, paths))}",
            code="DAMAGED",
        )


@commands.command()
def verify(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="PATH", help="Segment files, partition directories or a data directory."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="Check everything in this data directory.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, and errors as JSON too.")] = False,
) -> None:
    """Check checksums, offsets and indexes. Changes nothing; exits with 1 when something is wrong.

    Best done while the broker is stopped: the newest batch of a running one may be half written.

    \b
    Examples:
      penstock log verify --data ./penstock-data
      penstock log verify penstock-data/orders-0 penstock-data/orders-1
      penstock log verify penstock-data/orders-0/00000000000000000000.log --json
    """
    asked = [*(paths or []), *([data] if data else [])]
    if not asked:
        raise Failure(
            "There is nothing to check.",
            hint="Give PATH... or --data DIR, for example: penstock log verify --data ./penstock-data",
            code="USAGE",
        )
    from penstock.cli.log_files import segment_files, segments_of
    from penstock.cli.log_verify import Verifier

    segments = segments_of(segment_files(asked))
    if not segments:
        raise _nothing_found(asked)
    total = sum(segment.log.stat().st_size for segment in segments if segment.log.exists())
    problems: list[Problem] = []
    problems_count = 0
    with progress("Checking", total, unit="bytes") as advance:
        verifier = Verifier(advance)
        for problem in verifier.problems(segments):
            problems_count += 1
            if len(problems) < PROBLEMS_MAX:
                problems.append(problem)
    _print_verdict(verifier, problems, problems_count, as_json=json)
    if problems_count:
        raise typer.Exit(1)


def _nothing_found(paths: Sequence[Path]) -> Failure:
    return Failure(
        f"There are no segment files in {', '.join(map(str, paths))}.",
        hint="Give segment files, partition directories or a data directory, for example: ./penstock-data",
        code="NOT_FOUND",
    )


def _print_verdict(verifier: "Verifier", problems: "list[Problem]", problems_count: int, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "files": verifier.files_count,
                "bytes": verifier.bytes_count,
                "batches": verifier.batches_count,
                "records": verifier.records_count,
                "problems_count": problems_count,
                "problems": [problem._asdict() | {"file": str(problem.file)} for problem in problems],
            }
        )
        return
    checked = (
        f"Checked {plural(verifier.files_count, 'file')} with {plural(verifier.records_count, 'record')} "
        f"in {verifier.bytes_count:,} bytes"
    )
    if not problems_count:
        print(f"{checked}: no problems.")
        return
    print_table(
        ["FILE", "POSITION", "OFFSET", "PROBLEM", "WHAT TO DO"],
        [(p.file, p.position, "?" if p.offset is None else p.offset, p.what, p.todo) for p in problems],
    )
    more = f" (the first {len(problems):,} are listed)" if problems_count > len(problems) else ""
    print(f"{checked}: {plural(problems_count, 'problem')}{more}.")
