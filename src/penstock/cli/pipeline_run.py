"""`penstock pipeline run` and `validate`: what is shown while Spark works, and what is said when it fails."""

import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.connection import AsJson, check_reachable, command
from penstock.cli.output import Failure, dump_json, note, plural, print_json, print_table, rich_table
from penstock.pipeline.project import BOOTSTRAP_KEY, PartsMissing, Project, ProjectRefused, open_project

if TYPE_CHECKING:
    from penstock.pipeline.connect import Place
    from penstock.pipeline.progress import FlowProgress, RunProgress
    from penstock.pipeline.runner import Updates

ProjectFolder = Annotated[Path, typer.Argument(metavar="PROJECT", help="The pipeline's folder.")]
Master = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Spark's master: local[4], spark://HOST:7077.", show_default="local[*]"),
]
Remote = Annotated[str | None, typer.Option(metavar="URL", help="A Spark Connect server: sc://HOST:15002.")]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark, with --master; repeat for more."),
]
Brokers = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server",
        "-b",
        metavar="HOST:PORT",
        envvar="PENSTOCK_BOOTSTRAP_SERVER",
        help="Brokers to read and write.",
        show_default="what the project says",
    ),
]

COLUMNS = ("FLOW", "STATE", "BATCHES", "ROWS IN", "ROWS OUT", "ROWS/S", "LATE", "LAG")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?")
_UNITS_S = {"ms": 0.001, None: 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def run(
    folder: ProjectFolder = Path(),
    every: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Go on: an update every so often, such as 10s; 0s: one after the other, until Ctrl-C."
        ),
    ] = None,
    full_refresh: Annotated[
        bool,
        typer.Option("--full-refresh", help="Forget the checkpoints and read everything again; tables are emptied."),
    ] = False,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    bootstrap_server: Brokers = None,
    json: AsJson = False,
) -> None:
    """Run a pipeline: read what is there, write the results, and end; or go on with --every.

    What it has read is remembered: the next run begins there. It can be stopped at any time.

    \b
    Examples:
      penstock pipeline run clean-orders
      penstock pipeline run clean-orders --every 10s
      penstock pipeline run clean-orders --master spark://spark.example.com:7077
      penstock pipeline run clean-orders --remote sc://spark.example.com:15002
    """
    every_s = None if every is None else _seconds(every)
    project = _opened(folder)
    place = _place(master, remote, conf)
    from penstock.pipeline.runner import repeat

    with _session(project, place, bootstrap_server, as_json=json) as session:
        refresh = iter([full_refresh])  # Only the first of many.
        repeat(lambda: session.update(full_refresh=next(refresh, False)), every_s)
    if json:
        flows = [flow.json() for flow in session.progress.flows.values()]
        print(dump_json({"timestamp": _now_ms(), "outcome": "completed", "flows": flows}))


def validate(
    folder: ProjectFolder = Path(),
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    json: AsJson = False,
) -> None:
    """Check a pipeline without running it: that its files make sense to Spark, and its flows fit together.

    No broker is needed.

    \b
    Examples:
      penstock pipeline validate clean-orders
    """
    project = _opened(folder)
    with _session(project, _place(master, remote, conf), None, as_json=json, is_dry=True) as session:
        session.update()
    if json:
        print_json({"project": project.name, "valid": True})
    else:
        print(f"{project.name} is valid.")


def _opened(folder: Path) -> Project:
    try:
        return open_project(folder)
    except ProjectRefused as refused:
        raise refused_as_failure(refused) from refused


def refused_as_failure(refused: ProjectRefused) -> Failure:
    return Failure(str(refused), hint=refused.hint, code="PIPELINE")


def _seconds(text: str) -> float:
    found = _DURATION.fullmatch(text.strip())
    if not found:
        raise Failure(f"--every {text} is no time.", hint="Give 10s, 500ms, 1m, or 0s for no pause.", code="USAGE")
    return float(found[1]) * _UNITS_S[found[2]]


def _place(master: str | None, remote: str | None, conf: list[str] | None) -> "Place":
    if master is not None and remote is not None:
        raise Failure("--master and --remote exclude each other.", hint="Give one of them.", code="USAGE")
    if remote is not None and conf:
        raise Failure("--conf is for a Spark that is started, and --remote is there already.", code="USAGE")
    config = {}
    for option in conf or ():
        key, equals, value = option.partition("=")
        if not key or not equals:
            raise Failure(f"--conf {option} has no value.", hint="Give KEY=VALUE.", code="USAGE")
        config[key.strip()] = value
    try:
        import grpc  # noqa: F401
        import pyspark  # noqa: F401
        import yaml  # noqa: F401

        from penstock.pipeline.connect import Place
    except ImportError as error:
        raise refused_as_failure(PartsMissing(error)) from error
    return Place(master=master or "local[*]", remote=remote, config=config)


class _Session:
    """A project and the Spark that runs it. How that goes is noted for `penstock pipeline status`."""

    def __init__(self, project: Project, config: Mapping[str, str], *, is_dry: bool) -> None:
        from penstock.pipeline.last_run import LastRun
        from penstock.pipeline.progress import RunProgress

        self.config = config
        self.progress = RunProgress()
        self._project = project
        self._is_dry = is_dry
        self._run = LastRun(started_ms=_now_ms())
        self._updates: Updates | None = None

    @contextmanager
    def running(self, place: "Place", *, as_json: bool) -> Iterator[None]:
        from penstock.pipeline.connect import connected
        from penstock.pipeline.runner import Updates

        self._note()
        with (
            connected(self._project, place, self.config) as spark,
            _screen(self.progress, as_json, self._is_dry) as on_change,
            Updates(spark, self._project, self.config, self.progress, on_change) as updates,
        ):
            self._updates = updates
            yield

    def update(self, *, full_refresh: bool = False) -> None:
        assert self._updates is not None
        self._updates.run(full_refresh=full_refresh, dry=self._is_dry)
        self._note()

    def end(self, outcome: str, error: str = "") -> None:
        self._run.ended_ms, self._run.outcome, self._run.error = _now_ms(), outcome, error
        self._note()

    def _note(self) -> None:
        from penstock.pipeline.last_run import write_last_run

        if not self._is_dry:
            self._run.updates_count = self.progress.updates_count
            self._run.flows = [flow.json() for flow in self.progress.flows.values()]
            write_last_run(self._project, self._run)


@contextmanager
def _session(
    project: Project, place: "Place", bootstrap_servers: str | None, *, as_json: bool, is_dry: bool = False
) -> Iterator[_Session]:
    """Spark, ready to run the project. Every way out of it is noted, and every error becomes a Failure."""
    from penstock.pipeline.last_run import COMPLETED, FAILED, STOPPED, only_run
    from penstock.pipeline.runner import configuration, output_to

    config = configuration(project, bootstrap_servers)
    log_path = project.notes / "log"
    try:
        with only_run(project), log_path.open("w") as log, output_to(log), _stoppable():
            session = _Session(project, config, is_dry=is_dry)
            try:
                if not is_dry:
                    _check_brokers(config)
                note(f"Starting Spark; its log is {log_path}.")
                with session.running(place, as_json=as_json):
                    yield session
            except KeyboardInterrupt:
                session.end(STOPPED)
                raise
            except Exception as error:
                traceback.print_exception(error, file=log)
                failure = _failure(error, session, log_path)
                session.end(FAILED, failure.what)
                raise failure from error
            session.end(COMPLETED)
    except ProjectRefused as refused:
        raise refused_as_failure(refused) from refused


def _failure(error: Exception, session: _Session, log_path: Path) -> Failure:
    from penstock.local.java import PartMissing
    from penstock.pipeline.run_failure import explain, missing_topic

    if isinstance(error, Failure):
        return error
    if isinstance(error, PartMissing):
        what, _, hint = str(error).partition(": ")
        return Failure(f"Cannot start Spark: {what}.", hint=f"{hint[:1].upper()}{hint[1:]}.", code="NO_JAVA")
    reason = explain(error, session.progress.errors)
    brokers = session.config.get(BOOTSTRAP_KEY, "")
    topic = missing_topic(reason)
    if topic is not None:
        return Failure(
            f"There is no topic '{topic}' at {brokers}.",
            hint=f"Create it: {command(f'topics create {topic}', brokers)} - or change the project's settings.",
            code="UNKNOWN_TOPIC_OR_PART",
        )
    return Failure(f"The pipeline failed: {reason}", hint=f"The whole story is in {log_path}.", code="PIPELINE")


def _check_brokers(config: Mapping[str, str]) -> None:
    """Failure at once: Spark would take a minute to start, and then another to find out."""
    servers = config.get(BOOTSTRAP_KEY)
    if not servers:
        return  # Not one of our templates; its transformations know.
    check_reachable(servers)


@contextmanager
def _stoppable() -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextmanager
def _screen(progress: "RunProgress", as_json: bool, is_dry: bool) -> Iterator[Callable[["FlowProgress"], None]]:
    """What to call with a flow that has changed: a table redrawn in place, lines when piped, JSON lines for scripts."""
    if is_dry:
        yield lambda flow: None
    elif as_json:
        yield lambda flow: print(dump_json({"timestamp": _now_ms(), **flow.json()}), flush=True)
    elif not sys.stdout.isatty():
        yield _print_line
        print_table(COLUMNS, _rows(progress))
    else:
        from rich.console import Console
        from rich.live import Live

        with Live(
            get_renderable=lambda: rich_table(COLUMNS, _rows(progress)),
            console=Console(file=sys.stdout, highlight=False),
            refresh_per_second=4,
        ):
            yield lambda flow: None


def _print_line(flow: "FlowProgress") -> None:
    if flow.state == "running" and flow.batches_count:
        out = "" if flow.rows_out is None else f", {flow.rows_out:,} out"
        lag = "" if flow.lag is None else f", lag {flow.lag:,}"
        print(f"{flow.name}: {plural(flow.rows_in, 'row')} in{out}{lag}", flush=True)


def _rows(progress: "RunProgress") -> list[tuple[object, ...]]:
    # A copy: the listener's thread may add a flow meanwhile.
    return [
        (
            each.name,
            each.state,
            each.batches_count,
            each.rows_in,
            each.rows_out,
            each.rows_per_s,
            each.late_count,
            each.lag,
        )
        for each in list(progress.flows.values())
    ]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
