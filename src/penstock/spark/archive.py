"""The archive: topics into a lake, exactly once. `records` is what to read, `format("penstock-lake")` the sink.

Tasks write Parquet files, the driver's commit of a micro-batch puts all of them into the next snapshot (lake.py). A
batch that is run again finds itself there, by its query and number, and writes nothing. A driver that was replaced and
lives on can only do what its successor would find done: the snapshot it wants to follow has a successor already.
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.spark import lake as lakes
from penstock.spark import plan
from penstock.spark.brokers import Brokers
from penstock.spark.lake import LakeFile, Snapshot
from penstock.spark.lake_files import COMPRESSIONS, DEFAULT_COMPRESSION, LakeWriter, merged
from penstock.spark.lake_store import LakeStore, file_stem
from penstock.spark.options import EARLIEST
from penstock.spark.plan import TopicPartition
from penstock.spark.task import whoami

OFFSETS_PER_TRIGGER = 2_000_000  # Large batches make large files; a task's memory does not depend on it.
TIDY_EVERY = 100  # Batches, after which all folders are looked through for leftovers.

COLUMNS = {
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "key": "binary",
    "value": "binary",
    "headers": "array<struct<key:string,value:binary>>",
}


def records(
    spark: Any,
    topics: str,
    *,
    lake: str,
    bootstrap: str,
    max_offsets_per_trigger: int = OFFSETS_PER_TRIGGER,
    fail_on_data_loss: bool = True,
) -> Any:
    """A streaming DataFrame of what is to be archived: committed records of `topics` ("orders,payments").

    Where the query is new but the lake is not (its checkpoint was deleted) it goes on where the lake ends.
    `fail_on_data_loss`: stop when retention has deleted what was to be archived; else go on with what is left.
    """
    names = [each.strip() for each in topics.split(",") if each.strip()]
    ends = LakeStore(lake).latest().of(names).ends
    with Brokers(bootstrap) as brokers:
        start: dict[TopicPartition, int] = {key: ends.get(key, EARLIEST) for key in brokers.partitions(names)}
    return (
        spark.readStream.format("penstock")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", ",".join(names))
        .option("startingOffsets", json.dumps(plan.to_json(start)))
        .option("kafka.isolation.level", "read_committed")
        .option("includeHeaders", "true")
        .option("maxOffsetsPerTrigger", str(max_offsets_per_trigger))
        .option("failOnDataLoss", str(fail_on_data_loss).lower())
        .load()
    )


def check_columns(schema: StructType) -> None:
    given = {field.name: field.dataType.simpleString() for field in schema.fields}
    if given != COLUMNS:
        wanted = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
        raise ValueError(
            f"an archive takes whole records, as penstock.spark.records gives them (includeHeaders=true): {wanted};"
            f" not {', '.join(f'{name} {kind}' for name, kind in given.items())}"
        )


def checked_compression(given: str) -> str:
    name = given.strip().lower()
    if name not in COMPRESSIONS:
        raise ValueError(f"option compression is one of {', '.join(COMPRESSIONS)}, not {given!r}")
    return name


@dataclass
class Archived(WriterCommitMessage):
    """What a task tells the driver."""

    query_id: str
    files: list[LakeFile]


class ArchiveWriter(DataSourceStreamArrowWriter):
    def __init__(self, path: str, checkpoint: str | None, compression: str = DEFAULT_COMPRESSION) -> None:
        self._path = path
        self._checkpoint = checkpoint
        self._compression = checked_compression(compression)
        LakeStore(path)  # Refuses what is no folder.

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        me, store = whoami(), LakeStore(self._path)
        if store.latest().covers(me.query_id, me.batch_id):
            return Archived(me.query_id, [])
        writer = LakeWriter(store.root, f"{file_stem(*me)}-{{}}.parquet", self._compression)
        try:
            for batch in iterator:
                writer.write(batch)
            return Archived(me.query_id, writer.close())
        except BaseException:
            writer.discard()
            raise

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        written = _written(messages)
        if not written:
            return  # A batch without a task: nothing was read.
        store, query_id = LakeStore(self._path), written[0].query_id
        files = [each for message in written for each in message.files]
        ends = read_up_to(self._checkpoint, batchId)

        def add(lake: Snapshot) -> Snapshot:
            return lakes.add_batch(lake, query_id, batchId, files, ends)

        try:
            store.commit(add)
        except lakes.Overlap:
            store.delete_files(files)
            raise
        # From here on the batch counts. The rest makes room, and can be left to the next one.
        is_all = batchId % TIDY_EVERY == 0
        store.delete_leftovers(
            query_id, batchId, None if is_all else {lakes.folder(each.topic, each.day) for each in files}
        )
        compact(store)
        store.delete_old()

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What the messages do not name is deleted once the batch counts."""
        store = LakeStore(self._path)
        for message in _written(messages):
            if not store.latest().covers(message.query_id, batchId):
                store.delete_files(message.files)


def compact(store: LakeStore) -> None:
    """Make few large files of many small ones. Readers see the one or the other."""
    found = store.latest()
    for group in lakes.merges(found):
        try:
            new = merged(store.root, group, like=lakes.newest(found, group))
        except FileNotFoundError:
            if set(group) <= set(store.latest().files):
                raise
            continue  # Another one has merged them, and deleted them since.

        def swap(lake: Snapshot, group: list[LakeFile] = group, new: LakeFile = new) -> Snapshot:
            # A writer that slept for a day may find its file taken for a leftover.
            is_there = (store.root / new.path).exists()
            return lakes.replace_files(lake, group, new, int(time.time() * 1000)) if is_there else lake

        if new not in store.commit(swap).files:
            store.delete_files([new])


def read_up_to(checkpoint: str | None, batch_id: int) -> dict[TopicPartition, int]:
    """Where a batch ends, as Spark has noted before it ran it; nothing where the note cannot be read from here.

    Then rows tell: their last offset and what is after it, which is less by what was aborted or compacted there.
    """
    if checkpoint is None:
        return {}
    parts = urlsplit(checkpoint)
    if len(parts.scheme) > 1 and parts.scheme != "file":
        return {}
    path = Path(unquote(parts.path)) if parts.scheme == "file" else Path(checkpoint)
    try:
        lines = (path / "offsets" / str(batch_id)).read_text().splitlines()
    except FileNotFoundError:
        return {}
    found: dict[TopicPartition, int] = {}
    for line in lines:
        offsets = _offsets(line)
        if offsets is not None:
            found.update(plan.from_json(offsets))
    return found


def _offsets(line: str) -> Mapping[str, Mapping[str, int]] | None:
    """A line of Spark's offset log, if it is that of a source like ours: {"orders": {"0": 42}}."""
    try:
        found = json.loads(line)
    except ValueError:
        return None  # The version.
    if not isinstance(found, dict) or not found:
        return None
    for partitions in found.values():
        if not isinstance(partitions, dict):
            return None
        if not all(name.isdigit() and isinstance(offset, int) for name, offset in partitions.items()):
            return None
    return found


def _written(messages: Iterable[WriterCommitMessage | None]) -> list[Archived]:
    return [each for each in messages if isinstance(each, Archived)]
