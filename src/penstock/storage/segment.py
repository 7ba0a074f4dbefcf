"""One segment: a `.log` file, its two sparse indexes, and which transactions were aborted in it.

The indexes of the active segment live in memory and reach their files at every checkpoint and roll; those of older
segments are loaded when a reader needs them. Files are opened on use, so that ten thousand partitions need no ten
thousand descriptors.

Indexes are derived data. An entry is believed only once the batch that it names has been seen where it says; otherwise
both indexes are made anew from the log.
"""

import contextlib
from collections.abc import Callable, Iterable

from penstock.base.errors import ErrorCode, Refused
from penstock.base.logging import get_logger
from penstock.base.types import NO_TIMESTAMP, Offset
from penstock.storage.format import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    RELATIVE_OFFSET_MAX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_path,
)
from penstock.storage.fs import Buffer, File, FileSystem
from penstock.storage.index import BadIndex, OffsetIndex, TimeIndex
from penstock.storage.limits import SegmentLimits
from penstock.storage.scan import BadBatch, Read, header_problem, scan_batches, scan_headers
from penstock.storage.segment_indexes import SegmentIndexes
from penstock.storage.txn_index import AbortedTxn, TxnIndex
from penstock.wire.batch import HEADER_BYTES, BatchHeader, read_header

log = get_logger(__name__)

HeaderTest = Callable[[BatchHeader], bool]

UNINDEXED_BATCHES_MAX = 1000  # Kafka's interval has 68 of the smallest batches; far more is an index that was cut off.

# A file system takes a third less time for bytes for which it has found space before. So a segment that grows reserves
# some, in proportion: ten thousand small partitions must not fill the disk with nothing. Small writes gain nothing, and
# to reserve waits for the file system's journal when a disk is busy.
RESERVE_FOR_BYTES_MIN = 8 << 10
RESERVE_SHARE = 4
RESERVE_BYTES_MIN = 256 << 10
RESERVE_BYTES_MAX = 16 << 20  # 4 MB at a time gain half as much.

LOAD_BYTES = 1 << 20  # Read at a time to warm the cache: what a disk thread holds, whatever the reader asked for.


class NotCached(Exception):
    """The bytes must come from the disk: run `load` away from the event loop, then ask again."""

    def __init__(self, file: File, position: int, size: int) -> None:
        super().__init__(f"{file.path} [{position}, {position + size})")
        self._file, self._position, self._size = file, position, size

    def load(self) -> None:
        # A reader that lost its file meanwhile (retention) finds that out when it asks again.
        with contextlib.suppress(OSError):
            for start in range(self._position, self._position + self._size, LOAD_BYTES):
                self._file.read(start, min(LOAD_BYTES, self._position + self._size - start))


class Segment:
    def __init__(
        self,
        *,
        fs: FileSystem,
        limits: SegmentLimits,
        directory: str,
        base_offset: Offset,
        created_ms: int,
        size: int,
        suffix: str = "",
    ) -> None:
        self.base_offset = base_offset
        self.size = size  # Bytes of whole batches; the file has no others, except while an append is failing.
        self.created_ms = created_ms
        self.first_timestamp = NO_TIMESTAMP  # Of the first batch; what roll by time counts from.
        self.directory = directory
        self.is_active = False
        self.is_dirty = False  # Holds bytes that no sync has covered.
        # As a life before has left it that was killed, and never synced since: it may have been cut in memory alone.
        # While it is the active segment nobody leans on that: what is written there is synced with it.
        self.is_found = False
        self.changes = 0  # How often readable bytes were taken away: who reads in pieces must not go on then.
        self._fs = fs
        self._limits = limits
        self._suffix = suffix  # After the usual names; for a segment that is being made and not yet in use.
        self._file: File | None = None
        self._reserve_at = 0  # The size at which to think of reserving space again.
        self._has_reserve = False
        self._indexes: SegmentIndexes | None = None
        self._newest: tuple[int, Offset] | None = None  # Of a closed segment: largest timestamp, and where it is.
        self._was_rebuilt = False  # The indexes at hand come from the log itself: where they lead is all there is.
        self._offset_bytes_stored = 0  # How much of each index its file has.
        self._time_bytes_stored = 0
        self._txn_index: TxnIndex | None = None  # Its file has all of it.
        self._aborted_from: int | None = -1  # `first_offset_min` of it; -1: it has not been looked at.

    def path(self, kind: str = LOG_SUFFIX) -> str:
        return segment_path(self.directory, self.base_offset, kind) + self._suffix

    @property
    def file(self) -> File:
        file = self._file
        return file if file is not None else self._open(create=False)

    def _open(self, *, create: bool) -> File:
        file = self._file = self._fs.open(self.path(), create=create)
        self._limits.on_file_opened(self)
        return file

    def close(self) -> None:
        """For good: its name may be that of another file from now on."""
        self.changes += 1
        self._give_back_reserve()
        self._limits.forget(self)
        self._close_file()

    def maybe_close_file(self) -> bool:
        if self.is_dirty:  # About to be synced through its descriptor.
            return False
        self._close_file()
        return True

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def maybe_release_indexes(self) -> bool:
        if self.is_active:  # Has entries that its files lack.
            return False
        self._release_indexes()
        self._txn_index = None
        return True

    # Writing

    def start_empty(self) -> None:
        """Make the file and begin as a new active segment, with empty indexes."""
        assert self._open(create=True).size() == 0, f"{self.path()} is there already"
        self._indexes = SegmentIndexes(self.base_offset)
        self.use_txn_index(TxnIndex())
        self.is_active = True

    def has_room(self, size: int, last_offset: int, segment_bytes: int, index_bytes: int) -> bool:
        """Whether a batch fits; an empty segment takes one of any size, so that none is too large to store."""
        return last_offset - self.base_offset <= RELATIVE_OFFSET_MAX and (
            self.size == 0 or (self.size + size <= segment_bytes and len(self.indexes.offsets.data) + 8 <= index_bytes)
        )

    def append(self, batch: Buffer, last_offset: int, max_timestamp: int, index_interval_bytes: int) -> None:
        """Write one batch and index it. On OSError the file is as before, or `truncate` raised too."""
        self._write(batch)
        self._note(self.size, len(batch), last_offset, max_timestamp, index_interval_bytes)

    def append_all(self, batches: Buffer, headers: Iterable[BatchHeader], index_interval_bytes: int) -> None:
        """The same with batches that lie one behind the other."""
        self._write(batches)
        for header in headers:
            self._note(self.size, header.size, header.last_offset, header.max_timestamp, index_interval_bytes)

    def _write(self, data: Buffer) -> None:
        end = self.size + len(data)
        if end > self._reserve_at and len(data) >= RESERVE_FOR_BYTES_MIN:
            self._reserve(end)
        try:
            self.file.write((data,))
        except OSError:
            self._cut_file(self.size)
            raise
        self.is_dirty = True

    def _reserve(self, end: int) -> None:
        size = min(end // RESERVE_SHARE, RESERVE_BYTES_MAX)
        if size >= RESERVE_BYTES_MIN:
            self.file.reserve(self.size, end + size - self.size)
            self._has_reserve = True
        self._reserve_at = end + max(size, RESERVE_BYTES_MIN)

    def _give_back_reserve(self) -> None:
        if self._has_reserve:
            self.trim()
            self._reserve_at, self._has_reserve = 0, False

    def trim(self) -> None:
        """Give back the disk space that is reserved, by this process or by one that was killed."""
        try:
            self.file.trim()
        except FileNotFoundError:
            return  # It was closed for want of descriptors, and removed since.
        except OSError as error:
            log.warning("reserved disk space could not be given back", segment=self.path(), error=error)

    def _cut_file(self, size: int) -> None:
        self.file.truncate(size)
        self._has_reserve = False
        self._reserve_at = size + RESERVE_BYTES_MIN  # Not with the next write: it may be the disk that is full.

    def note_scanned(self, position: int, header: BatchHeader, index_interval_bytes: int) -> None:
        """Index a batch found by a scan; `size` follows the scan."""
        self._note(position, header.size, header.last_offset, header.max_timestamp, index_interval_bytes)

    def _note(self, position: int, size: int, last_offset: int, max_timestamp: int, index_interval_bytes: int) -> None:
        if position == 0:
            self.first_timestamp = max_timestamp
        self.indexes.note(position, size, last_offset, max_timestamp, index_interval_bytes)
        self.size = position + size

    def store_indexes(self, *, final: bool = False) -> list[File]:
        """Append to the index files what they lack; gives the open files, for the caller to sync and close."""
        indexes = self._indexes
        if indexes is None:
            return []
        if final:
            indexes.finish()
        files = [self._store_index(OFFSET_INDEX_SUFFIX, indexes.offsets.data, self._offset_bytes_stored)]
        try:
            files.append(self._store_index(TIME_INDEX_SUFFIX, indexes.times.data, self._time_bytes_stored))
        except OSError:
            files[0].close()
            raise
        self._offset_bytes_stored, self._time_bytes_stored = len(indexes.offsets.data), len(indexes.times.data)
        return files

    def _store_index(self, kind: str, data: bytearray, stored: int) -> File:
        file = self._fs.open(self.path(kind), create=True)
        try:
            if file.size() != stored:
                file.truncate(min(stored, file.size()))  # A failed write left a part of an entry.
                stored = file.size()
            if stored < len(data):
                file.write((bytes(data[stored:]),))  # A copy: a view would keep the index from growing.
        except OSError:
            file.close()
            raise
        return file

    def become_inactive(self) -> None:
        """End as the active segment; its indexes must have been stored as `final`."""
        self.is_active = False
        self._give_back_reserve()
        self._release_indexes()
        self._txn_index = None

    def truncate(self, position: int) -> None:
        """Cut the file back to `position`, where a batch starts or the file is unsound."""
        was_noted = self.size > position
        self._cut_file(position)
        self.size = position
        self.is_dirty = True
        if was_noted:
            self.rebuild_indexes()

    def cut(self, position: int, next_offset: Offset) -> Offset:
        """Take off what begins at `position`, where the batch with `next_offset` starts, and be the active segment.

        Gives where its last batch ends: before `next_offset` if compaction has left a gap there.
        """
        indexes = self.indexes  # Now: once the bytes are gone, those in the files look damaged.
        self.changes += 1
        self._cut_file(position)
        self.is_dirty = self.is_active = True
        self.size = position
        self._was_rebuilt = True  # The files still have entries of what is gone.
        indexes.truncate(position, next_offset)
        end, last = self.base_offset, indexes.offsets.last()
        for start, header in scan_headers(self.file.read, last[1] if last else 0, position, self.base_offset):
            # Behind the last entry there are too few bytes for another one: this finds the largest timestamp.
            indexes.note(start, header.size, header.last_offset, header.max_timestamp, position)
            end = Offset(header.next_offset)
        self._offset_bytes_stored = min(self._offset_bytes_stored, len(indexes.offsets.data))
        self._time_bytes_stored = min(self._time_bytes_stored, len(indexes.times.data))
        return end

    # Indexes

    @property
    def indexes(self) -> SegmentIndexes:
        indexes = self._indexes
        return indexes if indexes is not None else self._load_indexes()

    def _load_indexes(self) -> SegmentIndexes:
        try:
            indexes = self.stored_indexes()
            indexes.check(self.size)
            self._check_ends(indexes)
        except (BadIndex, BadBatch, FileNotFoundError) as error:
            log.warning("index is missing or damaged: rebuilding it", segment=self.path(), reason=error)
            return self.rebuild_indexes()
        self.use_indexes(indexes)
        self._limits.on_indexes_loaded(self)
        return indexes

    def stored_indexes(self) -> SegmentIndexes:
        """The indexes as their files have them, not checked; FileNotFoundError when one is missing."""
        offsets = OffsetIndex(self._fs.read_all(self.path(OFFSET_INDEX_SUFFIX)))
        times = TimeIndex(self._fs.read_all(self.path(TIME_INDEX_SUFFIX)))
        return SegmentIndexes(self.base_offset, offsets, times)

    def use_indexes(self, indexes: SegmentIndexes) -> None:
        """Take these as the segment's indexes. The files have all of it, and perhaps more."""
        self._indexes = indexes
        self._was_rebuilt = False
        self._offset_bytes_stored, self._time_bytes_stored = len(indexes.offsets.data), len(indexes.times.data)

    def _check_ends(self, indexes: SegmentIndexes) -> None:
        """BadIndex unless the last entries are true and nothing newer lies behind them."""
        last_offset = indexes.offsets.last()
        last_time = indexes.times.last()
        if last_time is not None and not self.has_newest(indexes, last_time):
            raise BadIndex(f"no batch ends at {last_time[1]} with timestamp {last_time[0]}")
        headers = scan_headers(self.file.read, last_offset[1] if last_offset else 0, self.size, 0)
        for count, (_, header) in enumerate(headers):
            if count == 0 and last_offset and header.last_offset - self.base_offset != last_offset[0]:
                raise BadIndex(f"no batch that ends at {last_offset[0]} starts at {last_offset[1]}")
            if header.max_timestamp > indexes.max_timestamp or count > UNINDEXED_BATCHES_MAX:
                raise BadIndex("the log goes on behind the last entries")

    def has_newest(self, indexes: SegmentIndexes, entry: tuple[int, int]) -> bool:
        """Whether the batch that a time entry names has that timestamp as its largest."""
        timestamp, relative_offset = entry
        offset = self.base_offset + relative_offset
        start = indexes.offsets.entry_before(relative_offset)
        found = self._walk(self.file.read, start, lambda header: header.last_offset >= offset)
        return found is not None and (found[1].last_offset, found[1].max_timestamp) == (offset, timestamp)

    def _release_indexes(self) -> None:
        if self._indexes is not None:
            self._newest = (self._indexes.max_timestamp, self._indexes.max_timestamp_offset)
        self._indexes = None

    def rebuild_indexes(self, index_interval_bytes: int = 4096) -> SegmentIndexes:
        """Make both indexes anew from the log, and replace their files."""
        size, self.size = self.size, 0
        indexes = self._indexes = SegmentIndexes(self.base_offset)
        self._offset_bytes_stored = self._time_bytes_stored = 0
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
        self._was_rebuilt = True
        try:
            for file in self.store_indexes(final=True):
                file.close()
        except OSError as error:
            log.warning("rebuilt index could not be stored", segment=self.path(), error=error)
        self._limits.on_indexes_loaded(self)
        return indexes

    # Aborted transactions

    @property
    def txn_index(self) -> TxnIndex:
        index = self._txn_index
        if index is None:
            index = self.stored_txn_index()
            self.use_txn_index(index)
            if index:
                self._limits.on_indexes_loaded(self)
        return index

    def stored_txn_index(self) -> TxnIndex:
        """The index as its file has it, not checked; empty when there is none."""
        try:
            return TxnIndex(self._fs.read_all(self.path(TXN_INDEX_SUFFIX)))
        except FileNotFoundError:
            return TxnIndex()

    def use_txn_index(self, index: TxnIndex) -> None:
        """Take this as the index of aborted transactions; the file has all of it."""
        self._txn_index, self._aborted_from = index, index.first_offset_min

    def open_txn_index(self) -> File:
        """The file of the index, made if it is missing; for the caller to sync and close."""
        size = len(self.txn_index.data)
        file = self._fs.open(self.path(TXN_INDEX_SUFFIX), create=True)
        try:
            if file.size() != size:
                file.truncate(size)  # A failed write left a part of an entry.
        except OSError:
            file.close()
            raise
        return file

    def restore_txn_index(self, end: int, aborted: list[AbortedTxn]) -> None:
        """Replace what the index has of markers from `end` on, for good. Waits for the disk."""
        index = TxnIndex()
        if end > self.base_offset:
            index = self.stored_txn_index()
            index.truncate(end)
        self.use_txn_index(index)
        with contextlib.closing(self.open_txn_index()) as file:
            for entry in aborted:
                self.add_aborted(entry, file)
            file.sync()
        if not self.is_active:
            self._txn_index = None  # Nobody may ever ask for it.

    def add_aborted(self, aborted: AbortedTxn, file: File) -> None:
        """Write an entry to the index and to its open file. On OSError call `drop_aborted`."""
        index = self.txn_index
        entry = index.append(aborted)
        if self._aborted_from is None or aborted.first_offset < self._aborted_from:
            self._aborted_from = aborted.first_offset
        file.write((entry,))

    def drop_aborted(self, end: int, file: File) -> None:
        """Take the entries of markers from `end` on back."""
        index = self.txn_index
        index.truncate(end)
        file.truncate(len(index.data))
        self._aborted_from = index.first_offset_min

    def aborted(self, start: int, end: int) -> tuple[list[AbortedTxn], bool]:
        """See `TxnIndex.overlapping`."""
        if self._aborted_from == -1 or (self._aborted_from is not None and self._aborted_from < end):
            return self.txn_index.overlapping(start, end)
        return [], False

    @property
    def max_timestamp(self) -> int:
        """Of all batches; `NO_TIMESTAMP` when the segment has none."""
        if self._indexes is None and self._newest is not None:
            return self._newest[0]
        return self.indexes.max_timestamp

    def oldest_timestamp(self) -> int:
        """The first batch's; `NO_TIMESTAMP` when there is none."""
        if self.first_timestamp == NO_TIMESTAMP and self.size >= HEADER_BYTES:
            self.first_timestamp = read_header(self.file.read(0, HEADER_BYTES)).max_timestamp
        return self.first_timestamp

    # Reading

    def read(self, position: int, size: int) -> Buffer:
        """Bytes as they lie in the file; NotCached when they must come from the disk."""
        data = self.file.read_cached(position, size)
        if data is None:
            raise NotCached(self.file, position, size)
        return data

    async def load(self, miss: NotCached) -> None:
        """Have the missing bytes read into the cache."""
        await self._fs.run(miss.load)

    def batch_before(self, position: int) -> tuple[int, BatchHeader] | None:
        """The last indexed batch that starts at `position` or before it; None when there is none, or it is not there.

        NotCached as `read`.
        """
        entry = self.indexes.offsets.entry_at(position)
        if entry is None:
            return None
        last_offset, start = entry
        header = read_header(self.read(start, HEADER_BYTES))
        if header_problem(header, self.base_offset) is not None or header.last_offset - self.base_offset != last_offset:
            return None
        return start, header

    def locate(self, offset: int) -> int:
        """Position of the first batch whose last offset is `offset` or more; `size` when there is none."""
        return self._locate(
            lambda: self.indexes.offsets.entry_before(offset - self.base_offset),
            lambda header: header.last_offset >= offset,
        )

    def end_before(self, offset: int) -> Offset:
        """Where the last batch ends of those that lie before `offset`; the segment's base when there is none."""
        ends = [int(self.base_offset)]

        def is_behind(header: BatchHeader) -> bool:
            if header.last_offset < offset:
                ends.append(header.next_offset)
            return header.last_offset >= offset

        self._locate(lambda: self.indexes.offsets.entry_before(offset - 1 - self.base_offset), is_behind)
        return Offset(ends[-1])

    def locate_timestamp(self, timestamp: int) -> int:
        """Position of the first batch with a record of `timestamp` or later; `size` when there is none."""

        def start() -> tuple[int, int] | None:
            entry = self.indexes.times.entry_before(timestamp)
            if entry is None:
                return None
            if not self._was_rebuilt and not self.has_newest(self.indexes, entry):
                log.warning("time index is damaged: rebuilding it", segment=self.path(), entry=entry)
                self.rebuild_indexes()
                return start()
            return self.indexes.offsets.entry_before(entry[1])

        return self._locate(start, lambda header: header.max_timestamp >= timestamp)

    def _locate(self, start: Callable[[], tuple[int, int] | None], wanted: HeaderTest) -> int:
        found = self._walk(self.read, start(), wanted)
        if found is None and not self._was_rebuilt:
            log.warning("index points between batches: rebuilding it", segment=self.path())
            self.rebuild_indexes()
            found = self._walk(self.read, start(), wanted)
        if found is None:
            raise Refused(ErrorCode.corrupt_message, f"{self.path()} is damaged: run `penstock log verify`")
        return found[0]

    def _walk(self, read: Read, start: tuple[int, int] | None, wanted: HeaderTest) -> tuple[int, BatchHeader] | None:
        """The first wanted batch from the one that an index entry names; at `size` when there is none.

        None when the entry is wrong, or a batch on the way is no batch.
        """
        first_last_offset = None if start is None else self.base_offset + start[0]
        try:
            for position, header in scan_headers(read, start[1] if start else 0, self.size, self.base_offset):
                if first_last_offset is not None and header.last_offset != first_last_offset:
                    return None
                first_last_offset = None
                if wanted(header):
                    return position, header
        except BadBatch:
            return None
        return self.size, NO_BATCH

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


NO_BATCH = BatchHeader(-1, 0, -1, 0, 0, 0, 0, NO_TIMESTAMP, NO_TIMESTAMP, -1, -1, -1, 0)
