"""Opening a log: after a clean stop its tail is read, after an unclean one everything that no sync had covered.

The recovery point is an offset below which all bytes had been synced. What is unsound above it was never promised and
is cut off with all that follows (a torn tail). What is unsound below it had been promised: it is reported and left as
it is, for a replica or an operator to repair, never cut.
"""

import contextlib
import sys
from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

from penstock.base.logging import get_logger
from penstock.base.types import LeaderEpoch, Offset
from penstock.storage.checkpoint import read_epochs
from penstock.storage.format import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEXED_OFFSET_MAX,
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    RELATIVE_OFFSET_MAX,
    SWAP_SUFFIX,
    base_offset_of,
    segment_path,
)
from penstock.storage.fs import File, FileSystem
from penstock.storage.index import BadIndex
from penstock.storage.log import Log
from penstock.storage.scan import SCAN_CHUNK_BYTES, BadBatch, FoundBatch, scan_batches, trusted_batches
from penstock.storage.segment import Segment
from penstock.storage.segment_indexes import SegmentIndexes
from penstock.storage.swap import SOURCES_SUFFIX, finish_swaps
from penstock.storage.txn_recovery import check_txn_indexes
from penstock.wire.batch import BatchHeader

log = get_logger(__name__)

LEFTOVER_SUFFIXES = (SWAP_SUFFIX, SOURCES_SUFFIX, DELETED_SUFFIX, CLEANED_SUFFIX, ".tmp")


class JournalSpan(NamedTuple):
    """What the journal has of a log, and is about to be appended."""

    filed_end: Offset = Offset(0)  # All before it had been synced in the log's own file.
    end: Offset = Offset(0)
    gaps: Mapping[int, int] = {}  # Where in between no batch follows at once: which offset the next one has.


NO_JOURNAL = JournalSpan()


class Recovery(NamedTuple):
    bytes_scanned: int
    bytes_cut: int
    damaged: list[str]  # What is unsound below the recovery point.


class SyncFailed(OSError):
    """What was read may be in memory alone, and no later sync would notice."""


def open_log(
    partition_log: Log,
    fs: FileSystem,
    *,
    recovery_point: Offset | None,
    log_start: Offset,
    clean: bool,
    distrust_cache: bool = False,
    journal_span: JournalSpan = NO_JOURNAL,
) -> Recovery:
    """Load the segments of the log's directory and bring it into a state that can be appended to and read.

    `recovery_point` None: it could not be read, and is guessed. `distrust_cache`: a sync has failed before, so that
    what reads well may be on no disk.
    """
    directory = partition_log.directory
    fs.mkdir(directory)
    names = fs.listdir(directory)
    if any(name.endswith(LEFTOVER_SUFFIXES) for name in names):
        _clear_leftovers(fs, directory, names)
        names = fs.listdir(directory)
    bases = [base for name in names if name.endswith(LOG_SUFFIX) and (base := base_offset_of(name)) is not None]
    if recovery_point is None:
        recovery_point = _guessed_point(partition_log, fs, bases, journal_span)
    recovery_point = max(recovery_point, journal_span.filed_end)
    opening = _Opening(partition_log, fs, recovery_point, clean, distrust_cache, journal_span)
    if bases:
        opening.load(bases, log_start)
    else:
        opening.start_over(log_start)
    log_end = partition_log.log_end
    partition_log.recovery_point = log_end if clean else min(recovery_point, log_end)
    check_txn_indexes(partition_log, fs, names, trusted_end=partition_log.recovery_point)
    return Recovery(opening.bytes_scanned, opening.bytes_cut, opening.damaged)


def _clear_leftovers(fs: FileSystem, directory: str, names: list[str]) -> None:
    finish_swaps(fs, directory, names)
    for name in fs.listdir(directory):
        if name.endswith(LEFTOVER_SUFFIXES):
            fs.remove(f"{directory}/{name}")


def _guessed_point(partition_log: Log, fs: FileSystem, bases: list[Offset], journal: JournalSpan) -> Offset:
    """Where the recovery point may have been: segments are synced soon after they are closed.

    So all but the last one counts as promised. Unless one lacks what the journal has: when that was closed, no sync of
    its own has followed, and nothing behind it was promised.
    """
    for number, base in enumerate(bases[:-1]):
        following = bases[number + 1]
        if following > journal.filed_end and base < journal.end:
            end = _sound_end(partition_log, fs, base, following, journal)
            # Only the last closed segment ends for certain where the next one begins: so compaction leaves it.
            is_gap = not partition_log.config.is_compacted or following == bases[-1]
            if end is None or (is_gap and journal.filed_end <= end < min(following, journal.end)):
                return journal.filed_end
    return bases[-1] if bases else Offset(0)


def _sound_end(
    partition_log: Log, fs: FileSystem, base: Offset, following: Offset, journal: JournalSpan
) -> Offset | None:
    """Where the batches of a closed segment end; None when one is unsound of those that the journal has."""
    next_offset = base
    path = segment_path(partition_log.directory, base, LOG_SUFFIX)
    with contextlib.closing(fs.open(path)) as file:
        try:
            for found in scan_batches(file.read, 0, file.size(), base):
                header = found.header
                due = journal.gaps.get(next_offset, next_offset)
                is_gap = header.base_offset != due and not partition_log.config.is_compacted
                if is_gap or header.next_offset > following:  # The checksum does not cover the base offset.
                    raise BadBatch(found.position, f"base offset {header.base_offset} where {due} was due")
                next_offset = Offset(header.next_offset)
        except BadBatch:
            return None if journal.filed_end <= next_offset < journal.end else following
    return next_offset


class _Opening:
    def __init__(
        self,
        partition_log: Log,
        fs: FileSystem,
        recovery_point: Offset,
        clean: bool,
        distrust_cache: bool,
        journal: JournalSpan,
    ) -> None:
        self.log = partition_log
        self.fs = fs
        self.recovery_point = recovery_point
        self.clean = clean
        # After a clean stop only the end has to be found: a thousand logs are not read for that, only their headers.
        self._batches = trusted_batches if clean else scan_batches
        self.distrust_cache = distrust_cache
        self.journal = journal
        self.bytes_scanned = 0
        self.bytes_cut = 0
        self.damaged: list[str] = []
        self._segments: list[Segment] = []
        self._scanned: list[Segment] = []
        self._skipped = range(0)  # The last offsets below the recovery point that no batch had where they were due.

    def load(self, bases: list[Offset], log_start: Offset) -> None:
        next_offset = self._load_segments(bases)
        end = max(next_offset, self.journal.end)
        if log_start > end and self._may_lack_tail():
            # Everything that is left had been deleted. Offsets go on where readers last saw the log begin.
            self._drop([segment.base_offset for segment in self._segments])
            self.start_over(log_start)
            return
        if log_start > end:
            self._report(f"the log ends at {end}, before its start {log_start}: the start is not believed")
            log_start = bases[0]
        if next_offset < self.recovery_point and self.log.failure is None:
            self._fail(f"records {next_offset} to {self.recovery_point - 1} are missing from {self.log.directory}")
        self.log.set_segments(self._segments)
        self._activate(self._segments[-1])
        self.log.log_end = next_offset
        self.log.log_start = max(log_start, bases[0])
        if not self.clean:
            self._secure(next_offset)
        self.log.synced_end = self.log.filed_end = next_offset

    def start_over(self, log_start: Offset) -> None:
        """Begin an empty log; never at an offset that had a record before."""
        if self.recovery_point > log_start:
            self._report(f"records {log_start} to {self.recovery_point - 1} are gone from {self.log.directory}")
        start = max(log_start, self.recovery_point)
        self.log.set_segments([])
        self.log.log_end = self.log.log_start = self.log.synced_end = self.log.filed_end = start
        self.log.roll()

    def _may_lack_tail(self) -> bool:
        """Whether records that readers had seen can be gone: then the log's end says nothing about its start."""
        return self.log.config.durability == "os"

    # Segments

    def _load_segments(self, bases: list[Offset]) -> Offset:
        """Load and scan until the end or the first cut; gives the next offset."""
        next_offset = bases[0]
        for number, base in enumerate(bases):
            following = bases[number + 1] if number + 1 < len(bases) else None
            if following is not None and (self.clean or following < self.recovery_point):
                # The next segment's base bounds this one's offsets, and its indexes were synced with that base.
                self._segments.append(self._segment(base))
                next_offset = following
                continue
            if base > next_offset and self._is_torn_at(next_offset):
                # The end of the segment before was lost, and nothing behind a loss was promised.
                log.warning(
                    "segments behind a gap dropped", partition=self.log.topic_partition, next_offset=next_offset
                )
                self._drop(bases[number:])
                break
            segment = self._segment(base)
            self._segments.append(segment)
            self._scanned.append(segment)
            next_offset, bad = self._scan(segment, max(base, next_offset))
            if bad is not None:
                # The later segments go first: a crash in between must not leave them behind a gap.
                self._drop(bases[number + 1 :])
                self._cut(segment, bad, next_offset)
                break
            if following is not None and next_offset > following:
                # What a cut took away is back, since that was not synced, and nothing is in what it began behind it.
                log.warning("a cut was lost", partition=self.log.topic_partition, next_offset=next_offset)
                self._drop(bases[number + 1 :])
                break
        return next_offset

    def _segment(self, base: Offset) -> Segment:
        path = segment_path(self.log.directory, base, LOG_SUFFIX)
        return self.log.new_segment(base, size=self.fs.size(path), created_ms=self.fs.modified_ms(path))

    def _drop(self, bases: list[Offset]) -> None:
        """Remove segments of which nothing was promised, the last first: what a crash leaves has no gap."""
        for base in reversed(bases):
            segment = self._segment(base)
            self.bytes_cut += segment.size
            for path in segment.rename_files(DELETED_SUFFIX):
                self.fs.remove(path)
        if bases:
            self.fs.sync_dir(self.log.directory)

    def _cut(self, segment: Segment, bad: BadBatch, next_offset: Offset) -> None:
        cut_bytes = segment.file.size() - bad.position
        self.bytes_cut += cut_bytes
        log.warning(
            "torn tail cut off",
            segment=segment.path(),
            position=bad.position,
            bytes=cut_bytes,
            next_offset=next_offset,
            reason=bad.reason,
        )
        segment.truncate(bad.position)

    def _activate(self, segment: Segment) -> None:
        segment.is_active = True
        with contextlib.suppress(OSError):
            segment.oldest_timestamp()

    def _secure(self, next_offset: Offset) -> None:
        """Make durable what was found: a process that was killed may have had no time for it."""
        for segment in self._scanned:
            segment.trim()
            if not segment.is_active:
                self._finish_indexes(segment)
        if next_offset <= self.recovery_point:
            # Nothing but names and a cut can be missing from the disk, on which nobody leans before the next flush.
            self.log.note_new_entry(self.log.directory)
            for segment in self._scanned:
                segment.is_found = segment.is_active
                segment.is_dirty |= not segment.is_active
            return
        for segment in self._scanned:
            if self.distrust_cache:
                self._rewrite(segment)
            else:
                _sync(segment.file)
            segment.is_dirty = False
        self.fs.sync_dir(self.log.directory)

    def _rewrite(self, segment: Segment) -> None:
        """Write the segment anew: after a failed sync its pages count as clean, and no other sync would write them."""
        path = segment.path()
        with contextlib.closing(self.fs.open(path + CLEANED_SUFFIX, create=True)) as copy:
            for position in range(0, segment.size, SCAN_CHUNK_BYTES):
                copy.write((segment.file.read(position, min(SCAN_CHUNK_BYTES, segment.size - position)),))
            _sync(copy)
        segment.close()
        self.fs.rename(path + CLEANED_SUFFIX, path)

    def _finish_indexes(self, segment: Segment) -> None:
        try:
            for file in segment.store_indexes(final=True):
                file.sync()
                file.close()
        except OSError as error:  # A full disk: readers find the index wanting, and make it anew.
            log.warning("index could not be stored", segment=segment.path(), error=error)
        segment.become_inactive()

    # Scanning

    def _scan(self, segment: Segment, next_offset: Offset) -> tuple[Offset, BadBatch | None]:
        """Check and index the segment from where it may be unsound; gives the next offset and where to cut."""
        file_bytes = segment.size
        position, next_offset = self._resume(segment, next_offset)
        interval = self.log.config.index_interval_bytes
        while True:
            try:
                for found in self._batches(segment.file.read, position, file_bytes, next_offset):
                    self._check(segment, found, next_offset)
                    segment.note_scanned(found.position, found.header, interval)
                    self._renew(segment, found)
                    self.bytes_scanned += found.header.size
                    next_offset = Offset(found.header.next_offset)
                return next_offset, None
            except BadBatch as bad:
                if next_offset >= self.recovery_point and not self._is_promised(segment, bad, file_bytes):
                    return next_offset, bad
                damage = f"{segment.path()} at byte {bad.position}, offset {next_offset}: {bad.reason}"
                self._report(damage)
                after = self._batch_after(segment, bad, next_offset, file_bytes)
                if after is None:
                    # Where the next batch starts cannot be known. Nothing is cut, nothing may be written behind it.
                    self._fail(damage)
                    return self._offset_behind(segment, next_offset), None
                segment.size = position = after.position
                next_offset = Offset(after.header.base_offset)

    def _renew(self, segment: Segment, found: FoundBatch) -> None:
        """Write a batch over itself that no sync may have covered, of a log with records in the journal, which will go.

        The sync of this file may have failed, and the note of that as well, on a full disk: then the page counts as
        clean, and the sync that follows would write nothing. What was acknowledged does not hang on that note.
        """
        if self.journal.end > self.recovery_point and found.header.last_offset >= self.recovery_point:
            with contextlib.closing(self.fs.open(segment.path(), appends=False)) as file:
                file.write_at(found.position, found.view)

    def _check(self, segment: Segment, found: FoundBatch, next_offset: Offset) -> None:
        """BadBatch, or a report below the recovery point, when what the checksum does not cover is wrong."""
        header = found.header
        if header.base_offset == next_offset and not self._epochs:
            return
        if header.last_offset - segment.base_offset > INDEXED_OFFSET_MAX:
            raise BadBatch(
                found.position,
                f"base offset {header.base_offset} where {next_offset} was due, beyond what the segment can hold",
                skip_to=found.position + header.size,
            )
        if header.base_offset != next_offset:
            self._skipped = range(next_offset, min(header.base_offset, self.recovery_point))
        reason = None
        due = self.journal.gaps.get(next_offset, next_offset)
        if header.base_offset != due and self._is_gap_a_loss(next_offset):
            reason = f"base offset {header.base_offset} where {due} was due"
        elif (epoch := self._epoch_of(header)) not in (None, header.partition_leader_epoch):
            reason = f"leader epoch {header.partition_leader_epoch} where {epoch} was due"
        if reason is None:
            return
        if next_offset >= self.recovery_point:
            raise BadBatch(found.position, reason)
        # The topic may have been compacted once: a gap alone does not prove damage.
        self._report(f"{self.log.directory} at offset {next_offset}: {reason}")

    @cached_property
    def _epochs(self) -> list[tuple[LeaderEpoch, Offset]]:
        if self.clean:
            return []
        return read_epochs(self.fs, f"{self.log.directory}/{LEADER_EPOCH_CHECKPOINT}") or []

    def _epoch_of(self, header: BatchHeader) -> int | None:
        """The leader epoch that the checkpoint knows for a batch; None when it does not know, or need not be asked."""
        return next((epoch for epoch, start in reversed(self._epochs) if start <= header.base_offset), None)

    def _is_promised(self, segment: Segment, bad: BadBatch, file_bytes: int) -> bool:
        """Whether the batch belongs where offsets were skipped: then the one before it has a wrong offset, not this."""
        with contextlib.suppress(BadBatch):
            found = next(scan_batches(segment.file.read, bad.position, file_bytes, segment.base_offset), None)
            return found is not None and found.header.base_offset in self._skipped
        return False

    def _batch_after(self, segment: Segment, bad: BadBatch, next_offset: Offset, file_bytes: int) -> FoundBatch | None:
        """The sound batch behind one whose checksum is wrong; None when its length cannot be believed either."""
        if bad.skip_to is None:
            return None
        try:
            return next(scan_batches(segment.file.read, bad.skip_to, file_bytes, next_offset + 1), None)
        except BadBatch:
            return None

    def _offset_behind(self, segment: Segment, next_offset: Offset) -> Offset:
        names = self.fs.listdir(self.log.directory)
        bases = [base for name in names if name.endswith(LOG_SUFFIX) and (base := base_offset_of(name)) is not None]
        behind = min(next_offset, max(segment.base_offset, self.recovery_point))  # The offset itself may be the damage.
        return min((base for base in bases if base > segment.base_offset), default=behind)

    def _is_torn_at(self, next_offset: Offset) -> bool:
        """Whether missing records from `next_offset` on are a loss that cuts the log."""
        return next_offset >= self.recovery_point and self._is_gap_a_loss(next_offset)

    def _is_gap_a_loss(self, next_offset: Offset) -> bool:
        """Whether no compaction can have left a gap here.

        Compaction goes no further than the recovery point: what is missing above it, and is in the journal, was lost.
        """
        return not self.log.config.is_compacted or self.recovery_point <= next_offset < self.journal.end

    def _resume(self, segment: Segment, next_offset: Offset) -> tuple[int, Offset]:
        """Where the scan begins, and the offset due there: an indexed batch that is sound, else the segment's start."""
        with contextlib.suppress(BadIndex, FileNotFoundError):
            indexes = segment.stored_indexes()
            indexes.check(sys.maxsize)  # Entries behind a torn tail do not make the others wrong.
            found = self._sound_entry(segment, indexes)
            if found is not None:
                indexes.truncate(found.position, found.header.base_offset)
                segment.use_indexes(indexes)
                segment.size = found.position
                return found.position, Offset(found.header.base_offset)
        segment.use_indexes(SegmentIndexes(segment.base_offset))
        segment.size = 0
        return 0, next_offset

    def _sound_entry(self, segment: Segment, indexes: SegmentIndexes) -> FoundBatch | None:
        """The last indexed batch that had been synced, with all before it in the time index too."""
        limit = RELATIVE_OFFSET_MAX if self.clean else self.recovery_point - segment.base_offset - 1
        indexes.times.truncate(limit + 1)
        newest = indexes.times.last()
        # The two files reach the disk in any order: batches behind the last time entry are looked at again.
        if newest is None or not segment.has_newest(indexes, newest):
            return None
        entry = indexes.offsets.entry_before(min(limit, newest[1]))
        if entry is None:
            return None
        with contextlib.suppress(BadBatch):
            found = next(self._batches(segment.file.read, entry[1], segment.size, segment.base_offset), None)
            if found is not None and found.header.last_offset == segment.base_offset + entry[0]:
                return found
        return None

    # Damage

    def _report(self, damage: str) -> None:
        self.damaged.append(damage)
        log.error("synced records are damaged on disk", where=damage, advice="run `penstock log verify`")

    def _fail(self, damage: str) -> None:
        if damage not in self.damaged:
            self._report(damage)
        self.log.fail(f"damaged on disk: {damage}")


def sync_dir(fs: FileSystem, path: str) -> None:
    """SyncFailed when the names in it may be on no disk."""
    try:
        fs.sync_dir(path)
    except OSError as error:
        raise SyncFailed(error.errno, error.strerror, path) from error


def _sync(file: File) -> None:
    try:
        file.sync()
    except OSError as error:
        raise SyncFailed(error.errno, error.strerror, file.path) from error
