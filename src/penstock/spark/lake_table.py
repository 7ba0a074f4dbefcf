"""A topic as a table: what is in the lake, read by Spark's own Parquet reader, and the rest from the brokers.

Both halves come from one snapshot of the lake: its files, and the offsets where it ends. So an archive may run at the
same time.
"""

import json
from typing import Any

from penstock.spark import plan
from penstock.spark.brokers import Brokers
from penstock.spark.lake import Snapshot
from penstock.spark.lake_store import LakeStore
from penstock.spark.options import EARLIEST, LATEST, Isolation
from penstock.spark.seam import live_starts

SCHEMA = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT,"
    " headers ARRAY<STRUCT<key: STRING, value: BINARY>>, day DATE"
)
COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers", "day"]
# Of files on this machine: to read their parts by threads of their own is for stores that are far away.
READING = {"parquet.hadoop.vectored.io.enabled": "false"}
# In UTC, whatever the session's time zone: it is the day in the folder's name.
DAY = "date_from_unix_date(CAST(floor(unix_millis(timestamp) / 86400000) AS INT)) AS day"


def history(spark: Any, topics: str, *, lake: str) -> Any:
    """What the lake has of `topics` ("orders,payments") now. Conditions on `topic` and `day` choose files."""
    store = LakeStore(lake)
    return _history(spark, store, store.existing().of(_names(topics)))


def table(spark: Any, topics: str, *, lake: str, bootstrap: str) -> Any:
    """All committed records of `topics` as of now, from the lake and from the brokers, each once.

    Gap when some are in neither.
    """
    names = _names(topics)
    store = LakeStore(lake)
    found = store.latest().of(names)
    with Brokers(bootstrap) as brokers:
        partitions = brokers.partitions(names)
        earliest, latest = (
            brokers.offsets(dict.fromkeys(partitions, place), Isolation.READ_COMMITTED) for place in (EARLIEST, LATEST)
        )
    rest = list(plan.ranges(live_starts(found.ends, earliest, latest), latest))
    past = _history(spark, store, found)
    if not rest:
        return past  # Spark would start processes to read nothing.
    assigned: dict[str, list[int]] = {}
    for each in rest:
        assigned.setdefault(each.topic, []).append(each.partition)
    starts = {(each.topic, each.partition): each.start for each in rest}
    ends = {(each.topic, each.partition): each.end for each in rest}
    live = (
        spark.read.format("penstock")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("assign", json.dumps(assigned))
        .option("startingOffsets", json.dumps(plan.to_json(starts)))
        .option("endingOffsets", json.dumps(plan.to_json(ends)))
        .option("kafka.isolation.level", "read_committed")
        .option("includeHeaders", "true")
        .load()
        .selectExpr("*", DAY)
    )
    return past.unionByName(live)


def _history(spark: Any, store: LakeStore, found: Snapshot) -> Any:
    # Spark takes paths, not addresses: `=` must stay as it is.
    paths = [f"file://{store.root / each.path}" for each in found.files]
    if not paths:
        return spark.createDataFrame([], SCHEMA)
    reader = spark.read.schema(SCHEMA).option("basePath", f"file://{store.root}").options(**READING)
    return reader.parquet(*paths).select(*COLUMNS)


def _names(topics: str) -> list[str]:
    names = [each.strip() for each in topics.split(",") if each.strip()]
    if not names:
        raise ValueError(f"no topic is named: {topics!r}")
    return names
