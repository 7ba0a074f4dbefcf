"""One partition's log: segments in order, appended at the end, read anywhere, shortened at either end.

    log_start            oldest readable offset
    filed_end            first offset that no sync of the log's own files has covered
    synced_end           first offset that no sync has covered, of those or of the journal; what survives a power cut
    log_end              next offset to assign

    log_start <= log_end, filed_end <= synced_end <= log_end

Appends and reads run on the event loop and meet the page cache. Syncs run elsewhere: `begin_flush` says what to sync,
`on_flushed` takes note that it was.
"""

import errno
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, NoReturn

from penstock.base.clock import Clock
from penstock.base.errors import ErrorCode, Refused
from penstock.base.logging import get_logger
from penstock.base.topic_config import TopicConfig
from penstock.base.types import NO_OFFSET, NO_TIMESTAMP, Offset, TopicPartition
from penstock.storage.disk_read import at_start
from penstock.storage.flush import Flush, Journaled
from penstock.storage.format import DELETED_SUFFIX, OFFSET_ENTRY, RELATIVE_OFFSET_MAX
from penstock.storage.fs import Buffer, File, FileSystem
from penstock.storage.journal_format import LogKey
from penstock.storage.limits import SegmentLimits
from penstock.storage.log_slice import LogSlice
from penstock.storage.scan import header_problem, whole_batches
from penstock.storage.segment import Segment
from penstock.storage.txn_index import AbortedTxn
from penstock.wire.batch import HEADER_BYTES, BatchHeader, read_header

log = get_logger(__name__)

SLICE_BYTES_MIN = 128 << 10  # Less is read at once: it takes less time than to find out where to stop.
HINTS_MAX = 128  # Readers that follow the log at the same time; more of them cost an index look-up each.


class TimestampOffset(NamedTuple):
    timestamp: int
    offset: Offset
    leader_epoch: int


class Log:
    def __init__(
        self,
        *,
        topic_partition: TopicPartition,
        directory: str,
        fs: FileSystem,
        clock: Clock,
        config: TopicConfig,
        limits: SegmentLimits,
    ) -> None:
        self.topic_partition = topic_partition
        self.directory = directory
        self.config = config
        self.segments: list[Segment] = []
        self.log_start = Offset(0)
        self.log_end = Offset(0)
        self.synced_end = Offset(0)
        self.filed_end = Offset(0)
        self.failure: str | None = None  # Set once the disk or the log's own bytes cannot be trusted: no more appends.
        self.on_synced: Callable[[], None] = lambda: None  # The partition's: `synced_end` has moved.
        self.on_rolled: Callable[[], None] = lambda: None  # The partition's: a new segment begins at `log_end`.
        self.on_failed: Callable[[], None] = lambda: None  # The partition's: whoever waits for a sync waits in vain.
        self.flush_in_flight = False
        self.is_sync_wanted = False  # Of all that is appended, by somebody whom no sync that has begun covers.
        self.is_filing_wanted = False  # The next sync is to be one of the log's own files.
        self.key: LogKey | None = None  # What the journal knows it by.
        # The active segment, and up to where it is synced, once nothing but its records can be unsynced.
        self._synced_part: tuple[Segment, int] | None = None
        self.sync_due_s = 0.0  # When the active segment is to be synced, if nobody has asked for it before.
        self._is_append_failing = False
        self.is_deleted = False  # Its directory is on its way out: whatever fails in it is no failure of the disk.
        self.is_cleaning = False  # Compaction reads the closed segments: nobody else may take them away.
        self.is_cutting = False  # It is being shortened, or about to be: no compaction may begin.
        # A transaction has been written here. From that segment on each has an index of the aborted ones, if empty:
        # a missing one is then known to be missing.
        self.has_transactions = False
        self.aborts_missing_from: Offset | None = None  # After a start: the indexes of aborted ones lack what follows.
        self.recovery_point = Offset(0)  # What is noted on disk, or about to be.
        self._fs = fs
        self._clock = clock
        self._limits = limits
        self._txn_file: File | None = None  # The active segment's, while it has entries that no sync has covered.
        self._bases: list[Offset] = []  # Base offsets of `segments`, for bisection.
        self.read_end = Offset(-1)  # Behind the last batch of the last read that gave any.
        self._hints: dict[int, tuple[Segment, int]] = {}  # Offset → where its batch starts, for readers in sequence.
        self._unsynced_directories: list[str] = []  # They have entries that no sync has covered.
        self._side_files: list[File] = []  # Indexes of rolled segments and the like, to sync with the next flush.
        self._found_files: list[str] = []  # Small ones that a start has found: perhaps no sync has covered them.

    # Segments

    @property
    def active(self) -> Segment:
        return self.segments[-1]

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    def new_segment(self, base_offset: Offset, size: int = 0, created_ms: int | None = None) -> Segment:
        """A segment of this log, not yet part of it."""
        return Segment(
            fs=self._fs,
            limits=self._limits,
            directory=self.directory,
            base_offset=base_offset,
            created_ms=self._clock.now_ms() if created_ms is None else created_ms,
            size=size,
        )

    def set_segments(self, segments: list[Segment]) -> None:
        """Take these as the log, in order of base offset."""
        self.segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._hints.clear()

    def roll(self, base_offset: int = 0) -> Segment:
        """Close the active segment and begin a new one at the log's end, or at `base_offset` if that is beyond it."""
        base = Offset(max(self.log_end, base_offset))
        index_files: list[File] = []
        if self.segments:
            if self.active.size == 0 and base == self.log_end:
                return self.active
            index_files = self.active.store_indexes(final=True)
        segment = self.new_segment(base)
        try:
            segment.start_empty()
            if self.has_transactions:
                index_files.append(segment.open_txn_index())
        except OSError:
            # The old segment stays the active one, with all that it knows.
            for file in index_files:
                file.close()
            segment.close()
            raise
        if self.segments:
            self.active.is_dirty |= self.active.is_found
            self.active.become_inactive()
        self._side_files += index_files
        self._release_txn_file()
        self.segments.append(segment)
        self._bases.append(segment.base_offset)
        self.note_new_entry(self.directory)
        self.on_rolled()
        return segment

    def maybe_roll(self, batch_bytes: int, last_offset: int, max_timestamp: int) -> Segment:
        """The segment that the next batch goes to."""
        active, config = self.active, self.config
        if active.has_room(batch_bytes, last_offset, config.segment_bytes, config.segment_index_bytes) and not (
            active.size and self._is_too_old(active, max_timestamp)
        ):
            return active
        # Behind a gap that compaction has left in a leader's log, ours may end too far away for an index to tell.
        return self.roll(last_offset - RELATIVE_OFFSET_MAX)

    def _is_too_old(self, segment: Segment, max_timestamp: int) -> bool:
        if segment.first_timestamp > NO_TIMESTAMP and max_timestamp > NO_TIMESTAMP:
            age_ms = max_timestamp - segment.first_timestamp
        else:
            age_ms = self._clock.now_ms() - segment.created_ms
        return age_ms > self._roll_after_ms()

    def _roll_after_ms(self) -> int:
        config = self.config
        limit_ms = config.segment_ms
        if config.max_compaction_lag_ms < limit_ms and config.is_compacted:
            limit_ms = (
                config.max_compaction_lag_ms
            )  # The active segment is never compacted: records must not wait in it.
        if config.segment_jitter_ms:
            # Spread over partitions, and the same for one partition at every look.
            limit_ms -= self.topic_partition.partition * 7919 % config.segment_jitter_ms
        return limit_ms

    # Appending

    def append(self, batch: Buffer, last_offset: int, max_timestamp: int, aborted: AbortedTxn | None = None) -> None:
        """Write a batch that starts at `log_end` and has been stamped so. Refused when the disk does not take it.

        `aborted` is the transaction that ends with this batch: the two reach the disk with the same flush.
        """
        if self.failure is not None:
            raise Refused(ErrorCode.kafka_storage_error, self.failure)
        try:
            segment = self.maybe_roll(len(batch), last_offset, max_timestamp)
            if aborted is not None:
                self._add_aborted(segment, aborted)
            segment.append(batch, last_offset, max_timestamp, self.config.index_interval_bytes)
        except OSError as error:
            if aborted is not None:
                self._drop_aborted(aborted)
            self._on_append_failed(error)
        self._on_appended(last_offset)

    def takes_at_once(self, headers: Sequence[BatchHeader]) -> bool:
        """Whether all these batches surely go to the active segment."""
        if len(headers) < 2 or self.active.size == 0:  # An empty segment has no age yet.
            return False
        times = [header.max_timestamp for header in headers]
        size, last_offset = sum([header.size for header in headers]), headers[-1].last_offset
        config = self.config
        index_bytes = config.segment_index_bytes - OFFSET_ENTRY.size * (len(headers) - 1)  # As if each had an entry.
        return (
            self.active.has_room(size, last_offset, config.segment_bytes, index_bytes)
            and min(times) > NO_TIMESTAMP
            and not self._is_too_old(self.active, max(times))
        )

    def append_all(self, batches: Buffer, headers: Sequence[BatchHeader]) -> None:
        """Write batches that the log `takes_at_once`: all, or Refused and none."""
        if self.failure is not None:
            raise Refused(ErrorCode.kafka_storage_error, self.failure)
        try:
            self.active.append_all(batches, headers, self.config.index_interval_bytes)
        except OSError as error:
            self._on_append_failed(error)
        self._on_appended(headers[-1].last_offset)

    def _on_appended(self, last_offset: int) -> None:
        self.log_end = Offset(last_offset + 1)
        if self._is_append_failing:
            self._is_append_failing = False
            log.info("appends work again", partition=self.topic_partition)

    def begin_transactions(self) -> None:
        """From now on every segment has an index of aborted transactions. Refused when the disk does not take it."""
        try:
            self._side_files.append(self.active.open_txn_index())
        except OSError as error:
            self._on_append_failed(error)
        self.note_new_entry(self.directory)
        self.has_transactions = True

    def _add_aborted(self, segment: Segment, aborted: AbortedTxn) -> None:
        if self._txn_file is None:
            self._txn_file = segment.open_txn_index()
            self.note_new_entry(self.directory)
        segment.add_aborted(aborted, self._txn_file)

    def _drop_aborted(self, aborted: AbortedTxn) -> None:
        """Its marker was not written."""
        if self._txn_file is not None:
            try:
                self.active.drop_aborted(aborted.last_offset, self._txn_file)
            except OSError as error:
                self.fail(f"an entry of the transaction index could not be undone: {error}")

    def _release_txn_file(self) -> None:
        """Leave the file with the entries of aborted transactions to the next flush."""
        if self._txn_file is not None:
            self._side_files.append(self._txn_file)
            self._txn_file = None

    def _on_append_failed(self, error: OSError) -> NoReturn:
        if not self._is_append_failing:  # Once, not for each of thousands of batches that find the disk full.
            self._is_append_failing = True
            log.error("appends fail", partition=self.topic_partition, error=error)
        if not self._is_whole():
            # The failed bytes could not be cut off: nothing may be written behind them.
            self.fail(f"a failed write could not be undone: {error}")
        raise Refused(ErrorCode.kafka_storage_error, str(error)) from error

    def _is_whole(self) -> bool:
        try:
            return self.active.file.size() == self.active.size
        except OSError:
            return False

    def fail(self, reason: str) -> None:
        """Refuse all appends from now on; reads go on."""
        if self.failure is None:
            self.failure = reason
            if not self.is_deleted:
                log.error("log takes no more records", partition=self.topic_partition, reason=reason)
            self.on_failed()

    # Syncing

    @property
    def needs_flush(self) -> bool:
        return self.synced_end < self.log_end or bool(self._side_files)

    @property
    def has_side_files(self) -> bool:
        """Whether a side file, or the indexes of a closed segment, wait for a sync that perhaps nobody asks for."""
        return bool(self._side_files)

    def note_new_entry(self, directory: str) -> None:
        """A name was made in `directory`: the next flush has to sync it."""
        if directory not in self._unsynced_directories:
            self._unsynced_directories.append(directory)

    def put_side_file(self, name: str, content: bytes) -> None:
        """Replace a small file of the partition's directory; the next flush makes it durable."""
        temporary = f"{self.directory}/{name}.tmp"
        if self._fs.exists(temporary):
            self._fs.remove(temporary)
        file = self._fs.open(temporary, create=True)
        try:
            file.write((content,))
            self._fs.rename(temporary, f"{self.directory}/{name}")
        except OSError:
            file.close()
            raise
        self._side_files.append(file)
        self.note_new_entry(self.directory)

    def note_found_file(self, name: str) -> None:
        """A small file was in the directory already: the next flush syncs it, and none is due for it alone."""
        self._found_files.append(name)

    def begin_flush(self, *, is_whole: bool = True) -> Flush:
        """All that has been written up to now, to be synced; unless `is_whole` without the active segment."""
        active = self.active
        end = self.log_end if is_whole else max(self.synced_end, active.base_offset)
        dirty = [(segment, segment.size) for segment in self._unsynced_segments() if is_whole or segment is not active]
        self._release_txn_file()
        while self._found_files:
            self._side_files.append(self._fs.open(f"{self.directory}/{self._found_files.pop()}"))
        side_files, self._side_files = self._side_files, []
        directories, self._unsynced_directories = self._unsynced_directories, []
        self.flush_in_flight = True
        files = [segment.file for segment, _ in dirty]
        filed_end = self.log_end if is_whole else max(self.filed_end, active.base_offset)
        covered = None
        if is_whole:
            covered = (active, active.size)
            self.is_filing_wanted = False  # Who asks from now on wants another one.
        return Flush(end, filed_end, dirty, files, side_files, directories, covered, self._fs)

    def _unsynced_segments(self) -> list[Segment]:
        unsynced = []
        for segment in reversed(self.segments):
            if segment.is_dirty:
                unsynced.append(segment)
            elif segment is not self.active:  # Syncs go in order: everything before this one is on disk.
                break
        return unsynced[::-1]

    def on_flushed(self, flush: Flush) -> None:
        self.synced_end = flush.end
        self.filed_end = flush.filed_end
        for segment, size in flush.segments:
            segment.is_dirty = segment.size > size
            segment.is_found = False
        if flush.active is not None:
            self._synced_part = flush.active
        self.on_synced()
        self.flush_in_flight = False  # Last: whoever appends when told must not start a second sync beside this one.

    @property
    def unsynced_bytes(self) -> int:
        """What has to be on disk for all to be synced; more than there can be when that is not records alone."""
        part = self._synced_part
        if (
            part is None
            or part[0] is not self.active
            or self.config.durability != "fsync"
            or self._side_files
            or self._unsynced_directories
            or self._txn_file is not None
        ):
            return sys.maxsize
        return part[0].size - part[1]

    @property
    def journal_bytes(self) -> int:
        """The same for a journal; more than any takes of a log that cannot be in one, or is to be in its own file."""
        return sys.maxsize if self.is_filing_wanted or self.key is None else self.unsynced_bytes

    def begin_journaling(self) -> Journaled:
        """All that is unsynced, for the journal; where `journal_bytes` says that it can be."""
        assert self._synced_part is not None
        segment, start = self._synced_part
        batches = segment.file.read(start, segment.size - start)
        if len(batches) != segment.size - start:
            raise OSError(errno.EIO, f"{segment.path()} ends before its time")
        return Journaled(self.synced_end, self.log_end, segment, segment.size, batches)

    def on_journaled(self, journaled: Journaled) -> None:
        self.synced_end = journaled.end
        self._synced_part = (journaled.segment, journaled.size)
        self.on_synced()
        self.flush_in_flight = False  # Last, as in `on_flushed`.

    def on_flush_failed(self) -> None:
        """Stop for good: after a failed sync the kernel may have dropped the data and call it clean."""
        self.flush_in_flight = False

    # Reading

    def read(self, start: Offset, bytes_max: int, end: Offset, *, at_least_one: bool) -> Buffer:
        """Whole batches from the one that contains `start`, below `end`; NotCached when the disk must be waited for.

        `at_least_one` gives the first batch even when it is larger than `bytes_max`. Refused when the bytes there are
        no batch; whether records are sound is for the consumer's checksum to say.
        """
        if start >= end or (bytes_max < HEADER_BYTES and not at_least_one):
            return b""
        segment, position = self._find(start)
        if position == segment.size:
            return b""
        data = segment.read(position, max(HEADER_BYTES, min(bytes_max, segment.size - position)))
        count, next_offset = whole_batches(data, end) if bytes_max >= HEADER_BYTES else (0, -1)
        if count == 0:
            header = read_header(data)
            if not at_least_one or header.base_offset >= end:
                return b""
            if header_problem(header, segment.base_offset) is None and position + header.size <= segment.size:
                data = segment.read(position, header.size)
                count, next_offset = whole_batches(data, end)
            if count == 0:
                raise Refused(ErrorCode.corrupt_message, f"{segment.path()} is damaged at byte {position}")
        self._note_read(next_offset, segment, position + count)
        return data if count == len(data) else memoryview(data)[:count]

    def slice(self, start: Offset, bytes_max: int, end: Offset) -> LogSlice | None:
        """The same batches as of `read`, perhaps a few less, to be read later; None when they are too few for that."""
        if start >= end or bytes_max < SLICE_BYTES_MIN:
            return None
        segment, position = self._find(start)
        if segment.size - position < SLICE_BYTES_MIN:
            return None
        found = segment.batch_before(position + bytes_max)
        if found is None or found[0] - position < SLICE_BYTES_MIN or found[1].base_offset > end:
            return None
        stop, header = found
        self._note_read(header.base_offset, segment, stop)
        return LogSlice(segment, position, stop - position, header.base_offset)

    def _find(self, offset: Offset) -> tuple[Segment, int]:
        """Where the batch with `offset` starts, or the first one behind it; at the log's end when there is none."""
        segment, position = self._hints.get(offset) or self._locate(offset)
        while position >= segment.size and segment is not self.active:
            segment, position = self.segments[self.segments.index(segment) + 1], 0
        return segment, position

    def _note_read(self, next_offset: int, segment: Segment, position: int) -> None:
        """A reader has got all below `next_offset`, whose batch starts at `position`: it will ask for that one."""
        if len(self._hints) >= HINTS_MAX:
            self._hints.clear()
        self._hints[next_offset] = (segment, position)
        self.read_end = Offset(next_offset)

    def _locate(self, offset: Offset) -> tuple[Segment, int]:
        number = max(bisect_right(self._bases, offset) - 1, 0)
        while True:
            segment = self.segments[number]
            position = segment.locate(offset)
            number += 1
            # Compaction may have removed the end of a segment: the next batch is then in a later one.
            if position < segment.size or number == len(self.segments):
                return segment, position

    def batch_for_timestamp(self, timestamp: int, start: Offset, end: Offset) -> Buffer | None:
        """The first batch, of those with offsets in [start, end), that claims a record of `timestamp` or later.

        NotCached when the disk must be waited for; Refused when the bytes there are no batch.
        """
        for segment in self.segments:
            if segment.max_timestamp < timestamp:
                continue
            position = segment.locate_timestamp(timestamp)
            while position < segment.size:
                header = read_header(segment.read(position, HEADER_BYTES))
                if header_problem(header, segment.base_offset) is not None:
                    raise Refused(ErrorCode.corrupt_message, f"{segment.path()} is damaged at byte {position}")
                if header.base_offset >= end:
                    return None
                if header.max_timestamp >= timestamp and header.last_offset >= start:
                    return segment.read(position, header.size)
                position += header.size
        return None

    def aborted(self, start: Offset, end: Offset) -> list[AbortedTxn]:
        """The aborted transactions with records in [start, end), in the order in which they ended."""
        found: list[AbortedTxn] = []
        if self.has_transactions:
            for number in range(max(bisect_right(self._bases, start) - 1, 0), len(self.segments)):
                more, is_all = self.segments[number].aborted(start, end)
                found += more
                if is_all:
                    break
        return found

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp that a batch claims; NO_TIMESTAMP when there is none."""
        return max((segment.max_timestamp for segment in self.segments), default=NO_TIMESTAMP)

    # Shortening

    def advance_start(self, offset: Offset) -> None:
        """Make everything below `offset` unreadable; retention removes the segments."""
        assert offset <= self.log_end, f"start beyond the end: {offset=} {self.log_end=}"
        self.log_start = max(self.log_start, offset)

    def end_below(self, offset: Offset) -> Offset:
        """Where the last batch ends that a cut at `offset` leaves; where the log's files begin when it leaves none.

        Refused when it cannot be told for damage.
        """
        for segment in reversed(self.segments[: bisect_left(self._bases, offset)]):
            end = at_start(partial(segment.end_before, offset))
            if end > segment.base_offset:
                return end
        return min(self._bases[0], offset)

    def truncate(self, offset: Offset) -> list[str]:
        """Cut off everything from `offset` on; gives the renamed files of whole segments, to be removed later.

        Only through `LogManager.truncate`, which sees to what a start must know of it. A batch that `offset` lies in
        goes as a whole, and the offsets before it stay empty. Where the last batch that is left ends before `offset`,
        an empty segment says where the log ends: a start would take it for a loss. OSError: if the log's end has
        moved, not all that has to be done was.
        """
        assert not any(segment.is_dirty for segment in self.segments), f"{self.topic_partition} has unsynced records"
        if offset >= self.log_end:
            return []
        number = bisect_right(self._bases, offset)
        kept, leaving = self.segments[:number], self.segments[number:]
        position = at_start(partial(kept[-1].locate, offset)) if kept else 0
        # On disk is no more yet than what `LogManager` has seen to: a name may be missing that says where the log ends.
        self.filed_end, self.synced_end = min(self.filed_end, offset), min(self.synced_end, offset)
        self.log_end = offset
        self._synced_part = None
        self.log_start = min(self.log_start, offset)
        self._release_txn_file()
        self.set_segments(kept)
        end = NO_OFFSET  # Nothing of it is common history.
        if kept:
            end = kept[-1].cut(position, offset)
            if self.has_transactions:
                file = kept[-1].open_txn_index()
                self._side_files.append(file)
                kept[-1].drop_aborted(offset, file)
        if end < offset:
            segment = self._empty_segment(offset)
            if kept and kept[-1].size:
                self._side_files += kept[-1].store_indexes(final=True)
                kept[-1].become_inactive()
            elif kept:
                leaving.insert(0, kept.pop())
            self.set_segments([*kept, segment])
        self.note_new_entry(self.directory)
        return [path for segment in leaving for path in segment.rename_files(DELETED_SUFFIX)]

    def _empty_segment(self, offset: Offset) -> Segment:
        """Not by a `roll`, with which the state of the producers would be noted that is about to be replaced."""
        segment = self.new_segment(offset)
        segment.start_empty()
        if self.has_transactions:
            self._side_files.append(segment.open_txn_index())
        return segment

    def start_over(self, offset: Offset) -> list[str]:
        """Drop every segment and begin anew at `offset`; gives the renamed files. Only through `LogManager`."""
        leaving = self.segments
        self._release_txn_file()
        self.set_segments([self._empty_segment(offset)])
        self.log_start = self.log_end = offset  # Synced is nothing yet, not even the name that says so.
        self._synced_part = None
        self.note_new_entry(self.directory)
        return [path for segment in leaving for path in segment.rename_files(DELETED_SUFFIX)]

    def delete_oldest(self, count: int) -> list[str]:
        """Take the `count` oldest segments out of the log; gives the renamed files, to be removed later."""
        if count == len(self.segments):
            self.roll()
        leaving = self.segments[:count]
        self.set_segments(self.segments[count:])
        self.advance_start(self.segments[0].base_offset)
        return [path for segment in leaving for path in segment.rename_files(DELETED_SUFFIX)]

    def replace_segments(self, old: list[Segment], new: list[Segment]) -> None:
        """Put compacted segments in the place of their sources, which must lie side by side."""
        first = self.segments.index(old[0])
        assert self.segments[first : first + len(old)] == old, f"{self.topic_partition}: sources are not side by side"
        self.set_segments(self.segments[:first] + new + self.segments[first + len(old) :])

    # Leaving

    def move(self, directory: str) -> None:
        """Rename the log's directory; readers go on in it."""
        self._fs.rename(self.directory, directory)
        self.directory = directory
        for segment in self.segments:
            segment.directory = directory

    def store_indexes(self) -> None:
        """Write the index entries that are only in memory, so that the next start need not scan for them."""
        for file in self.active.store_indexes():
            file.close()

    def close(self) -> None:
        for segment in self.segments:
            segment.close()
