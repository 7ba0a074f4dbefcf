"""`make demo`: a tour of a whole data pipeline on this machine, from live events to a lake, counts and alerts.

It starts a broker, publishes log events, and runs two pipelines on one Spark: one archives every record to a lake of
Parquet files, the other counts errors by window and raises alerts. All of it is in a temporary folder, and gone at the
end.
"""

import argparse
import json
import random
import re
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.cli.output import local_time, plural, print_table, rich_table
from penstock.local.child_process import start_child
from penstock.pipeline.connect import start_server, stop_server
from penstock.pipeline.runner import output_to
from penstock.pipeline.template import load_template, make_project

PENSTOCK = [sys.executable, "-m", "penstock.cli.main"]
TOPIC = "logs"
RESULTS = {"counts": f"{TOPIC}-counts", "alerts": f"{TOPIC}-alerts", "dead letters": f"{TOPIC}-dead-letters"}
EVENTS_PER_S = 100
START_S_MAX = 600  # Until the first results; a laptop takes half a minute.
AGGREGATE = {"where": "level = 'ERROR'", "window": "5 seconds", "late": "2 seconds", "alert_from": "40"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the tour goes on once results come")
    seconds = parser.parse_args().seconds
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with ExitStack() as stack:
            tour(stack, seconds)
    except KeyboardInterrupt:
        print("\nStopped.")
    print("All that it started has ended, and its files are removed.")
    return 0


def tour(stack: ExitStack, seconds: float) -> None:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-demo-")))
    say("Starting a broker ...")
    brokers = stack.enter_context(broker(folder))
    admin = AdminClient({"bootstrap.servers": brokers})
    for created in admin.create_topics([NewTopic(name, 2) for name in (TOPIC, *RESULTS.values())]).values():
        created.result(60)
    events = Events(brokers)
    stack.enter_context(events.published())
    results = Results(brokers)
    stack.callback(results.close)

    say("Starting Spark ...")
    url = stack.enter_context(spark(folder))
    pipelines = {}
    for name, values in (("archive", {"lake": str(folder / "lake")}), ("aggregate", AGGREGATE)):
        make_project(folder / name, load_template(name), {"topic": TOPIC, **values}, brokers)
        say(f"  penstock pipeline init {name} --template {name} --topic {TOPIC} ...")
        say(f"  penstock pipeline run {name} --every 1s")
        run = [*PENSTOCK, "pipeline", "run", str(folder / name), "--every", "1s", "--remote", url, "--json"]
        pipelines[name] = stack.enter_context(child(run, folder / f"{name}.log"))

    say(f"Waiting for the first results: a window of {AGGREGATE['window']}, and Spark's first steps ...")
    show = stack.enter_context(screen())
    give_up_at = time.monotonic() + START_S_MAX
    end_at = None
    while end_at is None or time.monotonic() < end_at:
        for name, process in pipelines.items():
            if process.poll() is not None:
                sys.exit(f"Pipeline {name} has ended:\n{(folder / f'{name}.log').read_text()[-2000:]}")
        results.poll(1.0)
        flows = [(name, flow) for name in pipelines for flow in last_of_each_flow(folder / f"{name}.log")]
        show(events, results, flows)
        is_archived = any(name == "archive" and flow["rows_in"] for name, flow in flows)
        if end_at is None and results.windows and is_archived:
            end_at = time.monotonic() + seconds
        if end_at is None and time.monotonic() > give_up_at:
            sys.exit(f"No results within {START_S_MAX} seconds.\n{(folder / 'aggregate.log').read_text()[-2000:]}")


class Events:
    """Publishes log lines of three services, one of which has bad moments; some lines are no JSON."""

    def __init__(self, brokers: str) -> None:
        self._producer = Producer({"bootstrap.servers": brokers, "linger.ms": 20, "log_level": 0})
        self._stop = threading.Event()
        self.count = 0

    @contextmanager
    def published(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run, name="events")
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()
            self._producer.flush(10)

    def _run(self) -> None:
        chance = random.Random(7)
        while not self._stop.wait(1 / EVENTS_PER_S):
            is_bad_moment = time.time() % 20 < 7
            service = chance.choice(["web", "mail", "database"])
            errors = 0.6 if service == "database" and is_bad_moment else 0.05
            level = "ERROR" if chance.random() < errors else "INFO"
            event = json.dumps({"service": service, "level": level, "message": f"request {self.count}"})
            value = "Traceback (most recent call last):" if chance.random() < 0.01 else event
            self._producer.produce(TOPIC, value, service)
            self._producer.poll(0)
            self.count += 1


class Results:
    """What the pipelines have written, read as any consumer would."""

    def __init__(self, brokers: str) -> None:
        settings = {"group.id": "demo", "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
        self._consumer = Consumer({"bootstrap.servers": brokers, "log_level": 0, **settings})
        self._consumer.subscribe(list(RESULTS.values()))
        self.windows: list[dict[str, Any]] = []
        self.alerts: set[str] = set()
        self.reasons: Counter[str] = Counter()

    def poll(self, timeout_s: float) -> None:
        for message in self._consumer.consume(1000, timeout_s):
            if message.error():
                continue  # librdkafka goes on by itself.
            if message.topic() == RESULTS["counts"]:
                self.windows.append(json.loads(message.value()))
            elif message.topic() == RESULTS["alerts"]:
                self.alerts.add(message.value().decode())
            else:
                self.reasons[dict(message.headers())["__dlq.errors.message"].decode()] += 1

    def last_windows(self, count: int) -> list[tuple[object, ...]]:
        newest = sorted(self.windows, key=lambda each: (each["start"], each["service"]))[-count:]
        return [
            (each["start"][11:19], each["service"], each["count"], "ALERT" if json_text(each) in self.alerts else "")
            for each in newest
        ]

    def close(self) -> None:
        self._consumer.close()


def json_text(value: dict[str, Any]) -> str:
    """As Spark writes it."""
    return json.dumps(value, separators=(",", ":"))


def last_of_each_flow(log: Path) -> list[dict[str, Any]]:
    flows: dict[str, dict[str, Any]] = {}
    for line in log.read_text().splitlines():
        if line.startswith('{"timestamp"') and line.endswith("}"):
            event = json.loads(line)
            if "flow" in event:
                flows[event["flow"]] = event
    return list(flows.values())


@contextmanager
def broker(folder: Path) -> Iterator[str]:
    log = folder / "broker.log"
    with child([*PENSTOCK, "serve", "--listen", "localhost:0", "--data", str(folder / "data")], log) as process:
        while True:
            found = re.search(r"listens on (localhost:\d+)", log.read_text())
            if found:
                yield found[1]
                return
            if process.poll() is not None:
                sys.exit(f"The broker did not start:\n{log.read_text()}")
            time.sleep(0.05)


@contextmanager
def spark(folder: Path) -> Iterator[str]:
    """One Java process for both pipelines."""
    config = {
        "spark.master": "local[*]",
        "spark.driver.host": "localhost",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.warehouse.dir": (folder / "warehouse").as_uri(),
        "spark.local.dir": str(folder),
    }
    with (folder / "spark.log").open("w") as log, output_to(log):
        context, url = start_server(config)
        try:
            yield url
        finally:
            stop_server(context)


@contextmanager
def child(command: list[str], log: Path) -> Iterator[Popen[bytes]]:
    process = start_child(command, log=log)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(60)
        except TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def screen() -> Iterator[Callable[[Events, Results, list[tuple[str, dict[str, Any]]]], None]]:
    columns = ("PIPELINE", "FLOW", "STATE", "ROWS IN", "ROWS OUT", "LATE", "LAG")
    window_columns = ("WINDOW", "SERVICE", "ERRORS", "")

    def rows(flows: list[tuple[str, dict[str, Any]]]) -> list[tuple[object, ...]]:
        keys = ("flow", "state", "rows_in", "rows_out", "late", "lag")
        return [(name, *(flow[key] for key in keys)) for name, flow in flows]

    def summary(events: Events, results: Results) -> str:
        reasons = ", ".join(f"{reason}: {count}" for reason, count in results.reasons.items()) or "none"
        return (
            f"{local_time(time.time_ns() // 1_000_000)[11:19]}  {plural(events.count, 'event')} published,"
            f" {plural(len(results.windows), 'window')} counted, {plural(len(results.alerts), 'alert')},"
            f" dead letters: {reasons}"
        )

    if not sys.stdout.isatty():
        last: list[object] = [()]
        shown_at = [0.0]

        def show(events: Events, results: Results, flows: list[tuple[str, dict[str, Any]]]) -> None:
            last[0] = (events, results, flows)
            if time.monotonic() - shown_at[0] > 5:
                shown_at[0] = time.monotonic()
                say(summary(events, results))

        yield show
        if last[0]:
            events, results, flows = last[0]  # type: ignore[misc]
            say(summary(events, results))
            print_table(columns, rows(flows))
            print_table(window_columns, results.last_windows(12))
        return
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(file=sys.stdout, highlight=False), auto_refresh=False) as live:

        def redraw(events: Events, results: Results, flows: list[tuple[str, dict[str, Any]]]) -> None:
            windows = rich_table(window_columns, results.last_windows(12))
            live.update(Group(Text(summary(events, results)), rich_table(columns, rows(flows)), windows), refresh=True)

        yield redraw


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
