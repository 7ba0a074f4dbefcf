"""The Parquet files of a lake: rows of tasks into files, many files into one, and the records of a partition in order.

Within a file the offsets of a partition ascend, whatever the order in which rows came: a reader merges files by holding
a few rows of each.
"""

import os
import uuid
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.spark import lake as lakes
from penstock.spark.lake import DAY_MS, FILE_BYTES, LakeFile, Span
from penstock.spark.lake_store import sync_folder

BUFFER_BYTES = 64 << 20  # Rows that a task holds back, to write them in pieces of a good size.
ROW_GROUP_BYTES = 2 << 20  # Spark has a column of it in its heap: with 64 MB, 1 KB records took twice as long.
WRITERS_MAX = 32  # Files that a task has open. With more days in a batch some get several files.
READ_BYTES = 8 << 20  # Rows of one file that a reader has at a time.
READ_ROWS_MAX = 16_384

# Topic and day are in the names of folders.
SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
_ORDER = [("partition", "ascending"), ("offset", "ascending")]
COMPRESSIONS = "zstd", "snappy", "lz4", "none"
DEFAULT_COMPRESSION = "zstd"
_PARQUET = {
    # Values are mostly different from each other, so that a dictionary of them is work for nothing.
    "use_dictionary": ["partition", "timestampType", "headers.list.element.key"],
    "data_page_size": 64 << 10,  # Stays in a processor's cache, where 1 MB does not, and takes 0.8 % more space.
    "column_encoding": {"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"},
}

Key = tuple[str, str]  # Topic and day.


class OpenFile:
    def __init__(self, root: Path, topic: str, day: str, name: str, compression: str) -> None:
        self._topic, self._day, self._name = topic, day, name
        self._path = root / lakes.folder(topic, day) / name
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._writer = pq.ParquetWriter(self._path, SCHEMA, compression=compression, **_PARQUET)
        self._spans: dict[int, Span] = {}
        self._rows = 0
        self.bytes = 0

    def takes(self, spans: dict[int, Span]) -> bool:
        """Whether all offsets would be behind those that are there."""
        return all(mine.first > self._spans[number].last for number, mine in spans.items() if number in self._spans)

    def write(self, rows: pa.Table, spans: dict[int, Span]) -> None:
        in_group = max(len(rows) * ROW_GROUP_BYTES // max(rows.nbytes, 1), 1)
        self._writer.write_table(rows, row_group_size=in_group)
        for number, span in spans.items():
            self._spans[number] = self._spans.get(number, span)._replace(last=span.last)
        self._rows += len(rows)
        self.bytes += rows.nbytes

    def close(self) -> LakeFile:
        """It is on disk."""
        self._writer.close()
        descriptor = os.open(self._path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        # A new folder is an entry of its own in the one above it.
        for folder in (self._path.parent, self._path.parent.parent, self._path.parent.parent.parent):
            sync_folder(folder)
        spans = tuple(sorted(self._spans.values()))
        return LakeFile(self._topic, self._day, self._name, self._rows, self.bytes, spans)

    def discard(self) -> None:
        self._writer.close()
        self._path.unlink(missing_ok=True)


class LakeWriter:
    """Rows of a task into files, one or more for each topic and day. Memory: about BUFFER_BYTES, twice."""

    def __init__(self, root: Path, name: str, compression: str = DEFAULT_COMPRESSION) -> None:
        """`name` with a place for the number of a file: `…-{}.parquet`."""
        self._root = root
        self._name = name
        self._compression = compression
        self._waiting: dict[Key, list[pa.Table]] = {}
        self._waiting_bytes: dict[Key, int] = {}
        self._open: dict[Key, OpenFile] = {}  # The last used at the end.
        self._count = 0
        self.files: list[LakeFile] = []

    def write(self, batch: pa.RecordBatch) -> None:
        for key, rows in cut(batch):
            self._waiting.setdefault(key, []).append(rows)
            self._waiting_bytes[key] = self._waiting_bytes.get(key, 0) + rows.nbytes
        while sum(self._waiting_bytes.values()) > BUFFER_BYTES:
            self._flush(max(self._waiting_bytes, key=self._waiting_bytes.__getitem__))

    def close(self) -> list[LakeFile]:
        for key in list(self._waiting):
            self._flush(key)
        for key in list(self._open):
            self._close(key)
        return self.files

    def discard(self) -> None:
        for each in self._open.values():
            each.discard()
        for done in self.files:
            (self._root / done.path).unlink(missing_ok=True)

    def _flush(self, key: Key) -> None:
        rows = in_order(pa.concat_tables(self._waiting.pop(key)))
        del self._waiting_bytes[key]
        spans = spans_of(rows)
        if key in self._open and not self._open[key].takes(spans):
            self._close(key)
        file = self._open.pop(key, None) or self._new(key)
        self._open[key] = file
        file.write(rows, spans)
        if file.bytes >= FILE_BYTES:
            self._close(key)

    def _new(self, key: Key) -> OpenFile:
        if len(self._open) >= WRITERS_MAX:
            self._close(next(iter(self._open)))
        self._count += 1
        return OpenFile(self._root, *key, self._name.format(self._count), self._compression)

    def _close(self, key: Key) -> None:
        self.files.append(self._open.pop(key).close())


def cut(batch: pa.RecordBatch) -> Iterator[tuple[Key, pa.Table]]:
    """The rows of each topic and day."""
    if not batch.num_rows:
        return
    rows = pa.table({name: batch[name].cast(SCHEMA.field(name).type) for name in SCHEMA.names}, SCHEMA)
    days = np.floor_divide(rows["timestamp"].cast(pa.int64()).to_numpy(), DAY_MS * 1000)
    topics = batch["topic"].dictionary_encode()
    topic_of = topics.indices.to_numpy(zero_copy_only=False)
    for number, topic in enumerate(topics.dictionary.to_pylist()):
        of_topic = topic_of == number
        for day in np.unique(days[of_topic]).tolist():
            which = of_topic & (days == day)
            yield (topic, lakes.day_of(day)), rows if which.all() else rows.filter(pa.array(which))


def in_order(rows: pa.Table) -> pa.Table:
    """By partition and offset."""
    partition, offset = rows["partition"].to_numpy(), rows["offset"].to_numpy()
    step = np.diff(partition)
    if np.all((step > 0) | ((step == 0) & (np.diff(offset) > 0))):
        return rows.combine_chunks()
    return rows.take(pc.sort_indices(rows.select(["partition", "offset"]), sort_keys=_ORDER)).combine_chunks()


def spans_of(rows: pa.Table) -> dict[int, Span]:
    """Of rows in order."""
    partition, offset = rows["partition"].to_numpy(), rows["offset"].to_numpy()
    numbers, first = np.unique(partition, return_index=True)
    last = [*(first[1:] - 1).tolist(), len(partition) - 1]
    return {
        number: Span(number, int(offset[start]), int(offset[end]))
        for number, start, end in zip(numbers.tolist(), first.tolist(), last, strict=True)
    }


def merged(root: Path, files: Collection[LakeFile], like: LakeFile) -> LakeFile:
    """One file with the rows of all of them, which are of one topic and day and not too large for memory together.

    Compressed as `like` is.
    """
    topic, day = next((each.topic, each.day) for each in files)
    rows = pa.concat_tables([pq.ParquetFile(root / each.path).read() for each in files])
    rows = in_order(rows)
    file = OpenFile(root, topic, day, f"merged-{uuid.uuid4()}.parquet", compression_of(root, like))
    try:
        file.write(rows, spans_of(rows))
        return file.close()
    except BaseException:
        file.discard()
        raise


def compression_of(root: Path, file: LakeFile) -> str:
    with pq.ParquetFile(root / file.path) as source:
        found = source.metadata.row_group(0).column(0).compression.lower()
    return "none" if found == "uncompressed" else found


def read_range(
    root: Path, files: Collection[LakeFile], partition: int, start: int, end: int, columns: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Records [start, end) of a partition, in order. Memory: READ_BYTES of each file that overlaps another."""
    sources = [_rows(root, each, partition, start, end, columns) for each in files]
    heads: list[tuple[pa.Table, Iterator[pa.Table]]] = []
    for source in sources:
        head = next(source, None)
        if head is not None:
            heads.append((head, source))
    while heads:
        # Nothing of what is still to come is below the last offset that a file has shown.
        safe = min(_offset(head, -1) for head, _ in heads)
        ready, left = [], []
        for head, source in heads:
            count = int(np.searchsorted(head["offset"].to_numpy(), safe, side="right"))
            if count:
                ready.append(head[:count])
            rest = head[count:] if count < len(head) else next(source, None)
            if rest is not None:
                left.append((rest, source))
        yield from in_order(pa.concat_tables(ready)).to_batches()
        heads = left


def _rows(
    root: Path, file: LakeFile, partition: int, start: int, end: int, columns: list[str] | None
) -> Iterator[pa.Table]:
    """Those of a partition and range, a few at a time and never none."""
    step = max(min(READ_ROWS_MAX, READ_BYTES * file.rows // max(file.bytes, 1)), 1)
    with pq.ParquetFile(root / file.path) as source:
        names = SCHEMA.names if columns is None else columns
        groups = [number for number in range(source.num_row_groups) if _may_have(source, number, partition, start, end)]
        for batch in source.iter_batches(batch_size=step, row_groups=groups, columns=names):
            numbers, offsets = batch["partition"].to_numpy(), batch["offset"].to_numpy()
            which = (numbers == partition) & (offsets >= start) & (offsets < end)
            if which.any():
                rows = pa.Table.from_batches([batch])
                yield rows if which.all() else rows.filter(pa.array(which))


def _may_have(source: Any, group: int, partition: int, start: int, end: int) -> bool:
    found = source.metadata.row_group(group)
    numbers, offsets = (found.column(SCHEMA.get_field_index(name)).statistics for name in ("partition", "offset"))
    return bool(numbers.min <= partition <= numbers.max and offsets.min < end and offsets.max >= start)


def _offset(rows: pa.Table, at: int) -> int:
    return int(rows["offset"][at].as_py())
