"""Walking over batches: in bytes at hand (fetch) and through a file (look-up, recovery, compaction, verify)."""

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from penstock.wire.batch import (
    BATCH_LENGTH_MIN,
    HEADER_BYTES,
    MAGIC,
    PREFIX,
    PREFIX_BYTES,
    BatchHeader,
    CorruptBatch,
    has_valid_crc,
    read_header,
    unpack_header,
)

Buffer = bytes | bytearray | memoryview
Read = Callable[[int, int], Buffer]

LAST_OFFSET_DELTA = struct.Struct(">i")
LAST_OFFSET_DELTA_POSITION = 23

SCAN_CHUNK_BYTES = 4 << 20  # Read ahead this far: large enough that batches of the default 1 MiB are whole in it.
HEADERS_CHUNK_BYTES = 8192  # Two index intervals: a reader that bisected finds its batch in one read.


class BadBatch(Exception):
    """There is no whole, sound batch at `position`. `skip_to` is the next batch when only the checksum is wrong."""

    def __init__(self, position: int, reason: str, skip_to: int | None = None) -> None:
        super().__init__(f"at byte {position}: {reason}")
        self.position = position
        self.reason = reason
        self.skip_to = skip_to


class FoundBatch(NamedTuple):
    position: int
    header: BatchHeader
    view: Buffer  # The whole batch.


def whole_batches(view: Buffer, offset_end: int) -> tuple[int, int]:
    """(bytes, next_offset) of the whole batches in `view` that lie below `offset_end`; (0, -1) when there is none."""
    position, last, last_base = 0, -1, -1
    size = len(view)
    unpack = PREFIX.unpack_from
    while position + HEADER_BYTES <= size:
        base_offset, length = unpack(view, position)
        end = position + PREFIX_BYTES + length
        # A damaged length must not lead backwards: the loop would never end.
        if base_offset >= offset_end or end > size or length < BATCH_LENGTH_MIN:
            break
        last, last_base = position, base_offset
        position = end
    if last < 0:
        return 0, -1
    return position, last_base + LAST_OFFSET_DELTA.unpack_from(view, last + LAST_OFFSET_DELTA_POSITION)[0] + 1


def header_problem(header: BatchHeader, offset_min: int) -> str | None:
    """Why this cannot be the header of a batch that starts at `offset_min` or later; None when it can."""
    if header.magic != MAGIC:
        return f"magic is {header.magic}, not {MAGIC}"
    if header.batch_length < BATCH_LENGTH_MIN:
        return f"length is {header.batch_length}"
    if header.base_offset < offset_min:
        return f"base offset {header.base_offset} where {offset_min} or more was due"
    if header.last_offset_delta < 0:
        return f"last offset delta is {header.last_offset_delta}"
    return None


def sound_batches(records: memoryview, offset_min: int) -> Iterator[BatchHeader]:
    """The headers of batches that lie one behind the other; CorruptBatch at the first that is cut short or unsound."""
    position = 0
    while position < len(records):
        header = read_header(records, position)
        problem = header_problem(header, offset_min)
        if problem is not None or position + header.size > len(records) or not has_valid_crc(records, position, header):
            raise CorruptBatch(f"batch at offset {header.base_offset}: {problem or 'cut short or changed'}")
        yield header
        position += header.size
        offset_min = header.next_offset


def scan_batches(read: Read, start: int, end: int, offset_min: int) -> Iterator[FoundBatch]:
    """Every batch of the file bytes [start, end), checked; BadBatch at the first that is cut short or unsound."""
    position = start
    chunk: Buffer = b""
    chunk_start = start
    while position < end:
        if position + HEADER_BYTES > end:
            raise BadBatch(position, "header is cut short")
        if position + HEADER_BYTES > chunk_start + len(chunk):
            chunk, chunk_start = read(position, min(SCAN_CHUNK_BYTES, end - position)), position
            if len(chunk) < HEADER_BYTES:
                raise BadBatch(position, "file is shorter than it was")
        header = unpack_header(chunk, position - chunk_start)
        problem = header_problem(header, offset_min)
        if problem is not None:
            raise BadBatch(position, problem)
        stop = position + header.size
        if stop > end:
            raise BadBatch(position, f"batch of {header.size} bytes is cut short")
        if stop > chunk_start + len(chunk):
            chunk, chunk_start = read(position, max(header.size, min(SCAN_CHUNK_BYTES, end - position))), position
            if len(chunk) < header.size:
                raise BadBatch(position, "file is shorter than it was")
        if not has_valid_crc(chunk, position - chunk_start, header):
            raise BadBatch(position, "checksum does not match", skip_to=stop)
        view = memoryview(chunk)[position - chunk_start : stop - chunk_start]
        yield FoundBatch(position, header, view)
        offset_min = header.next_offset
        position = stop


def scan_headers(read: Read, start: int, end: int, offset_min: int) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of every batch in [start, end), bodies unread; BadBatch where a header makes no sense."""
    position = start
    chunk: Buffer = b""
    chunk_start = start
    while position < end:
        if position + HEADER_BYTES > chunk_start + len(chunk):
            chunk, chunk_start = read(position, min(HEADERS_CHUNK_BYTES, end - position)), position
            if len(chunk) < HEADER_BYTES:
                raise BadBatch(position, "header is cut short")
        header = unpack_header(chunk, position - chunk_start)
        problem = header_problem(header, offset_min)
        if problem is not None:
            raise BadBatch(position, problem)
        yield position, header
        position += header.size


def trusted_batches(read: Read, start: int, end: int, offset_min: int) -> Iterator[FoundBatch]:
    """Like `scan_batches`, but for bytes that are known to be sound: bodies are not read, and `view` is empty."""
    for position, header in scan_headers(read, start, end, offset_min):
        if position + header.size > end:
            raise BadBatch(position, f"batch of {header.size} bytes is cut short")
        yield FoundBatch(position, header, memoryview(b""))
