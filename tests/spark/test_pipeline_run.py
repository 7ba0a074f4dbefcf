"""`penstock pipeline` with a real Spark: from a template to rows in a topic, again and again, and what goes wrong.

Every command runs in the tests' Java process, by way of Spark Connect; one test has a Java process of its own.
"""

import json
import os
import signal
import subprocess
import sys

import pytest

NO_RETRY = '  spark.sql.pipelines.maxFlowRetryAttempts: "0"\n'  # Each takes five seconds.
pytestmark = pytest.mark.timeout(
    900
)  # Seconds each on a quiet machine; a process of Java's takes minutes on a busy one.
PENSTOCK = [sys.executable, "-m", "penstock.cli.main", "pipeline"]


@pytest.fixture
def pipeline(penstock_broker, connect_url, tmp_path):
    """`pipeline("run", "p")` gives its JSON lines; `fails=True`, its error."""
    environment = {**os.environ, "PENSTOCK_BOOTSTRAP_SERVER": penstock_broker.bootstrap_servers}

    def pipeline(command, *arguments, fails=False, remote=True):
        where = ["--remote", connect_url] if remote and command in ("run", "validate") else []
        done = subprocess.run(
            [*PENSTOCK, command, *arguments, *where, "--json"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=400,
        )
        logs = "".join(path.read_text() for path in tmp_path.glob("*/.penstock/log"))
        assert (done.returncode != 0) == fails, done.stdout + done.stderr + logs[-5000:]
        if fails:
            return json.loads(done.stderr.splitlines()[-1])["error"]
        lines = done.stdout.splitlines()
        return [json.loads(line) for line in lines] if command == "run" else json.loads(done.stdout)

    return pipeline


def of_topic(load, topic):
    rows = load("penstock", subscribe=topic, kafka__isolation__level="read_committed").collect()
    return sorted((row.key or b"", row.value) for row in rows)


def wait_for(lines, is_wanted):
    assert any(is_wanted(json.loads(line)) for line in lines)


def test_dedupe_from_init_to_status(pipeline, produce, load, penstock_broker, connect_url, tmp_path):
    orders = penstock_broker.create_topic("orders", partitions=2)
    produce(orders, [(i % 2, f"k{i % 6}", f"first {i}", 1_760_000_000_000 + i, None) for i in range(12)])
    produce(orders, [(0, None, "whose?", 1_760_000_000_000, None)])
    pipeline("init", "clean", "--template", "dedupe", "--topic", orders, "--set", "window=1 minute")
    assert pipeline("validate", "clean") == {"project": "clean", "valid": True}

    *_, last = pipeline("run", "clean")
    assert last["outcome"] == "completed"
    flows = {flow["flow"]: flow for flow in last["flows"]}
    flow = flows["first_of_each_key"]
    assert (flow["state"], flow["rows_in"], flow["rows_out"], flow["lag"]) == ("completed", 13, 6, 0)
    assert flows["without_key"]["rows_out"] == 1

    # Repeated within the window; a new key; repeated after it, when the key is forgotten; late by more than it.
    later = 1_760_000_000_000 + 20_000
    produce(orders, [(0, "k0", "again", later, None), (1, "new", "new", later, None)])
    produce(orders, [(0, "far", "far", later + 200_000, None)])
    pipeline("run", "clean")
    produce(orders, [(0, "k0", "much later", later + 201_000, None), (1, "late", "late", later, None)])
    behind, _ = pipeline("status", "clean")["flows"]
    assert sum(part["lag"] for part in behind["partitions"]) == 2
    *_, last = pipeline("run", "clean")
    assert {flow["flow"]: flow["late"] for flow in last["flows"]} == {"first_of_each_key": 1, "without_key": 0}

    found = of_topic(load, "orders-unique")
    assert [key for key, _ in found] == sorted([b"k0", *(f"k{i}".encode() for i in range(6)), b"new", b"far"])
    assert (b"k0", b"much later") in found
    assert of_topic(load, "orders-dead-letters") == [(b"", b"whose?")]
    status = pipeline("status", "clean")
    assert status["last_run"]["outcome"] == "completed"
    assert sum(part["lag"] for part in status["flows"][0]["partitions"]) == 0
    assert [each["name"] for each in pipeline("list")] == ["clean"]

    # One that goes on sees what comes while it runs, until it is stopped.
    running = subprocess.Popen(
        [*PENSTOCK, "run", "clean", "--every", "0s", "--remote", connect_url, "--json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        produce(orders, [(0, "live", "live", later + 202_000, None)])
        wait_for(running.stdout, lambda event: event.get("rows_out") == 1)
        produce(orders, [(0, "more", "more", later + 202_000, None)])
        wait_for(running.stdout, lambda event: event.get("rows_out") == 2)
        assert "running already" in pipeline("run", "clean", fails=True)["message"]
    finally:
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=120)
    assert running.returncode == 130
    assert pipeline("status", "clean")["last_run"]["outcome"] == "stopped"


def test_aggregate_counts_what_is_on_time_alerts_and_sets_bad_records_aside(
    pipeline, produce, load, penstock_broker, tmp_path
):
    logs = penstock_broker.create_topic("logs", partitions=2)
    minute, now = 60_000, 1_760_000_040_000  # A full minute.

    def event(at, service="web", **more):
        return (0, None, json.dumps({"service": service, "level": "ERROR", **more}), at, None)

    settings = [
        "window=1 minute",
        "late=2 minutes",
        "alert_from=3",
        "schema=service STRING NOT NULL, level STRING, n INT",
    ]
    pipeline(
        "init", "agg", "-t", "aggregate", "--topic", logs, *(word for each in settings for word in ("--set", each))
    )
    bad = [
        (1, b"k", value, now, [("h", b"1")])
        for value in (b"nonsense", b"\xff", b'{"level": "x"}', b'{"service": "a", "n": "b"}')
    ]
    produce(logs, [event(now), event(now + 59_000), event(now, "db"), event(now + minute), *bad])
    pipeline("run", "agg")
    assert "logs-counts" not in penstock_broker.topics()  # Nothing is final yet.
    dead = load("penstock", subscribe="logs-dead-letters", includeHeaders="true").collect()
    told = {row.value: {header.key: bytes(header.value) for header in row.headers} for row in dead}
    assert {value: headers["__dlq.errors.message"].decode() for value, headers in told.items()} == {
        b"nonsense": "not JSON",
        b"\xff": "not UTF-8",
        b'{"level": "x"}': "field service is missing",
        b'{"service": "a", "n": "b"}': "field n is STRING, and declared as INT",
    }
    assert told[b"\xff"]["h"] == b"1"
    assert [told[b"\xff"][f"__dlq.errors.{name}"] for name in ("topic", "partition", "offset")] == [b"logs", b"1", b"1"]

    # Out of order, but in time; then one that closes the first window; then one that is too late for it.
    produce(logs, [event(now + 1000), event(now + 4 * minute - 1)])
    pipeline("run", "agg")
    produce(logs, [event(now + 2000)])
    *_, last = pipeline("run", "agg")
    assert {flow["flow"]: flow["late"] for flow in last["flows"]}["counts_and_alerts"] == 1
    counts = [json.loads(value) for _, value in of_topic(load, "logs-counts")]
    assert [(each["service"], each["level"], each["count"]) for each in counts] == [
        ("db", "ERROR", 1),
        ("web", "ERROR", 3),
    ]
    assert counts[0]["start"].startswith("2025-10-09T08:54:00")
    assert [json.loads(value) for _, value in of_topic(load, "logs-alerts")] == [counts[1]]

    spec = tmp_path / "agg" / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace('strict: "false"', 'strict: "true"') + NO_RETRY)
    produce(logs, [(1, None, b'{"service": "a", "n": []}', now, None)])
    error = pipeline("run", "agg", fails=True)
    assert "logs-1@4: field n is ARRAY<VOID>, and declared as INT" in error["message"]


def test_what_goes_wrong_is_said(pipeline, tmp_path):
    pipeline("init", "clean", "--template", "dedupe", "--topic", "nowhere")
    with (tmp_path / "clean" / "spark-pipeline.yml").open("a") as file:
        file.write(NO_RETRY)
    error = pipeline("run", "clean", fails=True)
    assert error["code"] == "UNKNOWN_TOPIC_OR_PART"
    assert "no topic 'nowhere'" in error["message"]
    assert "topics create nowhere" in error["hint"]
    assert pipeline("status", "clean")["last_run"]["outcome"] == "failed"

    (tmp_path / "clean" / "transformations" / "more.py").write_text("nonsense()\n")
    assert "nonsense" in pipeline("validate", "clean", fails=True)["message"]
    assert pipeline("run", "clean", "-b", "localhost:1", fails=True)["code"] == "BROKER_UNREACHABLE"


def test_with_a_java_process_of_its_own_tables_are_still_known_in_the_next_run(pipeline, tmp_path):
    """Also that of a pipeline that is not from a template: Spark's own first example."""
    folder = tmp_path / "own"
    (folder / "transformations").mkdir(parents=True)
    (folder / "spark-pipeline.yml").write_text(
        f"name: own\nstorage: {(folder / 'storage').as_uri()}\nlibraries: [{{glob: {{include: transformations/**}}}}]\n"
    )
    (folder / "transformations" / "evens.sql").write_text(
        "CREATE MATERIALIZED VIEW evens AS SELECT id FROM range(10) WHERE id % 2 = 0;\n"
    )
    for _ in range(2):
        *_, last = pipeline("run", "own", "--master", "local[2]", remote=False)
        assert [flow["state"] for flow in last["flows"]] == ["completed"]
    assert list((folder / "warehouse" / "evens").glob("*.parquet"))
    assert (folder / "metastore").exists()
