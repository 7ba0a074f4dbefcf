"""Opening a log: after a clean stop its tail is read, after an unclean one everything that no sync had covered.

The recovery point is an offset below which all bytes had been synced. What is unsound above it was never promised and
is cut off with all that follows (a torn tail). What is unsound below it had been promised: it is reported and left as
it is, for a replica or an operator to repair, never cut.
"""

import contextlib
from typing import NamedTuple

from penstock.base.logging import get_logger
from penstock.base.types import Offset
from penstock.storage.format import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    base_offset_of,
    segment_path,
)
from penstock.storage.fs import FileSystem
from penstock.storage.log import Log
from penstock.storage.scan import BadBatch, header_problem, scan_batches
from penstock.storage.segment import Segment
from penstock.storage.swap import finish_swaps
from penstock.wire.batch import HEADER_BYTES, read_header

log = get_logger(__name__)


class Recovery(NamedTuple):
    bytes_scanned: int
    bytes_cut: int
    damaged: list[str]  # What is unsound below the recovery point.


def open_log(partition_log: Log, fs: FileSystem, *, recovery_point: Offset, log_start: Offset, clean: bool) -> Recovery:
    """Load the segments of the log's directory and bring it into a state that can be appended to and read."""
    fs.mkdir(partition_log.directory)
    names = fs.listdir(partition_log.directory)
    finish_swaps(fs, partition_log.directory, names)
    for name in names:
        if name.endswith((DELETED_SUFFIX, CLEANED_SUFFIX, ".tmp")) and fs.exists(f"{partition_log.directory}/{name}"):
            fs.remove(f"{partition_log.directory}/{name}")
    bases = [
        base
        for name in fs.listdir(partition_log.directory)
        if name.endswith(LOG_SUFFIX) and (base := base_offset_of(name)) is not None
    ]
    if not bases:
        partition_log.log_end = partition_log.log_start = partition_log.synced_end = log_start
        partition_log.roll()
        return Recovery(0, 0, [])
    return _Opening(partition_log, fs, recovery_point, clean).run(bases, log_start)


class _Opening:
    def __init__(self, partition_log: Log, fs: FileSystem, recovery_point: Offset, clean: bool) -> None:
        self.log = partition_log
        self.fs = fs
        self.recovery_point = recovery_point
        self.clean = clean
        self.bytes_scanned = 0
        self.bytes_cut = 0
        self.damaged: list[str] = []

    def run(self, bases: list[Offset], log_start: Offset) -> Recovery:
        segments: list[Segment] = []
        scanned: list[Segment] = []
        next_offset = bases[0]
        for number, base in enumerate(bases):
            segment = self._segment(base)
            segments.append(segment)
            is_last = number == len(bases) - 1
            # The next segment's base bounds this one's offsets: all below the recovery point needs no look.
            if not is_last and (self.clean or bases[number + 1] <= self.recovery_point):
                continue
            scanned.append(segment)
            next_offset, was_cut = self._scan(segment, max(base, next_offset))
            if was_cut:
                self._drop(bases[number + 1 :])
                break
        self.log.set_segments(segments)
        self._activate(segments[-1])
        self.log.log_end = next_offset
        self.log.log_start = Offset(min(max(log_start, bases[0]), next_offset))
        if not self.clean:
            for segment in scanned:
                segment.file.sync()
                segment.is_dirty = False
            self.fs.sync_dir(self.log.directory)
        self.log.synced_end = next_offset
        return Recovery(self.bytes_scanned, self.bytes_cut, self.damaged)

    def _segment(self, base: Offset) -> Segment:
        path = segment_path(self.log.directory, base, LOG_SUFFIX)
        return self.log.new_segment(base, size=self.fs.size(path), created_ms=self.fs.modified_ms(path))

    def _scan(self, segment: Segment, next_offset: Offset) -> tuple[Offset, bool]:
        """Check and index the segment from where it may be unsound; gives the next offset and whether it was cut."""
        file_bytes = segment.size
        position, next_offset = self._scan_start(segment, next_offset)
        interval = self.log.config.index_interval_bytes
        while True:
            try:
                for found in scan_batches(segment.file.read, position, file_bytes, next_offset):
                    segment.note_scanned(found.position, found.header, interval)
                    self.bytes_scanned += found.header.size
                    next_offset = Offset(found.header.next_offset)
                return next_offset, False
            except BadBatch as bad:
                if next_offset >= self.recovery_point:
                    self._cut(segment, bad, next_offset, file_bytes)
                    return next_offset, True
                damage = f"{segment.path()} at byte {bad.position}, offset {next_offset}: {bad.reason}"
                self.damaged.append(damage)
                log.error("synced records are damaged on disk", where=damage, advice="run `penstock log verify`")
                if bad.skip_to is None:
                    # Where the next batch starts cannot be known. Nothing is cut, nothing may be written behind it.
                    self.log.fail(f"damaged on disk: {damage}")
                    return self._next_offset_after_damage(segment, next_offset), False
                header = read_header(segment.file.read(bad.position, HEADER_BYTES))
                segment.note_scanned(bad.position, header, interval)
                position, next_offset = bad.skip_to, Offset(header.next_offset)

    def _next_offset_after_damage(self, segment: Segment, next_offset: Offset) -> Offset:
        later = [base for base in self._bases_on_disk() if base > segment.base_offset]
        return min(later, default=next_offset)

    def _bases_on_disk(self) -> list[Offset]:
        names = self.fs.listdir(self.log.directory)
        return [base for name in names if name.endswith(LOG_SUFFIX) and (base := base_offset_of(name)) is not None]

    def _scan_start(self, segment: Segment, next_offset: Offset) -> tuple[int, Offset]:
        """The last indexed batch that is surely sound, with its base offset; the segment's start when none is."""
        target = self.recovery_point if not self.clean else segment.base_offset + 2**31
        position = segment.offset_index.position_before(max(0, target - segment.base_offset))
        if 0 < position <= segment.size - HEADER_BYTES:
            header = read_header(segment.file.read(position, HEADER_BYTES))
            if header_problem(header, segment.base_offset) is None:
                segment.resume_indexes(position, header.base_offset)
                return position, Offset(header.base_offset)
        segment.resume_indexes(0, segment.base_offset)
        return 0, next_offset

    def _cut(self, segment: Segment, bad: BadBatch, next_offset: Offset, file_bytes: int) -> None:
        self.bytes_cut += file_bytes - bad.position
        log.warning(
            "torn tail cut off",
            segment=segment.path(),
            position=bad.position,
            bytes=file_bytes - bad.position,
            next_offset=next_offset,
            reason=bad.reason,
        )
        segment.truncate(bad.position, next_offset)

    def _drop(self, bases: list[Offset]) -> None:
        """Remove the segments behind a cut: nothing in them was ever promised."""
        for base in bases:
            segment = self._segment(base)
            self.bytes_cut += segment.size
            for path in segment.rename_files(DELETED_SUFFIX):
                self.fs.remove(path)

    def _activate(self, segment: Segment) -> None:
        segment.is_active = True
        with contextlib.suppress(OSError):
            if segment.size >= HEADER_BYTES:
                segment.first_timestamp = read_header(segment.file.read(0, HEADER_BYTES)).max_timestamp
