"""Segment files read from disk: which there are, their batches and index entries in order. Bounded memory.

Reads with `pread`, not `mmap`: a broker that truncates the file meanwhile would end this process with SIGBUS.
"""

import os
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from penstock.cli.output import Failure
from penstock.storage.format import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    base_offset_of,
    parse_partition_directory,
)
from penstock.storage.scan import BadBatch, FoundBatch, header_problem, scan_batches
from penstock.wire.batch import HEADER_BYTES, BatchHeader, read_header

Read = Callable[[int, int], bytes]
_ENTRIES_PER_READ = 8192
BATCH_BYTES_MAX = (
    256 << 20
)  # Held in memory while it is checked. A length beyond this is damage: brokers accept far less.


class Step(NamedTuple):
    """One step through a log: a sound batch (`found`), or one with a `problem` and as much of it as can be read."""

    position: int
    header: BatchHeader | None
    found: FoundBatch | None
    problem: str | None


class Segment(NamedTuple):
    directory: Path
    base_offset: int

    @property
    def log(self) -> Path:
        return self.file(LOG_SUFFIX)

    @property
    def offset_index(self) -> Path:
        return self.file(OFFSET_INDEX_SUFFIX)

    @property
    def time_index(self) -> Path:
        return self.file(TIME_INDEX_SUFFIX)

    @property
    def txn_index(self) -> Path:
        return self.file(TXN_INDEX_SUFFIX)

    def file(self, suffix: str) -> Path:
        return self.directory / f"{self.base_offset:020d}{suffix}"


def segment_files(paths: Iterable[Path]) -> list[Path]:
    """The segment files among and in `paths`: files, partition directories, or data directories with such inside."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = _files_in(path)
            if not inside:
                partitions = [entry for entry in sorted(path.iterdir()) if parse_partition_directory(entry.name)]
                inside = [file for partition in partitions if partition.is_dir() for file in _files_in(partition)]
            found += inside
        elif not path.exists():
            raise Failure(f"There is no {path}.", hint="Give segment files, partition directories or a data directory.")
        elif _is_segment_file(path):
            found.append(path)
        else:
            raise Failure(
                f"{path} is no segment file.",
                hint="Their names are a base offset of 20 digits with .log, .index, .timeindex or .txnindex.",
            )
    return list(dict.fromkeys(found))


def _files_in(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if _is_segment_file(path))


def _is_segment_file(path: Path) -> bool:
    return path.suffix in SEGMENT_SUFFIXES and base_offset_of(path.name) is not None and len(path.stem) == 20


def segments_of(files: Iterable[Path]) -> list[Segment]:
    """The segments that the files belong to, in order of directory and offset."""
    return sorted({Segment(path.parent, int(path.stem)) for path in files})


@contextmanager
def opened(path: Path) -> Iterator[tuple[Read, int]]:
    """A function that reads (position, size) of the file, and the file's size when it was opened."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise Failure(
            f"Cannot read {path}: {error.strerror}.", hint="Run this as the user that runs the broker."
        ) from error
    try:
        yield lambda position, size: os.pread(descriptor, size, position), os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def steps(read: Read, size: int, base_offset: int) -> Iterator[Step]:
    """Every batch of a log, sound or not; ends early, with a problem, where the next batch cannot be found."""

    def bounded_read(start: int, wanted: int) -> bytes:
        if wanted > BATCH_BYTES_MAX:
            raise BadBatch(start, f"length is {wanted}")
        return read(start, wanted)

    position, offset_min = 0, base_offset
    while position < size:
        try:
            for found in scan_batches(bounded_read, position, size, offset_min):
                offset_min = found.header.next_offset
                yield Step(found.position, found.header, found, None)
            return
        except BadBatch as bad:
            header = _readable_header(read, bad.position, size)
            yield Step(bad.position, header, None, bad.reason)
            if bad.skip_to is not None and header is not None:
                position, offset_min = bad.skip_to, header.next_offset
            elif header is not None and bad.position + header.size <= size:
                # Only the offset is out of order: what follows is judged from there.
                position, offset_min = bad.position + header.size, header.next_offset
            else:
                return


def _readable_header(read: Read, position: int, size: int) -> BatchHeader | None:
    """The header there, if it is one apart from its offset and checksum."""
    if position + HEADER_BYTES > size:
        return None
    header = read_header(read(position, HEADER_BYTES))
    return header if header_problem(header, header.base_offset) is None else None


def entries(read: Read, size: int, layout: struct.Struct) -> Iterator[tuple[int, int]]:
    """The whole entries of an index. Zeros at the end are left out: Kafka allocates its index files ahead."""
    zeros = 0
    whole = size - size % layout.size
    for position in range(0, whole, layout.size * _ENTRIES_PER_READ):
        chunk = read(position, min(layout.size * _ENTRIES_PER_READ, whole - position))
        if chunk.count(0) == len(chunk):  # Ten megabytes of these per file, one by one, would take a second.
            zeros += len(chunk) // layout.size
            continue
        for first, second in layout.iter_unpack(chunk[: len(chunk) - len(chunk) % layout.size]):
            if first == 0 and second == 0:
                zeros += 1
                continue
            for _ in range(zeros):
                yield 0, 0
            zeros = 0
            yield first, second
