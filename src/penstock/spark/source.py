"""`format("penstock")`: what Spark calls, on the driver to plan and in the tasks to read.

Spark starts a Python process to plan a batch query, and keeps one for as long as a streaming query lives.
"""

import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.spark import plan
from penstock.spark.brokers import Brokers
from penstock.spark.filters import Narrowed
from penstock.spark.options import EARLIEST, LATEST, Bound, SourceOptions, read_source_options
from penstock.spark.plan import OffsetRange, Offsets, TopicPartition
from penstock.spark.reader import DataLoss, Wanted, read
from penstock.spark.writer import BatchWriter, StreamWriter, read_sink_options

SCHEMA = (
    StructType()
    .add("key", BinaryType())
    .add("value", BinaryType())
    .add("topic", StringType())
    .add("partition", IntegerType())
    .add("offset", LongType())
    .add("timestamp", TimestampType())
    .add("timestampType", IntegerType())
)
HEADERS = ArrayType(StructType().add("key", StringType()).add("value", BinaryType()))

_FILTERS_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


class PenstockDataSource(DataSource):
    """Source and sink of format `penstock`, with the options and columns of Spark's Kafka connector."""

    options: MutableMapping[str, str]

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        has_headers = self.options.get("includeHeaders", "false").strip().lower() == "true"
        return StructType([*SCHEMA, StructField("headers", HEADERS)]) if has_headers else SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_source_options(dict(self.options), is_streaming=False)
        self._check_schema(schema)
        # Spark refuses a reader that takes filters while spark.sql.python.filterPushdown.enabled is off, and it is off
        # unless somebody turned it on. Only then does the process run that hands filters over.
        return FilteringReader(options) if _takes_filters() else BatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        self._check_schema(schema)
        return StreamReader(read_source_options(dict(self.options), is_streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        if overwrite:
            raise ValueError('a topic cannot be overwritten: use mode("append")')
        return BatchWriter(read_sink_options(dict(self.options), schema, is_streaming=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        if overwrite:
            raise ValueError('a topic has no complete output: use outputMode("append") or outputMode("update")')
        return StreamWriter(read_sink_options(dict(self.options), schema, is_streaming=True))

    def _check_schema(self, schema: StructType) -> None:
        if schema != self.schema():
            raise ValueError(f"the schema is fixed, leave it out: {self.schema().simpleString()}")


def _takes_filters() -> bool:
    main = getattr(sys.modules["__main__"], "__spec__", None)
    return _FILTERS_WORKER in sys.modules or getattr(main, "name", None) == _FILTERS_WORKER


@dataclass
class Part(InputPartition):
    """What one task reads."""

    range: OffsetRange


class _TaskReader:
    """The part that runs in the tasks."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Part):
            return  # Spark makes a task without a range when there is nothing to read.
        options = self._options
        yield from read(
            Wanted(
                bootstrap_servers=options.bootstrap_servers,
                range=partition.range,
                isolation=options.isolation,
                has_headers=options.has_headers,
                fails_on_data_loss=options.fails_on_data_loss,
                poll_timeout_ms=options.poll_timeout_ms,
            )
        )

    def _parts(self, start: Offsets, end: Offsets) -> list[Part]:
        whole = plan.ranges(start, end)
        options = self._options
        return [Part(each) for each in plan.split(whole, parts_min=options.parts_min, records_max=options.records_max)]


class BatchReader(_TaskReader, DataSourceReader):
    narrowed = Narrowed()  # To nothing less than everything.

    def partitions(self) -> Sequence[InputPartition]:
        options, narrowed = self._options, self.narrowed
        with Brokers(options.bootstrap_servers) as brokers:
            wanted = [key for key in chosen_partitions(brokers, options) if narrowed.has_partition(*key)]
            start = resolve(brokers, options, options.start, wanted, is_start=True)
            end = resolve(brokers, options, options.end, wanted, is_start=False)
            if narrowed.timestamp_ms_min is not None:
                # The first record that is as late: all before it are too early, whatever comes after it.
                first = brokers.offsets(dict.fromkeys(wanted, narrowed.timestamp_ms_min), options.isolation)
                start = {key: max(start[key], first[key] if first[key] >= 0 else end[key]) for key in wanted}
        start = {key: max(offset, narrowed.offset_min) for key, offset in start.items()}
        end = {key: min(offset, narrowed.offset_end) for key, offset in end.items()}
        return self._parts(start, end)


class FilteringReader(BatchReader):
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self.narrowed, left = Narrowed.by(filters)
        return left


class StreamReader(_TaskReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are dictionaries here, as the checkpoint has them."""

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        self._brokers: Brokers | None = None
        self._target: dict[TopicPartition, int] | None = None  # Of Trigger.AvailableNow: not a record beyond.
        self._latest: dict[TopicPartition, int] | None = None
        self._last_batch_at = 0.0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_brokers": None}  # The tasks get a copy.

    def initialOffset(self) -> plan.OffsetsJson:
        brokers, options = self._connected(), self._options
        return plan.to_json(
            resolve(brokers, options, options.start, chosen_partitions(brokers, options), is_start=True)
        )

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.offsets_per_trigger_max is not None:
            return ReadMaxRows(self._options.offsets_per_trigger_max)
        if self._options.offsets_per_trigger_min is not None:
            return ReadMinRows(self._options.offsets_per_trigger_min)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._latest_offsets()

    def latestOffset(self, start: Mapping[str, Mapping[str, int]], limit: ReadLimit) -> plan.OffsetsJson:
        begin = plan.from_json(start)
        latest = self._latest = self._target if self._target is not None else self._latest_offsets()
        self._check_loss(begin, latest)
        begin |= self._earliest(latest.keys() - begin.keys())
        if isinstance(limit, ReadAllAvailable):
            return plan.to_json(latest)
        if self._target is None and self._is_too_little(plan.waiting_count(begin, latest)):
            return plan.to_json(plan.from_json(start))
        self._last_batch_at = time.monotonic()
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return plan.to_json(latest if rows_max is None else plan.admit(begin, latest, rows_max))

    def reportLatestOffset(self) -> plan.OffsetsJson | None:
        """Spark shows it in the query's progress: what is between it and `endOffset` is the lag."""
        return None if self._latest is None else plan.to_json(self._latest)

    def partitions(
        self, start: Mapping[str, Mapping[str, int]], end: Mapping[str, Mapping[str, int]]
    ) -> Sequence[InputPartition]:
        begin, until = plan.from_json(start), plan.from_json(end)
        self._check_loss(begin, until)
        return self._parts(begin | self._earliest(until.keys() - begin.keys()), until)

    def stop(self) -> None:
        if self._brokers is not None:
            self._brokers.close()

    def _connected(self) -> Brokers:
        if self._brokers is None:
            self._brokers = Brokers(self._options.bootstrap_servers)
        return self._brokers

    def _latest_offsets(self) -> dict[TopicPartition, int]:
        brokers, options = self._connected(), self._options
        return brokers.offsets(dict.fromkeys(chosen_partitions(brokers, options), LATEST), options.isolation)

    def _earliest(self, new: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Where partitions begin that have come while the query ran."""
        return self._connected().offsets(dict.fromkeys(sorted(new), EARLIEST), self._options.isolation)

    def _is_too_little(self, count: int) -> bool:
        least, delay_s = self._options.offsets_per_trigger_min, self._options.trigger_delay_ms_max / 1000
        return least is not None and count < least and time.monotonic() - self._last_batch_at < delay_s

    def _check_loss(self, start: Offsets, end: Offsets) -> None:
        if not self._options.fails_on_data_loss:
            return
        for (topic, partition), offset in start.items():
            if (topic, partition) not in end:
                raise DataLoss(f"{topic}-{partition} is gone. Set failOnDataLoss to false to go on without it.")
            if end[topic, partition] < offset:
                raise DataLoss(
                    f"{topic}-{partition} was read up to {offset} and now ends at {end[topic, partition]}: it was made"
                    " anew, or lost its end. Set failOnDataLoss to false to go on from there."
                )


def chosen_partitions(brokers: Brokers, options: SourceOptions) -> list[TopicPartition]:
    """What `subscribe`, `subscribePattern` or `assign` comes to now."""
    if options.pattern is not None:
        matching = [name for name in brokers.topics() if re.fullmatch(options.pattern, name)]
        return brokers.partitions(matching) if matching else []
    if options.topics:
        return brokers.partitions(options.topics)
    there = set(brokers.partitions({topic for topic, _ in options.assigned}))
    missing = [f"{topic}-{number}" for topic, number in options.assigned if (topic, number) not in there]
    if missing:
        raise ValueError(f"assign names partitions that are not there: {', '.join(missing)}")
    return list(options.assigned)


def resolve(
    brokers: Brokers, options: SourceOptions, bound: Bound, partitions: list[TopicPartition], *, is_start: bool
) -> dict[TopicPartition, int]:
    """The offset of each partition that `bound` means, as things are now."""
    if bound.each is not None:
        missing = [f"{topic}-{number}" for topic, number in partitions if (topic, number) not in bound.each]
        unknown = [f"{topic}-{number}" for topic, number in bound.each if (topic, number) not in partitions]
        if missing or unknown:
            raise ValueError(
                "offsets or timestamps must be given for exactly the partitions that are read; -1 is the latest offset,"
                f" -2 the earliest. Missing: {', '.join(missing) or 'none'}; unknown: {', '.join(unknown) or 'none'}."
            )
        places = {key: bound.each[key] for key in partitions}
    else:
        assert bound.everywhere is not None
        places = dict.fromkeys(partitions, bound.everywhere)
    if bound.kind == "offset":
        special = {key: place for key, place in places.items() if place < 0}
        return places | brokers.offsets(special, options.isolation)
    found = brokers.offsets(places, options.isolation)
    too_late = [key for key, offset in found.items() if offset < 0]
    if too_late and is_start and not options.no_match_is_latest:
        topic, number = too_late[0]
        raise ValueError(
            f"{topic}-{number} has no record as late as {places[topic, number]}. Set startingOffsetsByTimestampStrategy"
            " to latest to start at its end then."
        )
    return found | brokers.offsets(dict.fromkeys(too_late, LATEST), options.isolation)
