"""One segment: a `.log` file and its two sparse indexes.

The indexes of the active segment live in memory and reach their files at every checkpoint and roll; those of older
segments are loaded when a reader needs them. Files are opened on use, so that ten thousand partitions need no ten
thousand descriptors.
"""

import contextlib
from collections.abc import Callable

from penstock.base.logging import get_logger
from penstock.base.types import NO_TIMESTAMP, Offset
from penstock.storage.format import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    RELATIVE_OFFSET_MAX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    segment_path,
)
from penstock.storage.fs import Buffer, File, FileSystem
from penstock.storage.index import BadIndex, OffsetIndex, TimeIndex
from penstock.storage.limits import SegmentLimits
from penstock.storage.scan import BadBatch, header_problem, scan_batches
from penstock.wire.batch import HEADER, HEADER_BYTES, BatchHeader

log = get_logger(__name__)

HeaderTest = Callable[[BatchHeader], bool]

LOCATE_CHUNK_BYTES = 8192  # Two index intervals: a reader that bisected finds its batch in one read.


class NotCached(Exception):
    """The bytes must come from the disk: run `load` away from the event loop, then ask again."""

    def __init__(self, file: File, position: int, size: int) -> None:
        super().__init__(f"{file.path} [{position}, {position + size})")
        self._file, self._position, self._size = file, position, size

    def load(self) -> None:
        # A reader that lost its file meanwhile (retention) finds that out when it asks again.
        with contextlib.suppress(OSError):
            self._file.read(self._position, self._size)


class Segment:
    def __init__(
        self, *, fs: FileSystem, limits: SegmentLimits, directory: str, base_offset: Offset, created_ms: int, size: int
    ) -> None:
        self.base_offset = base_offset
        self.size = size  # Bytes of whole batches; the file has no others, except while an append is failing.
        self.created_ms = created_ms
        self.first_timestamp = NO_TIMESTAMP  # Of the first batch; what roll by time counts from.
        self.is_active = False
        self.is_dirty = False  # Holds bytes that no sync has covered.
        self._fs = fs
        self._limits = limits
        self._directory = directory
        self._file: File | None = None
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._max_timestamp: int | None = None
        self._max_timestamp_offset = base_offset
        self._unindexed_bytes = 0
        self._index_bytes_stored = 0  # How much of each index its file has.
        self._time_bytes_stored = 0

    def path(self, suffix: str = LOG_SUFFIX) -> str:
        return segment_path(self._directory, self.base_offset, suffix)

    @property
    def file(self) -> File:
        file = self._file
        if file is None:
            file = self._file = self._fs.open(self.path(), create=True)
            self._limits.on_file_opened(self)
        return file

    def close(self) -> None:
        self._limits.forget(self)
        if self._file is not None:
            self._file.close()
            self._file = None

    def maybe_close_file(self) -> bool:
        if self.is_dirty:  # About to be synced through its descriptor.
            return False
        if self._file is not None:
            self._file.close()
            self._file = None
        return True

    def maybe_release_indexes(self) -> bool:
        if self.is_active:  # Has entries that its files lack.
            return False
        self._offset_index = self._time_index = None
        return True

    # Writing

    def start_empty(self) -> None:
        """Begin as a new active segment, with empty indexes."""
        self._offset_index, self._time_index = OffsetIndex(), TimeIndex()
        self._max_timestamp = NO_TIMESTAMP
        self.is_active = True

    def has_room(self, size: int, last_offset: int, segment_bytes: int, index_bytes: int) -> bool:
        """Whether a batch fits; an empty segment takes any batch, so that none is too large to store."""
        if self.size == 0:
            return True
        return (
            self.size + size <= segment_bytes
            and last_offset - self.base_offset <= RELATIVE_OFFSET_MAX
            and len(self.offset_index.data) + 8 <= index_bytes
        )

    def append(self, batch: Buffer, last_offset: int, max_timestamp: int, index_interval_bytes: int) -> None:
        """Write one batch and index it. On OSError the file is as before, or `truncate` raised too."""
        try:
            self.file.write((batch,))
        except OSError:
            self.file.truncate(self.size)
            raise
        self.is_dirty = True
        self.index_batch(self.size, last_offset, max_timestamp, index_interval_bytes)
        self.size += len(batch)
        self._unindexed_bytes += len(batch)

    def index_batch(self, position: int, last_offset: int, max_timestamp: int, index_interval_bytes: int) -> None:
        """Note a batch at `position`: an index entry once enough bytes have gone by, as Kafka does it."""
        if self.size == 0:
            self.first_timestamp = max_timestamp
        if max_timestamp > self.max_timestamp:
            self._max_timestamp, self._max_timestamp_offset = max_timestamp, Offset(last_offset)
        if self._unindexed_bytes > index_interval_bytes:
            self.offset_index.append(last_offset - self.base_offset, position)
            self.time_index.maybe_append(self.max_timestamp, self._max_timestamp_offset - self.base_offset)
            self._unindexed_bytes = 0

    def store_indexes(self, *, final: bool = False) -> list[File]:
        """Append to the index files what they lack; gives the open files, for the caller to sync and close."""
        if self._offset_index is None or self._time_index is None:
            return []
        if final and self.max_timestamp > NO_TIMESTAMP:
            self._time_index.maybe_append(self.max_timestamp, self._max_timestamp_offset - self.base_offset)
        files = [
            self._store_index(OFFSET_INDEX_SUFFIX, self._offset_index.data, self._index_bytes_stored),
            self._store_index(TIME_INDEX_SUFFIX, self._time_index.data, self._time_bytes_stored),
        ]
        self._index_bytes_stored, self._time_bytes_stored = len(self._offset_index.data), len(self._time_index.data)
        return files

    def _store_index(self, suffix: str, data: bytearray, stored: int) -> File:
        file = self._fs.open(self.path(suffix), create=True)
        try:
            if file.size() != stored:
                file.truncate(min(stored, file.size()))  # A failed write left a part of an entry.
                stored = file.size()
            if stored < len(data):
                file.write((memoryview(data)[stored:].toreadonly(),))
        except OSError:
            file.close()
            raise
        return file

    def become_inactive(self) -> list[File]:
        """Finish the indexes of a full segment; gives the index files, for the caller to sync and close."""
        files = self.store_indexes(final=True)
        self.is_active = False
        self._offset_index = self._time_index = None
        return files

    def truncate(self, position: int, next_offset: int) -> None:
        """Cut the file and its indexes back to `position`, where `next_offset` is due."""
        self.file.truncate(position)
        self.size = position
        self.is_dirty = True
        self.offset_index.truncate(position)
        self.time_index.truncate(next_offset - self.base_offset)
        self._index_bytes_stored = self._time_bytes_stored = 0
        for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            if self._fs.exists(self.path(suffix)):
                self._fs.remove(self.path(suffix))

    # Indexes

    @property
    def offset_index(self) -> OffsetIndex:
        if self._offset_index is None:
            self._load_indexes()
            assert self._offset_index is not None
        return self._offset_index

    @property
    def time_index(self) -> TimeIndex:
        if self._time_index is None:
            self._load_indexes()
            assert self._time_index is not None
        return self._time_index

    def _load_indexes(self) -> None:
        try:
            offset_index = OffsetIndex(self._read_file(OFFSET_INDEX_SUFFIX))
            time_index = TimeIndex(self._read_file(TIME_INDEX_SUFFIX))
            offset_index.check(self.size)
            time_index.check()
        except (BadIndex, FileNotFoundError) as error:
            log.warning("index is missing or damaged: rebuilding it", segment=self.path(), reason=error)
            self.rebuild_indexes()
            return
        self._offset_index, self._time_index = offset_index, time_index
        self._index_bytes_stored, self._time_bytes_stored = len(offset_index.data), len(time_index.data)
        self._limits.on_indexes_loaded(self)

    def _read_file(self, suffix: str) -> bytes:
        return self._fs.read_all(self.path(suffix))

    def rebuild_indexes(self, index_interval_bytes: int = 4096) -> None:
        """Make both indexes anew from the log, and replace their files."""
        size, self.size = self.size, 0
        self._offset_index, self._time_index = OffsetIndex(), TimeIndex()
        self._max_timestamp = NO_TIMESTAMP
        self._index_bytes_stored = self._time_bytes_stored = 0
        self._unindexed_bytes = 0
        self._max_timestamp_offset = self.base_offset
        position = 0
        while True:
            try:
                for found in scan_batches(self.file.read, position, size, self.base_offset):
                    self.note_scanned(found.position, found.header, index_interval_bytes)
                break
            except BadBatch as bad:
                # Recovery and `penstock log verify` judge damage; an index only has to lead around it.
                if bad.skip_to is None:
                    break
                position = bad.skip_to
        self.size = size
        for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            if self._fs.exists(self.path(suffix)):
                self._fs.remove(self.path(suffix))
        for file in self.store_indexes(final=True):
            file.close()

    def note_scanned(self, position: int, header: BatchHeader, index_interval_bytes: int) -> None:
        """Index a batch found by a scan; `size` follows the scan."""
        self.index_batch(position, header.last_offset, header.max_timestamp, index_interval_bytes)
        self.size = position + header.size
        self._unindexed_bytes += header.size

    def resume_indexes(self, position: int, next_offset: int) -> None:
        """Keep the index entries below `position`, from where a recovery scan goes on."""
        self.offset_index.truncate(position)
        self.time_index.truncate(next_offset - self.base_offset)
        last = self.time_index.last()
        self._max_timestamp = last[0] if last else NO_TIMESTAMP
        self._max_timestamp_offset = Offset(self.base_offset + (last[1] if last else 0))
        self._unindexed_bytes = 0
        self.size = position
        self._index_bytes_stored = min(self._index_bytes_stored, len(self.offset_index.data))
        self._time_bytes_stored = min(self._time_bytes_stored, len(self.time_index.data))

    @property
    def max_timestamp(self) -> int:
        """Of all batches; `NO_TIMESTAMP` when the segment has none."""
        if self._max_timestamp is None:
            last = self.time_index.last()
            self._max_timestamp = last[0] if last else NO_TIMESTAMP
            self._max_timestamp_offset = Offset(self.base_offset + (last[1] if last else 0))
        return self._max_timestamp

    @property
    def max_timestamp_offset(self) -> Offset:
        """The last offset of the first batch that has the maximum timestamp."""
        return self._max_timestamp_offset if self.max_timestamp != NO_TIMESTAMP else self.base_offset

    # Reading

    def read(self, position: int, size: int) -> Buffer:
        """Bytes as they lie in the file; NotCached when they must come from the disk."""
        data = self.file.read_cached(position, size)
        if data is None:
            raise NotCached(self.file, position, size)
        return data

    def locate(self, offset: int) -> int:
        """Position of the first batch whose last offset is `offset` or more; `size` when there is none."""
        start = self.offset_index.position_before(offset - self.base_offset)
        found = self._walk(start, lambda header: header.last_offset >= offset)
        if found is None:
            self._rebuild_misleading(start)
            found = self._walk(0, lambda header: header.last_offset >= offset)
        return self.size if found is None else found

    def locate_timestamp(self, timestamp: int) -> int:
        """Position of the first batch with a record of `timestamp` or later; `size` when there is none."""
        start = self.offset_index.position_before(self.time_index.offset_before(timestamp))
        found = self._walk(start, lambda header: header.max_timestamp >= timestamp)
        return self.size if found is None else found

    def _walk(self, position: int, wanted: HeaderTest) -> int | None:
        """Position of the first wanted batch from `position` on, `size` when none is; None at a header that is none."""
        chunk: Buffer = b""
        chunk_start = position
        while position < self.size:
            if position + HEADER_BYTES > chunk_start + len(chunk):
                chunk, chunk_start = self.read(position, min(LOCATE_CHUNK_BYTES, self.size - position)), position
                if len(chunk) < HEADER_BYTES:
                    return None
            header = BatchHeader._make(HEADER.unpack_from(chunk, position - chunk_start))
            if header_problem(header, self.base_offset) is not None:
                return None
            if wanted(header):
                return position
            position += header.size
        return self.size

    def _rebuild_misleading(self, start: int) -> None:
        if start > 0:
            log.warning("index points between batches: rebuilding it", segment=self.path(), position=start)
            self.rebuild_indexes()

    # Leaving

    def rename_files(self, suffix: str) -> list[str]:
        """Move the segment's files out of the way; gives their new names."""
        self.close()
        renamed = []
        for kind in SEGMENT_SUFFIXES:
            path = self.path(kind)
            if self._fs.exists(path):
                self._fs.rename(path, path + suffix)
                renamed.append(path + suffix)
        return renamed
