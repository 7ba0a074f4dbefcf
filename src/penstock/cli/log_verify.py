"""What is wrong with segment files: batches, offsets and indexes against each other. Nothing is changed.

An index is rebuilt as a whole, so only the first problem of each is reported.
"""

import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from penstock.cli.log_files import Read, Segment, entries, opened, steps
from penstock.cli.output import Advance
from penstock.storage.format import OFFSET_ENTRY, TIME_ENTRY
from penstock.storage.index import BadIndex
from penstock.storage.txn_index import TxnIndex
from penstock.wire.batch import BatchHeader

RESTORE = "Restore the file from a backup or another replica."
REBUILD = "Delete this file while the broker is stopped: it is made anew from the log."


class Problem(NamedTuple):
    file: Path
    position: int
    offset: int | None
    what: str
    todo: str


class Verifier:
    """Checks segments one after another, and counts what it has seen."""

    def __init__(self, advance: Advance) -> None:
        self.files_count = 0
        self.batches_count = 0
        self.records_count = 0
        self.bytes_count = 0
        self._advance = advance

    def problems(self, segments: Sequence[Segment]) -> Iterator[Problem]:
        """Everything wrong with the segments, which are in order of directory and offset."""
        for segment, following in zip(segments, [*segments[1:], None], strict=True):
            next_base = following.base_offset if following and following.directory == segment.directory else None
            if segment.log.exists():
                yield from self._segment_problems(segment, next_base)
                continue
            for path in (segment.offset_index, segment.time_index, segment.txn_index):
                if path.exists():
                    self.files_count += 1
                    yield Problem(path, 0, segment.base_offset, "there is no log for this index", "Delete this file.")

    def _segment_problems(self, segment: Segment, next_base: int | None) -> Iterator[Problem]:
        with (
            opened(segment.log) as (read, size),
            _opened_index(segment.offset_index, OFFSET_ENTRY, segment.base_offset) as offset_index,
            _opened_index(segment.time_index, TIME_ENTRY, segment.base_offset) as time_index,
        ):
            checks: list[_OffsetIndexCheck | _TimeIndexCheck] = []
            if offset_index is not None:
                checks.append(_OffsetIndexCheck(offset_index))
            if time_index is not None:
                checks.append(_TimeIndexCheck(time_index))
            self.files_count += 1 + len(checks)
            self.bytes_count += size
            yield from self._log_problems(segment, read, size, next_base, checks)
            yield from (check.index.problem for check in checks if check.index.problem is not None)
        if segment.txn_index.exists():
            self.files_count += 1
            yield from _txn_index_problems(segment, sys.maxsize if next_base is None else next_base)

    def _log_problems(
        self,
        segment: Segment,
        read: Read,
        size: int,
        next_base: int | None,
        checks: Sequence["_OffsetIndexCheck | _TimeIndexCheck"],
    ) -> Iterator[Problem]:
        end = 0
        for step in steps(read, size, segment.base_offset):
            header = step.header
            if step.problem is not None:
                todo = _todo(step.problem, header, is_newest=next_base is None)
                yield Problem(segment.log, step.position, header.base_offset if header else None, step.problem, todo)
            if header is None:
                break
            if next_base is not None and header.last_offset >= next_base:
                what = f"offset {header.last_offset} belongs to the next segment, which begins at {next_base}"
                yield Problem(segment.log, step.position, header.base_offset, what, RESTORE)
            for check in checks:
                check.on_batch(step.position, header)
            if step.found is not None:
                self.batches_count += 1
                self.records_count += header.records_count
            self._advance(step.position + header.size - end)
            end = step.position + header.size
        else:
            for check in checks:
                check.on_end(end)
        self._advance(size - end)


def _txn_index_problems(segment: Segment, end: int) -> Iterator[Problem]:
    with opened(segment.txn_index) as (read, size):
        try:
            TxnIndex(read(0, size)).check(segment.base_offset, end)
        except BadIndex as error:
            yield Problem(segment.txn_index, 0, segment.base_offset, str(error), REBUILD)


def _todo(problem: str, header: BatchHeader | None, *, is_newest: bool) -> str:
    if header is not None and "checksum" in problem:
        return f"{RESTORE} Otherwise readers have to go on at offset {header.next_offset}."
    if is_newest and "cut short" in problem:
        return "A write did not finish: the broker removes it at its next start."
    if header is None:
        return f"Nothing from here on can be read. {RESTORE}"
    return RESTORE


class _Index:
    """The entries of an index file in order, one at a time, and the first problem with them."""

    def __init__(self, path: Path, read: Read, size: int, layout: struct.Struct, base_offset: int) -> None:
        self.problem: Problem | None = None
        self.base_offset = base_offset
        self.entry: tuple[int, int] | None = None  # None when there is no further one, or no use in looking at it.
        self._path = path
        self._position = -layout.size
        self._layout = layout
        self._entries = entries(read, size, layout)
        if size % layout.size:
            self._position = size - size % layout.size
            self.complain(None, "the file ends in half an entry")
        else:
            self.advance()

    def advance(self) -> None:
        self.entry = next(self._entries, None)
        self._position += self._layout.size

    def complain(self, offset: int | None, what: str) -> None:
        self.problem = Problem(self._path, self._position, offset, what, REBUILD)
        self.entry = None


class _OffsetIndexCheck:
    """Each entry must name the start of a batch that is not behind the entry's offset: readers scan on from there."""

    def __init__(self, index: _Index) -> None:
        self.index = index
        self._previous = (-1, -1)

    def on_batch(self, position: int, header: BatchHeader) -> None:
        index = self.index
        while index.entry is not None and index.entry[1] <= position:
            relative, at = index.entry
            offset = index.base_offset + relative
            if relative <= self._previous[0] or at <= self._previous[1]:
                index.complain(offset, f"the entry for offset {offset} does not come after the one before it")
            elif at < position:
                index.complain(offset, f"byte {at} of the log is not the start of a batch")
            elif offset < header.base_offset:
                index.complain(offset, f"byte {at} of the log is already at offset {header.base_offset}")
            else:
                self._previous = index.entry
                index.advance()

    def on_end(self, log_bytes: int) -> None:
        if self.index.entry is not None:
            relative, at = self.index.entry
            self.index.complain(
                self.index.base_offset + relative, f"points to byte {at}, but the log ends at {log_bytes}"
            )


class _TimeIndexCheck:
    """Each entry must have the largest timestamp of all batches up to its offset: readers skip those."""

    def __init__(self, index: _Index) -> None:
        self.index = index
        self._previous = (-1, -1)
        self._max_timestamp = -1
        self._last_offset = -1

    def on_batch(self, position: int, header: BatchHeader) -> None:
        self._check_entries_below(header.base_offset)
        self._max_timestamp = max(self._max_timestamp, header.max_timestamp)
        self._last_offset = header.last_offset

    def on_end(self, log_bytes: int) -> None:
        self._check_entries_below(self._last_offset + 1)
        if self.index.entry is not None:
            offset = self.index.base_offset + self.index.entry[1]
            self.index.complain(offset, f"names offset {offset}, but the log ends at {self._last_offset + 1}")

    def _check_entries_below(self, next_offset: int) -> None:
        index = self.index
        while index.entry is not None and index.base_offset + index.entry[1] < next_offset:
            timestamp, relative = index.entry
            offset = index.base_offset + relative
            if timestamp <= self._previous[0] or relative < self._previous[1]:
                index.complain(offset, f"the entry for time {timestamp} does not come after the one before it")
            elif timestamp < self._max_timestamp:
                index.complain(
                    offset, f"a message before offset {offset} has time {self._max_timestamp}, not {timestamp}"
                )
            else:
                self._previous = index.entry
                index.advance()


@contextmanager
def _opened_index(path: Path, layout: struct.Struct, base_offset: int) -> Iterator[_Index | None]:
    if not path.exists():
        yield None
        return
    with opened(path) as (read, size):
        yield _Index(path, read, size, layout, base_offset)
