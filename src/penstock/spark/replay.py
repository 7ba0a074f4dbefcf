"""From a lake back into a topic: the source of `format("penstock-lake")`, read in order and at a chosen pace.

A position is the offset that a record had in the topic it came from, by partition. That is what the checkpoint holds:
a restart goes on where the last batch ended, and the sink writes every record once. A task reads one partition, so the
order within it is kept. While the query is not running no time passes for its pace.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from penstock.base.errors import ErrorCode
from penstock.spark import pace, plan
from penstock.spark.brokers import Brokers, Refusal
from penstock.spark.lake import LakeFile, Snapshot
from penstock.spark.lake_files import SCHEMA, read_range
from penstock.spark.lake_store import LakeMissing, LakeStore
from penstock.spark.pace import Pace, Speed, Upcoming, read_speed
from penstock.spark.plan import OffsetsJson, TopicPartition

OFFSETS_PER_TRIGGER = 500_000
PAUSE_S = 0.2
BATCH_S_MIN = 1.0  # A paced batch comes once a second at most: each costs some transactions.
UPCOMING_MAX = 50_000  # Timestamps that are held of each partition.

COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]


class TooFewPartitions(Exception):
    """The target cannot keep the records' partitions."""


@dataclass(frozen=True)
class ReplayOptions:
    path: str
    topics: tuple[str, ...]
    speed: Speed
    step: int


def read_replay_options(options: Mapping[str, str]) -> ReplayOptions:
    given = {name.lower(): value.strip() for name, value in options.items()}
    topics = tuple(each.strip() for each in given.get("subscribe", "").split(",") if each.strip())
    if not topics:
        raise ValueError("option subscribe is missing: the topics to replay, such as orders")
    step = given.get("maxoffsetspertrigger", str(OFFSETS_PER_TRIGGER))
    if not step.isdigit() or not int(step):
        raise ValueError(f"maxOffsetsPerTrigger must be a positive number, not {step!r}")
    return ReplayOptions(given.get("path", ""), topics, read_speed(given.get("speed", "max")), int(step))


def replayed(
    spark: Any,
    topics: str,
    *,
    lake: str,
    bootstrap: str,
    target: str | None = None,
    speed: str = "max",
    max_offsets_per_trigger: int = OFFSETS_PER_TRIGGER,
) -> Any:
    """A streaming DataFrame of what the lake has of `topics`, for the sink `format("penstock")`.

    `target`: the topic that the sink's option `topic` names; else records go to topics of their own names.
    `speed`: `max`, `1000/s` (records a second) or `2x` (twice as fast as they came).
    TooFewPartitions when there is no partition in the target for some of them.
    """
    names = [each.strip() for each in topics.split(",") if each.strip()]
    check_targets(LakeStore(lake).existing().of(names), bootstrap, target)
    return (
        spark.readStream.format("penstock-lake")
        .option("path", lake)
        .option("subscribe", ",".join(names))
        .option("speed", speed)
        .option("maxOffsetsPerTrigger", str(max_offsets_per_trigger))
        .load()
    )


def check_targets(lake: Snapshot, bootstrap: str, target: str | None) -> None:
    with Brokers(bootstrap) as brokers:
        for topic in lake.topics():
            name, wanted = target or topic, 1 + max(number for each, number in lake.ends if each == topic)
            how = f"penstock topics create {name} --partitions {wanted}"
            try:
                there = len(brokers.partitions([name]))
            except Refusal as error:
                if error.code != ErrorCode.unknown_topic_or_partition:
                    raise
                raise TooFewPartitions(f"there is no topic {name}: {how}") from error
            if there < wanted:
                raise TooFewPartitions(
                    f"{topic} has {wanted} partitions in the lake, and {name} has {there}. Records keep their"
                    f" partition, so they need a topic with as many, as by: {how}"
                )


@dataclass
class LakePart(InputPartition):
    """What one task reads."""

    topic: str
    partition: int
    start: int
    end: int
    files: tuple[LakeFile, ...]


class ReplayReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReplayOptions) -> None:
        self._options = options
        self._store = LakeStore(options.path)
        self._target: dict[TopicPartition, int] | None = None  # Of Trigger.AvailableNow.
        self._latest: dict[TopicPartition, int] | None = None
        self._upcoming: dict[TopicPartition, Upcoming] = {}
        self._last_batch_at = 0.0
        self._pace = self._chosen_pace()

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_store": self._store}  # For the tasks.

    def initialOffset(self) -> OffsetsJson:
        lake = self._store.existing().of(self._options.topics)
        missing = set(self._options.topics) - set(lake.topics())
        if missing:
            raise LakeMissing(f"the lake has nothing of {', '.join(sorted(missing))}")
        return plan.to_json({**lake.ends, **lake.starts()})

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()  # The pace decides.

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._ends()

    def latestOffset(self, start: Mapping[str, Mapping[str, int]], limit: ReadLimit) -> OffsetsJson:
        begin = plan.from_json(start)
        while True:
            end = self._latest = self._target if self._target is not None else self._ends()
            begin |= self._starts(end.keys() - begin.keys())
            # What the lake has now may be less than a position that is noted, if it was replaced: then nothing is due.
            end = {key: max(end.get(key, 0), offset) for key, offset in begin.items()}
            chosen = dict(begin) if self._is_too_soon() else self._pace.due(begin, end, time.monotonic())
            is_over = not pace.is_further(begin, end)
            if pace.is_further(begin, chosen):
                self._last_batch_at = time.monotonic()
                return plan.to_json(chosen)
            if is_over and self._target is not None:
                return plan.to_json(begin)
            time.sleep(PAUSE_S)
            # With AvailableNow, Spark takes no news for the end of all that there was: so it must not hear it before.
            if self._target is None:
                return plan.to_json(begin)

    def reportLatestOffset(self) -> OffsetsJson | None:
        return None if self._latest is None else plan.to_json(self._latest)

    def partitions(
        self, start: Mapping[str, Mapping[str, int]], end: Mapping[str, Mapping[str, int]]
    ) -> Sequence[InputPartition]:
        begin, until = plan.from_json(start), plan.from_json(end)
        begin |= self._starts(until.keys() - begin.keys())
        lake = self._store.existing()
        for (topic, partition), offset in until.items():
            if lake.ends.get((topic, partition), 0) < offset:
                raise LakeMissing(f"the lake has {topic}-{partition} no more up to {offset}: it was replaced")
        return [
            LakePart(*each, tuple(lake.files_with(each.topic, each.partition, each.start, each.end)))
            for each in plan.ranges(begin, until)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, LakePart):
            return  # Spark makes a task without a range when there is nothing to read.
        rows = read_range(self._store.root, partition.files, partition.partition, partition.start, partition.end)
        for batch in rows:
            columns = {name: batch[name] for name in SCHEMA.names}
            columns["topic"] = pa.repeat(pa.scalar(partition.topic, pa.string()), batch.num_rows)
            yield pa.record_batch({name: columns[name] for name in COLUMNS})

    def _chosen_pace(self) -> Pace:
        speed, step = self._options.speed, self._options.step
        if speed.records_per_second is not None:
            return pace.RecordsPerSecond(speed.records_per_second, step)
        if speed.multiple is not None:
            return pace.RealTime(speed.multiple, self._next)
        return pace.Unbounded(step)

    def _is_too_soon(self) -> bool:
        is_paced = not isinstance(self._pace, pace.Unbounded)
        return is_paced and time.monotonic() - self._last_batch_at < BATCH_S_MIN

    def _ends(self) -> dict[TopicPartition, int]:
        return dict(self._store.existing().of(self._options.topics).ends)

    def _starts(self, new: set[TopicPartition]) -> dict[TopicPartition, int]:
        """Where partitions begin that have come into the lake while the query ran."""
        if not new:
            return {}
        lake = self._store.existing()
        first = {**lake.ends, **lake.starts()}
        return {key: first[key] for key in new}

    def _next(self, key: TopicPartition, start: int, end: int) -> Upcoming:
        """The timestamps of what comes next, read from the lake when the last ones are used up."""
        offsets, timestamps, known = self._upcoming.get(key, ([], [], -1))
        if known <= start:
            self._upcoming[key] = offsets, timestamps, known = self._read_timestamps(key, start, end)
        behind = int(np.searchsorted(offsets, start))
        return offsets[behind:], timestamps[behind:], min(known, end)

    def _read_timestamps(self, key: TopicPartition, start: int, end: int) -> Upcoming:
        topic, partition = key
        until = min(end, start + UPCOMING_MAX)
        files = tuple(self._store.existing().files_with(topic, partition, start, until))
        wanted = ["partition", "offset", "timestamp"]
        rows = list(read_range(self._store.root, files, partition, start, until, wanted))
        if not rows:
            return [], [], until
        table = pa.Table.from_batches(rows)
        timestamps = table["timestamp"].cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
        return table["offset"].to_pylist(), timestamps.to_pylist(), until
