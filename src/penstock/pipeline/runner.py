"""Runs a project: Spark's own parts read and carry it out, we set them up and pass on what they tell.

An update reads what is there and ends; that is how open-source Spark runs a pipeline. One that goes on is a row of
updates in one session, each of which begins where the last has ended.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO

from penstock.pipeline.progress import FlowProgress, RunProgress
from penstock.pipeline.project import BOOTSTRAP_KEY, Project

LISTENER_S_MAX = 5.0  # The numbers of the last batches come on a way of their own, mostly before the run's end.

OnChange = Callable[[FlowProgress], None]


class Updates:
    """The updates of one session."""

    def __init__(
        self, spark: Any, project: Project, config: Mapping[str, str], progress: RunProgress, on_change: OnChange
    ) -> None:
        self._spark = spark
        self._project = project
        self._config = config
        self._progress = progress
        self._on_change = on_change
        self._lock = threading.Lock()  # Spark's listener has a thread of its own.
        self._open: set[str] = set()  # Queries that were started and have not ended.
        self._all_ended = threading.Condition(self._lock)
        self._listener = _listener(self)

    def __enter__(self) -> "Updates":
        self._spark.streams.addListener(self._listener)
        return self

    def __exit__(self, *exception: object) -> None:
        self._spark.streams.removeListener(self._listener)

    def run(self, *, full_refresh: bool = False, dry: bool = False) -> None:
        """One update, or with `dry` only what Spark checks before one. Raises what Spark raises."""
        from pyspark.pipelines.cli import load_pipeline_spec, register_definitions
        from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
        from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, start_run

        spark, project = self._spark, self._project
        spec = load_pipeline_spec(project.spec_path)
        graph_id = create_dataflow_graph(
            spark, default_catalog=spec.catalog, default_database=spec.database, sql_conf=self._config
        )
        try:
            with self._lock:
                self._progress.begin_update()
            registry = SparkConnectGraphElementRegistry(spark, graph_id)
            with redirect_stdout(_log()):
                register_definitions(project.spec_path, registry, spec, spark, graph_id)
            events = start_run(
                spark,
                graph_id,
                full_refresh=[],
                full_refresh_all=full_refresh,
                refresh=[],
                dry=dry,
                storage=spec.storage,
            )
            for result in events:
                if "pipeline_event_result" in result:
                    self._on_event(result["pipeline_event_result"].event.message)
            self._await_listener()
        finally:
            _drop_graph(spark, graph_id)

    def on_query(self, query_id: str, *, is_open: bool) -> None:
        with self._lock:
            (self._open.add if is_open else self._open.discard)(query_id)
            self._all_ended.notify_all()

    def on_batch(self, name: str | None, progress: str) -> None:
        if name is None:
            return  # Not a flow's.
        with self._lock:
            self._on_change(self._progress.on_batch(name, json.loads(progress)))

    def _on_event(self, message: str) -> None:
        with self._lock:
            flow = self._progress.on_event(message)
            if flow is not None:
                self._on_change(flow)

    def _await_listener(self) -> None:
        with self._lock:
            self._all_ended.wait_for(lambda: not self._open, LISTENER_S_MAX)


def configuration(project: Project, bootstrap_servers: str | None) -> dict[str, str]:
    """The project's, with the brokers' address that was asked for."""
    given = {BOOTSTRAP_KEY: bootstrap_servers} if bootstrap_servers else {}
    return {**project.configuration, **given}


def repeat(update: Callable[[], None], every_s: float | None) -> None:
    """One update; with `every_s` one after the other, for ever, that long from start to start or without a pause."""
    while True:
        due_at = time.monotonic() + (every_s or 0)
        update()
        if every_s is None:
            return
        time.sleep(max(0.0, due_at - time.monotonic()))


@contextmanager
def output_to(log: TextIO) -> Iterator[None]:
    """What Java, and Spark's workers, write to the terminal goes to `log`; what Python writes still goes there."""
    kept = []
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        stream.flush()
        original = os.dup(number)
        if _is_descriptor(stream, number):
            setattr(sys, name, os.fdopen(os.dup(number), "w", buffering=1, encoding=stream.encoding))
        os.dup2(log.fileno(), number)
        kept.append((number, name, stream, original))
    try:
        yield
    finally:
        for number, name, stream, original in kept:
            os.dup2(original, number)
            os.close(original)
            if getattr(sys, name) is not stream:
                getattr(sys, name).close()
                setattr(sys, name, stream)


def _is_descriptor(stream: Any, number: int) -> bool:
    try:
        return bool(stream.fileno() == number)
    except (OSError, ValueError, AttributeError):
        return False


def _log() -> TextIO:
    """Where descriptor 2 leads, for the words that Spark's parts print while they read a project."""
    return os.fdopen(os.dup(2), "w", buffering=1)


def _drop_graph(spark: Any, graph_id: str) -> None:
    import pyspark.sql.connect.proto as pb2

    command = pb2.Command()
    command.pipeline_command.drop_dataflow_graph.CopyFrom(
        pb2.PipelineCommand.DropDataflowGraph(dataflow_graph_id=graph_id)
    )
    spark.client.execute_command(command)


def _listener(updates: Updates) -> Any:
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:
            updates.on_query(str(event.runId), is_open=True)

        def onQueryProgress(self, event: Any) -> None:
            updates.on_batch(event.progress.name, event.progress.json)

        def onQueryIdle(self, event: Any) -> None:
            pass

        def onQueryTerminated(self, event: Any) -> None:
            updates.on_query(str(event.runId), is_open=False)

    return Listener()
