"""Spark's events become rows, its checkpoints offsets, its errors words."""

import json

import pytest

from penstock.pipeline.checkpoints import FlowCheckpoint, offsets_of, read_checkpoints
from penstock.pipeline.progress import RunProgress
from penstock.pipeline.run_failure import explain, missing_topic


def batch(rows, *, out=-1, end=None, latest=None, late=0):
    return {
        "numInputRows": rows,
        "processedRowsPerSecond": 9.5,
        "sources": [{"endOffset": end, "latestOffset": latest}],
        "stateOperators": [{"numRowsDroppedByWatermark": late}],
        "sink": {"numOutputRows": out},
    }


def test_a_flow_goes_through_its_states_and_adds_up_its_batches():
    progress = RunProgress()
    progress.begin_update()
    for message in ("Flow spark_catalog.default.rows is QUEUED.", "Flow copy is STARTING.", "Flow copy is RUNNING."):
        assert progress.on_event(message) is not None
    progress.on_batch("copy", batch(500, out=400, end='{"t": {"0": 5, "1": 7}}', latest='{"t": {"0": 8, "1": 7}}'))
    progress.on_batch("copy", batch(0, out=10, late=2))
    progress.on_batch("spark_catalog.default.rows", batch(3))
    progress.on_event("Flow 'copy' has COMPLETED.")
    copy, rows = progress.flows["copy"], progress.flows["rows"]
    assert (copy.state, copy.batches_count, copy.rows_in, copy.rows_out) == ("completed", 2, 500, 410)
    assert copy.late_count == 2
    assert (copy.rows_per_s, copy.lag) == (9.5, None)  # A source that says nothing has no lag that we know of.
    assert (rows.state, rows.rows_in, rows.rows_out) == ("queued", 3, None)


def test_the_lag_is_what_was_there_and_is_not_read():
    progress = RunProgress()
    flow = progress.on_batch("copy", batch(1, end={"t": {"0": 5, "1": 7}}, latest={"t": {"0": 8, "1": 7, "2": 4}}))
    assert flow.lag == 3 + 4


def test_an_update_begins_with_a_clean_slate_and_keeps_the_sums():
    progress = RunProgress()
    progress.begin_update()
    progress.on_event("Flow 'copy' has FAILED.\nError: [DIVIDE_BY_ZERO] by zero")
    progress.on_batch("copy", batch(5))
    assert progress.errors == ["[DIVIDE_BY_ZERO] by zero"]
    progress.begin_update()
    assert (progress.errors, progress.flows["copy"].state, progress.flows["copy"].rows_in) == ([], "queued", 5)
    assert progress.on_event("Run is COMPLETED.") is None


@pytest.fixture
def checkpoint(tmp_path):
    def checkpoint(path, *, offsets=(), commits=()):
        for name, numbers in (("offsets", offsets), ("commits", commits)):
            (tmp_path / "_checkpoints" / path / name).mkdir(parents=True)
            for number in numbers:
                (tmp_path / "_checkpoints" / path / name / f".{number}.crc").write_text("")
                place = json.dumps({"orders": {"0": number * 10}})
                (tmp_path / "_checkpoints" / path / name / str(number)).write_text(
                    f'v1\n{{}}\n{place}\n{{"logOffset":3}}'
                )

    return checkpoint


def test_checkpoints_say_what_is_committed_in_the_newest_version(checkpoint, tmp_path):
    checkpoint("out/copy/0", offsets=[0, 1], commits=[0, 1])
    checkpoint("spark_catalog/default/rows/rows/9", offsets=[8, 9], commits=[8, 9])
    checkpoint("spark_catalog/default/rows/rows/10", offsets=[9, 10, 11], commits=[9, 10])
    checkpoint("spark_catalog/default/rows/new/0", offsets=[0])
    assert read_checkpoints(tmp_path) == [
        FlowCheckpoint("copy", "out", 1, {("orders", 0): 10}),
        FlowCheckpoint("new", "spark_catalog.default.rows", None, {}),
        FlowCheckpoint("rows", "spark_catalog.default.rows", 10, {("orders", 0): 100}),
    ]
    assert read_checkpoints(tmp_path / "nowhere") == []


@pytest.mark.parametrize("text", [None, "", "-", "3", '"x"', "[1]", '{"logOffset": 3}', '{"t": {"a": 1}}'])
def test_other_sources_have_no_offsets_that_we_know_of(text):
    assert offsets_of(text) == {}


WORKER = """[STREAM_FAILED] Query [id = 1] terminated with exception: [PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] No
Traceback (most recent call last):
  File "worker.py", line 7, in main
penstock.spark.brokers.Refusal: topic orders: unknown_topic_or_partition

The above exception was the direct cause of the following exception:
pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed
 SQLSTATE: 38000"""


@pytest.mark.parametrize(
    ("error", "events", "said"),
    [
        (WORKER, [], "topic orders: unknown_topic_or_partition (Refusal)"),
        ("[STREAM_FAILED] Query", [WORKER], "topic orders: unknown_topic_or_partition (Refusal)"),
        ("[TABLE_NOT_FOUND] no such table SQLSTATE: 42P01\nmore", [], "[TABLE_NOT_FOUND] no such table"),
        ("x", ["[USER_RAISED_EXCEPTION] orders-0@7: clash SQLSTATE: P0001"], "orders-0@7: clash"),
        ("", [], "RuntimeError"),
    ],
)
def test_an_error_is_told_by_its_reason(error, events, said):
    assert explain(RuntimeError(error), events) == said


def test_a_topic_that_is_not_there_is_named():
    assert missing_topic(explain(RuntimeError(WORKER))) == "orders"
    assert missing_topic("something else") is None
