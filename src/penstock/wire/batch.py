"""Record batches (message format 2): a view of the 61-byte header, lazy records, and a builder.

    base_offset i64 | batch_length i32 | partition_leader_epoch i32 | magic i8 | crc u32 | attributes i16
    last_offset_delta i32 | base_timestamp i64 | max_timestamp i64 | producer_id i64 | producer_epoch i16
    base_sequence i32 | records_count i32 | records …

`batch_length` counts the bytes after itself; `crc` is CRC32C of everything after itself. So base offset and leader
epoch can be stamped into a received batch without touching the checksum.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from penstock.wire import compression
from penstock.wire.checksum import crc32c
from penstock.wire.compression import Codec
from penstock.wire.varint import InvalidVarint, read_varint, write_varint

Buffer = bytes | bytearray | memoryview

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size  # 61
PREFIX = struct.Struct(">qi")  # base_offset, batch_length
PREFIX_BYTES = PREFIX.size  # 12: what batch_length does not count
CRC_POSITION = 17
CRC_START = 21  # The checksum covers everything from the attributes on.
BATCH_LENGTH_MIN = HEADER_BYTES - PREFIX_BYTES
RECORD_BYTES_MIN = 7  # length, attributes, timestamp, offset, key, value and header count: one byte each.

MAGIC = 2
CODEC_MASK = 0x07
TIMESTAMP_TYPE_MASK = 0x08
TRANSACTIONAL_MASK = 0x10
CONTROL_MASK = 0x20

NO_PRODUCER_ID = -1

_STAMP = struct.Struct(">qii")
_EPOCH_POSITION = 12
_MAX_TIMESTAMP_POSITION = 35


class CorruptBatch(ValueError):
    """The bytes are not a batch, or not the batch that was written."""


class BatchHeader(NamedTuple):
    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return self.batch_length + PREFIX_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & TIMESTAMP_TYPE_MASK)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_MASK)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_MASK)


class Header(NamedTuple):
    key: str
    value: bytes | None


class Record(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = ()
    size: int = 0  # Bytes of the record in its batch, uncompressed.


def unpack_header(view: Buffer, position: int) -> BatchHeader:
    """As `BatchHeader._make`, in half of the time; struct.error when fewer than 61 bytes are there."""
    return tuple.__new__(BatchHeader, HEADER.unpack_from(view, position))


def read_header(view: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`; CorruptBatch when fewer than 61 bytes are there."""
    try:
        return unpack_header(view, position)
    except struct.error as error:
        raise CorruptBatch("batch header cut short") from error


def has_valid_crc(view: Buffer, position: int, header: BatchHeader) -> bool:
    if header.batch_length < BATCH_LENGTH_MIN:
        return False
    body = memoryview(view)[position + CRC_START : position + header.size]
    return bool(crc32c(body) == header.crc)


def stamp(view: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int) -> None:
    """Write the offset and epoch that the leader assigns; neither is covered by the checksum."""
    length = struct.unpack_from(">i", view, position + 8)[0]
    _STAMP.pack_into(view, position, base_offset, length, leader_epoch)


def stamp_append_time(view: bytearray | memoryview, position: int, header: BatchHeader, timestamp: int) -> None:
    """Turn the batch to log-append time: sets the type bit and the maximum, and renews the checksum."""
    attributes = header.attributes | TIMESTAMP_TYPE_MASK
    struct.pack_into(">h", view, position + CRC_START, attributes)
    struct.pack_into(">q", view, position + _MAX_TIMESTAMP_POSITION, timestamp)
    body = memoryview(view)[position + CRC_START : position + header.size]
    struct.pack_into(">I", view, position + CRC_POSITION, crc32c(body))


def records_of(view: Buffer, position: int = 0, *, decompressed_bytes_max: int) -> Iterator[Record]:
    """The records of the batch at `position`, decoded one by one. CorruptBatch on the first that makes no sense."""
    header = read_header(view, position)
    if not BATCH_LENGTH_MIN <= header.batch_length <= len(view) - position - PREFIX_BYTES:
        raise CorruptBatch(f"batch of {header.size} bytes, {len(view) - position} are left")
    payload = memoryview(view)[position + HEADER_BYTES : position + header.size]
    yield from decode_records(header, plain_payload(header, payload, decompressed_bytes_max))


def plain_payload(header: BatchHeader, payload: memoryview, decompressed_bytes_max: int) -> Buffer:
    """The records' bytes without compression; CorruptBatch or `compression.TooLarge` when that cannot be had."""
    if header.codec == Codec.NONE:
        return payload
    try:
        return compression.decompress(header.codec, payload, decompressed_bytes_max)
    except compression.BadData as error:
        raise CorruptBatch(str(error)) from error


def decode_records(header: BatchHeader, data: Buffer) -> Iterator[Record]:
    """The records in uncompressed `data`; CorruptBatch unless exactly `records_count` of them fill it."""
    position = 0
    append_time = header.max_timestamp if header.is_log_append_time else None
    for _ in range(header.records_count):
        try:
            record, position = _decode_record(data, position, header, append_time)
        except (InvalidVarint, IndexError) as error:
            raise CorruptBatch(f"record at byte {position} cannot be read: {error}") from error
        yield record
    if position != len(data) or header.records_count < 0:
        raise CorruptBatch(f"{len(data) - position} bytes left after {header.records_count} records")


def _decode_record(data: Buffer, start: int, header: BatchHeader, append_time: int | None) -> tuple[Record, int]:
    length, position = read_varint(data, start)
    end = position + length
    if length < RECORD_BYTES_MIN - 1 or end > len(data):
        raise CorruptBatch(f"record at byte {start} has length {length}, {len(data) - position} bytes are left")
    timestamp_delta, position = read_varint(data, position + 1)
    offset_delta, position = read_varint(data, position)
    if not 0 <= offset_delta <= header.last_offset_delta:
        raise CorruptBatch(f"record at byte {start} has offset delta {offset_delta} of {header.last_offset_delta}")
    key, position = _read_bytes(data, position, end)
    value, position = _read_bytes(data, position, end)
    count, position = read_varint(data, position)
    if count < 0 or count > end - position:
        raise CorruptBatch(f"record at byte {start} claims {count} headers")
    headers = []
    for _ in range(count):
        name, position = _read_bytes(data, position, end)
        if name is None:
            raise CorruptBatch(f"record at byte {start} has a header without a name")
        header_value, position = _read_bytes(data, position, end)
        # Names that are no UTF-8 come back as the same bytes: nothing on the way in refuses them.
        headers.append(Header(name.decode(errors="surrogateescape"), header_value))
    if position != end:
        raise CorruptBatch(f"record at byte {start} ends {end - position} bytes early")
    timestamp = header.base_timestamp + timestamp_delta if append_time is None else append_time
    if not -(2**63) <= timestamp < 2**63:
        raise CorruptBatch(f"record at byte {start} has timestamp {timestamp}")
    return Record(header.base_offset + offset_delta, timestamp, key, value, headers, end - start), end


def _read_bytes(data: Buffer, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = read_varint(data, position)
    if length == -1:
        return None, position
    stop = position + length
    if length < 0 or stop > end:
        raise CorruptBatch(f"field at byte {position} has length {length}")
    return bytes(data[position:stop]), stop


def build_batch(
    records: Iterable[Record],
    *,
    base_offset: int,
    codec: Codec = Codec.NONE,
    leader_epoch: int = 0,
    attributes: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    last_offset: int | None = None,
    base_timestamp: int | None = None,
    max_timestamp: int | None = None,
) -> bytearray:
    """One batch of `records`, whose offsets are absolute and may have gaps (compaction leaves them)."""
    kept = list(records)
    if base_timestamp is None:
        base_timestamp = kept[0].timestamp if kept else -1
    if max_timestamp is None:
        max_timestamp = max((record.timestamp for record in kept), default=-1)
    if last_offset is None:
        last_offset = kept[-1].offset
    body = bytearray()
    for record in kept:
        body += _encode_record(record, base_offset, base_timestamp)
    payload = compression.compress(codec, body) if codec else body
    batch = bytearray(HEADER_BYTES + len(payload))
    batch[HEADER_BYTES:] = payload
    fields = BatchHeader(
        base_offset, len(batch) - PREFIX_BYTES, leader_epoch, MAGIC, 0, attributes & ~CODEC_MASK | codec,
        last_offset - base_offset, base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence,
        len(kept),
    )  # fmt: skip
    HEADER.pack_into(batch, 0, *fields)
    struct.pack_into(">I", batch, CRC_POSITION, crc32c(memoryview(batch)[CRC_START:]))
    return batch


def with_payload(header: BatchHeader, payload: Buffer, codec: Codec) -> bytearray:
    """The batch of `header` around the same records in another codec."""
    batch = bytearray(HEADER_BYTES + len(payload))
    batch[HEADER_BYTES:] = payload
    attributes = header.attributes & ~CODEC_MASK | codec
    HEADER.pack_into(batch, 0, *header._replace(batch_length=len(batch) - PREFIX_BYTES, attributes=attributes))
    struct.pack_into(">I", batch, CRC_POSITION, crc32c(memoryview(batch)[CRC_START:]))
    return batch


def _encode_record(record: Record, base_offset: int, base_timestamp: int) -> bytearray:
    body = bytearray(b"\x00")  # attributes: none are defined
    write_varint(body, record.timestamp - base_timestamp)
    write_varint(body, record.offset - base_offset)
    _write_bytes(body, record.key)
    _write_bytes(body, record.value)
    write_varint(body, len(record.headers))
    for name, value in record.headers:
        _write_bytes(body, name.encode(errors="surrogateescape"))
        _write_bytes(body, value)
    framed = bytearray()
    write_varint(framed, len(body))
    return framed + body


def _write_bytes(body: bytearray, value: bytes | None) -> None:
    if value is None:
        write_varint(body, -1)
    else:
        write_varint(body, len(value))
        body += value
