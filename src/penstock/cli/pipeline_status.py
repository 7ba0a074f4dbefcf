"""`penstock pipeline list` and `status`: which pipelines there are, how far they are and how they ran last."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.connection import AsJson, check_reachable
from penstock.cli.output import Failure, duration, local_time, plural, print_json, print_table, program
from penstock.cli.pipeline_run import Brokers, ProjectFolder, refused_as_failure
from penstock.pipeline.project import BOOTSTRAP_KEY, Project, ProjectRefused, find_projects, open_project

if TYPE_CHECKING:
    from penstock.pipeline.checkpoints import FlowCheckpoint
    from penstock.pipeline.last_run import LastRun
    from penstock.spark.plan import TopicPartition


def list_projects(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to look, and below.")] = Path(),
    json: AsJson = False,
) -> None:
    """List the pipelines below a folder, and how each ran last.

    \b
    Examples:
      penstock pipeline list
      penstock pipeline list ~/pipelines --json
    """
    from penstock.pipeline.last_run import read_last_run

    try:
        found = [(path, open_project(path)) for path in find_projects(folder)]
        rows = [(path, project, read_last_run(project)) for path, project in found]
    except ProjectRefused as refused:
        raise refused_as_failure(refused) from refused
    if json:
        print_json(
            [
                {"name": project.name, "folder": str(project.folder), "last_run": _run_json(run)}
                for _, project, run in rows
            ]
        )
    elif rows:
        print_table(
            ["PIPELINE", "FOLDER", "LAST RUN", "OUTCOME"],
            [
                (project.name, path, local_time(run.started_ms) if run else "never", run.outcome if run else "-")
                for path, project, run in rows
            ],
        )
    else:
        print(f"There are no pipelines in {folder.resolve()}. See what can be made: {program()} pipeline templates")


def status(
    folder: ProjectFolder = Path(),
    bootstrap_server: Brokers = None,
    json: AsJson = False,
) -> None:
    """Show how far each flow of a pipeline is, its lag behind the topics, and how the last run went.

    The checkpoints say what is done; the brokers say what is there. Spark is not needed for it.

    \b
    Examples:
      penstock pipeline status clean-orders
      penstock pipeline status clean-orders --json
    """
    from penstock.pipeline.last_run import read_last_run

    try:
        project = open_project(folder)
        run = read_last_run(project)
        flows = _checkpoints(project)
    except ProjectRefused as refused:
        raise refused_as_failure(refused) from refused
    ends = _ends(bootstrap_server or project.configuration.get(BOOTSTRAP_KEY), flows)
    if json:
        print_json(
            {
                "name": project.name,
                "folder": str(project.folder),
                "last_run": _run_json(run),
                "flows": [_flow_json(flow, ends) for flow in flows],
            }
        )
        return
    print(f"{project.name}: {_run_in_words(run)}")
    if not flows:
        print(f"Nothing is done yet. Run it with: {program()} pipeline run {folder}")
        return
    print()
    print_table(
        ["FLOW", "TARGET", "TOPIC", "PARTITION", "COMMITTED", "END", "LAG"],
        [row for flow in flows for row in _rows(flow, ends)],
    )


def _checkpoints(project: Project) -> "list[FlowCheckpoint]":
    try:
        from penstock.pipeline.checkpoints import read_checkpoints
    except ImportError as error:
        from penstock.pipeline.project import PartsMissing

        raise PartsMissing(error) from error
    storage = project.storage_folder
    if storage is None:
        raise ProjectRefused(
            f"The checkpoints of {project.name} are at {project.storage}, which is not on this machine.",
            "Its runs show their progress themselves.",
        )
    return read_checkpoints(storage)


def _ends(bootstrap_servers: str | None, flows: "Sequence[FlowCheckpoint]") -> "dict[TopicPartition, int]":
    """Where the partitions end, for readers of committed records."""
    partitions = {key for flow in flows for key in flow.offsets}
    if not partitions or not bootstrap_servers:
        return {}
    check_reachable(bootstrap_servers)
    from penstock.spark.brokers import Brokers, Refusal, Unreachable
    from penstock.spark.options import LATEST, Isolation

    with Brokers(bootstrap_servers, patience_s=5.0) as brokers:
        try:
            return brokers.offsets(dict.fromkeys(sorted(partitions), LATEST), Isolation.READ_COMMITTED)
        except (Refusal, Unreachable) as error:
            raise Failure(f"Cannot see where the topics end: {error}.", code="PIPELINE") from error


def _rows(flow: "FlowCheckpoint", ends: "Mapping[TopicPartition, int]") -> list[tuple[object, ...]]:
    if not flow.offsets:
        return [(flow.flow, flow.target, None, None, None, None, None)]  # It has done nothing, or reads no topic.
    return [
        (
            flow.flow,
            flow.target,
            topic,
            partition,
            offset,
            ends.get((topic, partition)),
            _lag(ends, topic, partition, offset),
        )
        for (topic, partition), offset in sorted(flow.offsets.items())
    ]


def _lag(ends: "Mapping[TopicPartition, int]", topic: str, partition: int, offset: int) -> int | None:
    end = ends.get((topic, partition))
    return None if end is None else max(0, end - offset)


def _flow_json(flow: "FlowCheckpoint", ends: "Mapping[TopicPartition, int]") -> dict[str, Any]:
    return {
        "flow": flow.flow,
        "target": flow.target,
        "batch": flow.batch_id,
        "partitions": [
            {
                "topic": topic,
                "partition": partition,
                "committed": offset,
                "end": ends.get((topic, partition)),
                "lag": _lag(ends, topic, partition, offset),
            }
            for (topic, partition), offset in sorted(flow.offsets.items())
        ],
    }


def _run_json(run: "LastRun | None") -> dict[str, Any] | None:
    if run is None:
        return None
    return {
        "outcome": run.outcome,
        "started": run.started_ms,
        "ended": run.ended_ms,
        "updates": run.updates_count,
        "error": run.error or None,
        "flows": run.flows,
    }


def _run_in_words(run: "LastRun | None") -> str:
    if run is None:
        return "it has not run yet."
    began = f"started {local_time(run.started_ms).partition('.')[0]}"
    if run.ended_ms is None:
        told = "is running" if run.outcome == "running" else "its last run died"
        return f"{told}, {began}, {plural(run.updates_count, 'update')}."
    took = duration((run.ended_ms - run.started_ms) / 1000)
    return f"its last run {began}, took {took} and {run.outcome}{': ' + run.error if run.error else ''}."
