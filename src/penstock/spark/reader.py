"""What one task does: read exactly [start, end) of a partition and yield it as Arrow batches.

The leader is asked for the next bytes before the last are decoded, so it works while Python does. Memory is bounded
whatever the partition holds: one reply of a Fetch (the next is in the kernel's buffer), and one chunk with its columns
and rows.
"""

import struct
import time
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from penstock.base.errors import BadPeer, ErrorCode
from penstock.spark.aborted import AbortedRecords
from penstock.spark.brokers import PADDING_BYTES, RETRIABLE, Brokers, Connection, Frame, Refusal, TryAgain
from penstock.spark.decode import Span, decode, to_arrow
from penstock.spark.options import EARLIEST, Isolation
from penstock.spark.plan import OffsetRange
from penstock.wire.batch import (
    BATCH_LENGTH_MIN,
    HEADER_BYTES,
    MAGIC,
    BatchHeader,
    CorruptBatch,
    has_valid_crc,
    plain_payload,
    read_header,
)
from penstock.wire.compression import Codec, TooLarge

FETCH, FETCH_VERSION = 1, 11
FETCH_WAIT_MS = 500

# The first Fetch is small, for who reads a few records of a large partition; each further one is twice as large.
FETCH_BYTES_MIN = 256 << 10
FETCH_BYTES_MAX = 8 << 20
# Of compressed batches, decompressed at a time.
CHUNK_BYTES = 8 << 20
# Rows for Spark at a time, about; it likes many: 500 of 1 KB at a time reach the JVM at a third of the speed of 8,000.
# But no more than that numpy's columns of them fit the processor's cache.
ROWS_COUNT = 16_384
# One batch, without its compression. Kafka's own consumer has no limit; this is far above any max.message.bytes.
BATCH_BYTES_MAX = 512 << 20

_REQUEST_HEAD = struct.Struct(">iiiibiii")  # replica, wait, bytes min, bytes max, isolation, session, epoch, topics
_REQUEST_PARTITION = struct.Struct(">iiiqqi")  # count, partition, leader epoch, offset, log start, bytes max
_REQUEST_TAIL = struct.Struct(">ih")  # forgotten topics, rack
_REPLY_HEAD = struct.Struct(">ihii")  # throttle, error, session, topics
_REPLY_PARTITION = struct.Struct(">iihqqqi")  # count, partition, error, high watermark, LSO, log start, aborted
_ABORTED = struct.Struct(">qq")  # producer id, first offset
_REPLY_RECORDS = struct.Struct(">ii")  # preferred read replica, bytes


class DataLoss(Exception):
    """Records that a query was to read are gone."""


class Wanted(NamedTuple):
    """What a task gets from the driver."""

    bootstrap_servers: str
    range: OffsetRange
    isolation: Isolation
    has_headers: bool
    fails_on_data_loss: bool
    poll_timeout_ms: int


class Fetched(NamedTuple):
    """Whole batches, perhaps with a torn one at the end, in [start, end) of `data`, which goes on behind."""

    data: bytearray
    start: int
    end: int
    aborted: list[tuple[int, int]]  # Producer ids and first offsets.


def read(wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """All records of the range that the isolation level lets through, in order."""
    with Brokers(wanted.bootstrap_servers, patience_s=wanted.poll_timeout_ms / 1000) as brokers:
        for fetched, position in _fetches(brokers, wanted):
            yield from _rows(fetched, position, wanted)


def _fetches(brokers: Brokers, wanted: Wanted) -> Iterator[tuple[Fetched, int]]:
    """One reply after the other, each with the offset from which on it counts. The next is under way meanwhile.

    A reply is valid until the next is asked for.
    """
    topic, partition, position, end = wanted.range
    what = f"read {topic}-{partition}"
    bytes_max, quiet_since = FETCH_BYTES_MIN, time.monotonic()
    under_way: tuple[Connection, int] | None = None
    buffer = bytearray()  # Used for one reply after the other: new memory of that size costs as much as the copy.

    def ask() -> tuple[Connection, int]:
        return _ask(brokers.leader(topic, partition), wanted, position, bytes_max)

    def receive() -> Fetched:
        nonlocal under_way, buffer
        (leader, number), under_way = under_way or ask(), None  # What breaks off is asked for anew.
        frame = leader.receive(FETCH, FETCH_VERSION, number, buffer)
        buffer = frame.data
        return _read_reply(frame, what)

    while position < end:
        try:
            fetched = brokers.persist(receive, what)
        except Refusal as refusal:
            if refusal.code != ErrorCode.offset_out_of_range:
                raise
            position = _after_loss(brokers, wanted, position)
            continue
        start, position = position, _next_offset(fetched, position)
        if position > start:
            quiet_since = time.monotonic()
            if position < end:
                bytes_max = min(2 * bytes_max, FETCH_BYTES_MAX)
                under_way = brokers.persist(ask, what)
            yield fetched, start
        elif time.monotonic() - quiet_since > wanted.poll_timeout_ms / 1000:
            # Below the end there is always something, or the log was cut: an unclean election.
            position = _after_loss(brokers, wanted, position)


def _after_loss(brokers: Brokers, wanted: Wanted, position: int) -> int:
    """From where on to read when `position` is gone: the first record that is left, or the end."""
    topic, partition, _, end = wanted.range
    left = brokers.offsets({(topic, partition): EARLIEST}, wanted.isolation)[topic, partition]
    if wanted.fails_on_data_loss:
        raise DataLoss(
            f"offset {position} of {topic}-{partition} is gone, what is left starts at {left}: the records were"
            " deleted, or the topic was made anew. Set failOnDataLoss to false to go on with what is left."
        )
    return min(left, end) if left > position else end


def _ask(leader: Connection, wanted: Wanted, position: int, bytes_max: int) -> tuple[Connection, int]:
    name = wanted.range.topic.encode()
    body = (
        _REQUEST_HEAD.pack(-1, FETCH_WAIT_MS, 1, bytes_max, wanted.isolation, 0, -1, 1)
        + struct.pack(">h", len(name))
        + name
        + _REQUEST_PARTITION.pack(1, wanted.range.partition, -1, position, -1, bytes_max)
        + _REQUEST_TAIL.pack(0, 0)
    )
    return leader, leader.send(FETCH, FETCH_VERSION, body)


def _read_reply(frame: Frame, name: str) -> Fetched:
    """TryAgain and Refusal for what the broker would not give."""
    data, position, end = frame
    _, error, _, topics = _REPLY_HEAD.unpack_from(data, position)
    if error:
        raise Refusal(error, name)
    if topics != 1:
        raise BadPeer(f"a reply to Fetch with {topics} topics")
    position += _REPLY_HEAD.size
    position += 2 + struct.unpack_from(">h", data, position)[0]
    partitions, _, error, _, _, _, aborted_count = _REPLY_PARTITION.unpack_from(data, position)
    if error in RETRIABLE:
        raise TryAgain(f"{name}: {ErrorCode(error).name}")
    if error:
        raise Refusal(error, name)
    position += _REPLY_PARTITION.size
    aborted = [_ABORTED.unpack_from(data, position + number * _ABORTED.size) for number in range(max(aborted_count, 0))]
    position += len(aborted) * _ABORTED.size
    _, size = _REPLY_RECORDS.unpack_from(data, position)
    position += _REPLY_RECORDS.size
    if partitions != 1 or size > end - position:
        raise BadPeer(f"a reply to Fetch with {partitions} partitions, {size} bytes")
    return Fetched(data, position, position + max(size, 0), aborted)


def _batches(fetched: Fetched) -> Iterator[tuple[BatchHeader, int]]:
    """The header and the position of each whole batch."""
    position = fetched.start
    while fetched.end - position >= HEADER_BYTES:
        header = read_header(fetched.data, position)
        if header.batch_length < BATCH_LENGTH_MIN or header.magic != MAGIC:
            raise CorruptBatch(f"no batch at byte {position}: length {header.batch_length}, magic {header.magic}")
        if header.size > fetched.end - position:
            break
        yield header, position
        position += header.size


def _next_offset(fetched: Fetched, offset: int) -> int:
    """The offset after the last whole batch; `offset` when there is none."""
    for header, _ in _batches(fetched):
        offset = max(offset, header.next_offset)
    return offset


def _rows(fetched: Fetched, start: int, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """The records in [start, the range's end) of all batches, in order."""
    aborted = AbortedRecords(fetched.aborted)
    chunk = _Chunk(fetched.data)
    for header, position in _batches(fetched):
        if header.base_offset >= wanted.range.end:
            break
        is_void = aborted.is_void(header) if wanted.isolation is Isolation.READ_COMMITTED else header.is_control
        if not is_void and header.last_offset >= start and header.records_count:
            if not has_valid_crc(fetched.data, position, header):
                raise CorruptBatch(f"checksum of the batch at offset {header.base_offset} of {wanted.range.topic}")
            if not chunk.has_room_for(header):
                yield from chunk.rows(start, wanted)
                chunk = _Chunk(fetched.data)
            chunk.add(header, position)
    yield from chunk.rows(start, wanted)


class _Chunk:
    """Batches that are decoded together: as they lie in the reply or, compressed ones, decompressed side by side."""

    def __init__(self, data: bytearray) -> None:
        self._data = data
        self._plain = bytearray()
        self._spans: list[Span] = []  # Of `_data`, or of `_plain` if that has anything.

    def has_room_for(self, header: BatchHeader) -> bool:
        if not self._spans:
            return True
        return len(self._plain) < CHUNK_BYTES and bool(self._plain) == (header.codec != Codec.NONE)

    def add(self, header: BatchHeader, position: int) -> None:
        start, end = position + HEADER_BYTES, position + header.size
        if header.codec == Codec.NONE:
            self._spans.append(_span(header, start, end))
            return
        try:
            plain = plain_payload(header, memoryview(self._data)[start:end], BATCH_BYTES_MAX)
        except TooLarge as error:
            raise CorruptBatch(f"the batch at offset {header.base_offset}: {error}") from error
        self._spans.append(_span(header, len(self._plain), len(self._plain) + len(plain)))
        self._plain += plain

    def rows(self, start: int, wanted: Wanted) -> Iterator[pa.RecordBatch]:
        topic, partition, _, end = wanted.range
        data = self._plain + bytes(PADDING_BYTES) if self._plain else self._data
        for columns in decode(data, self._spans, ROWS_COUNT):
            is_wanted = (columns.offset >= start) & (columns.offset < end)
            kept = columns if is_wanted.all() else columns.kept(is_wanted)
            if len(kept.offset):
                yield to_arrow(data, kept, topic=topic, partition=partition, has_headers=wanted.has_headers)


def _span(header: BatchHeader, start: int, end: int) -> Span:
    return Span(
        start,
        end,
        header.records_count,
        header.base_offset,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp if header.is_log_append_time else None,
    )
