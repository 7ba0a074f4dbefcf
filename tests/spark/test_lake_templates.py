"""The templates `archive`, `table` and `replay`: from one topic to the lake, to a table, and into another topic."""

import json

from penstock.spark.lake_files import compression_of
from penstock.spark.lake_store import LakeStore

from .test_pipeline_run import pipeline  # noqa: F401


def test_archive_table_and_replay(pipeline, spark, produce, load, penstock_broker, tmp_path):  # noqa: F811
    events = penstock_broker.create_topic("events", partitions=2)
    produce(events, [(n % 2, b"k%d" % n, b"v%d" % n, 0, [("n", b"%d" % n)]) for n in range(20)])
    pipeline("init", "keep", "--template", "archive", "--topic", events, "--set", "compression=none")
    *_, last = pipeline("run", "keep")
    (flow,) = last["flows"]
    assert (flow["state"], flow["rows_in"], flow["lag"]) == ("completed", 20, 0)
    lake = tmp_path / "keep" / "lake"
    store = LakeStore(str(lake))
    assert {compression_of(store.root, each) for each in store.latest().files} == {"none"}
    (snapshot,) = lake.glob("_lake/*.json")
    # Where the lake ends is from Spark's note in the project's storage.
    assert json.loads(snapshot.read_text())["ends"] == {"events": {"0": 10, "1": 10}}

    produce(events, [(n % 2, b"k%d" % n, b"v%d" % n, 0, None) for n in range(20, 30)])
    pipeline(
        "init", "seen", "--template", "table", "--topic", events, "--set", "lake=../keep/lake", "--set", "table=seen"
    )
    *_, last = pipeline("run", "seen")
    assert last["outcome"] == "completed"
    assert sorted(row.value for row in spark.read.table("seen").collect()) == sorted(f"v{n}" for n in range(30))

    pipeline("init", "again", "--template", "replay", "--topic", events, "--set", f"lake={lake}")
    penstock_broker.create_topic("events-replay", partitions=2)
    pipeline("run", "again")
    options = {"includeHeaders": "true", "kafka__isolation__level": "read_committed"}
    columns = ["partition", "key", "value", "timestamp", "headers"]
    original, copy = (
        sorted(load("penstock", subscribe=topic, **options).select(*columns).collect())
        for topic in (events, "events-replay")
    )
    assert copy == [row for row in original if int(row.value[1:]) < 20]
