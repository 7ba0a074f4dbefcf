"""One batch without the records that compaction drops: byte for byte what it was, but for those.

Offsets, sequence numbers, codec and the batch's last offset stay. What Kafka calls the delete horizon, the time from
which tombstones and markers of nothing may go, stands in `base_timestamp` once a pass has seen the batch, and attribute
bit 6 says so.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from penstock.base.types import NO_TIMESTAMP
from penstock.storage.offset_map import OffsetMap
from penstock.wire import compression
from penstock.wire.batch import (
    CODEC_MASK,
    CRC_POSITION,
    CRC_START,
    HEADER,
    HEADER_BYTES,
    PREFIX_BYTES,
    BatchHeader,
    CorruptBatch,
    plain_payload,
)
from penstock.wire.checksum import crc32c
from penstock.wire.varint import Buffer, InvalidVarint, read_varint, write_varint

DELETE_HORIZON_MASK = 0x40


class RawRecord(NamedTuple):
    """A record as far as compaction looks into it."""

    offset: int
    timestamp: int  # As the record has it; the batch's maximum counts instead with log-append time.
    key: bytes | None
    is_tombstone: bool
    start: int  # Of the whole record in the payload.
    after_timestamp: int
    end: int


class Pass(NamedTuple):
    """What one pass over a log keeps."""

    latest: OffsetMap
    end: int  # First offset that the map says nothing about: everything from here on is kept.
    now_ms: int
    delete_retention_ms: int
    decompressed_bytes_max: int


def raw_records(header: BatchHeader, payload: Buffer) -> Iterator[RawRecord]:
    """The records in an uncompressed payload; CorruptBatch unless they fill it."""
    position = 0
    view = memoryview(payload)
    try:
        for _ in range(header.records_count):
            start = position
            length, position = read_varint(view, position)
            end = position + length
            delta, after_timestamp = read_varint(view, position + 1)
            offset_delta, position = read_varint(view, after_timestamp)
            key_bytes, position = read_varint(view, position)
            key = None
            if key_bytes >= 0:
                key = bytes(view[position : position + key_bytes])
                position += key_bytes
            value_bytes, position = read_varint(view, position)
            if not position <= end <= len(view):
                raise CorruptBatch(f"record at byte {start} goes beyond its end")
            timestamp = header.base_timestamp + delta
            yield RawRecord(
                header.base_offset + offset_delta, timestamp, key, value_bytes < 0, start, after_timestamp, end
            )
            position = end
    except (InvalidVarint, IndexError) as error:
        raise CorruptBatch(f"record at byte {position} cannot be read: {error}") from error
    if position != len(view):
        raise CorruptBatch(f"{len(view) - position} bytes left after {header.records_count} records")


def keys_of(header: BatchHeader, batch: memoryview, decompressed_bytes_max: int) -> list[tuple[bytes, int]]:
    """(key, offset) of every record that has a key."""
    payload = plain_payload(header, batch[HEADER_BYTES:], decompressed_bytes_max)
    return [(record.key, record.offset) for record in raw_records(header, payload) if record.key is not None]


def filtered(
    header: BatchHeader, batch: memoryview, rules: Pass, *, keep_empty: bool, is_hollow: bool = False
) -> Buffer | None:
    """The batch as it goes into the compacted segment; None when nothing of it does.

    `keep_empty` keeps the header of a batch that loses all its records: its sequence numbers or its epoch are still
    needed. `is_hollow`: the transaction that it belongs to was aborted; or it is a marker, of one with nothing left.
    """
    if header.base_offset >= rules.end:
        return batch
    if header.records_count == 0:
        return batch if keep_empty else None
    if header.is_control and not is_hollow:
        return batch
    if is_hollow and not header.is_control:
        return _empty(header) if keep_empty else None
    payload = plain_payload(header, batch[HEADER_BYTES:], rules.decompressed_bytes_max)
    has_horizon = bool(header.attributes & DELETE_HORIZON_MASK)
    keep_tombstones = not has_horizon or rules.now_ms < header.base_timestamp
    if header.is_control:
        if not has_horizon:
            horizon_ms = rules.now_ms + rules.delete_retention_ms
            return _rebuilt(header, memoryview(payload), list(raw_records(header, payload)), horizon_ms)
        return batch if keep_tombstones else _empty(header) if keep_empty else None
    kept = [record for record in raw_records(header, payload) if _is_kept(record, rules, keep_tombstones)]
    if not kept:
        return _empty(header) if keep_empty else None
    needs_horizon = not has_horizon and any(record.is_tombstone for record in kept)
    if len(kept) == header.records_count and not needs_horizon:
        return batch
    return _rebuilt(
        header, memoryview(payload), kept, rules.now_ms + rules.delete_retention_ms if needs_horizon else None
    )


def _is_kept(record: RawRecord, rules: Pass, keep_tombstones: bool) -> bool:
    if record.offset >= rules.end:
        return True
    if record.key is None:  # Cannot be compacted, and cannot have come in: the topic's policy was changed.
        return False
    return (keep_tombstones or not record.is_tombstone) and rules.latest.is_latest(record.key, record.offset)


def _rebuilt(header: BatchHeader, payload: memoryview, kept: list[RawRecord], horizon_ms: int | None) -> bytearray:
    body = bytearray()
    for record in kept:
        if horizon_ms is None:
            body += payload[record.start : record.end]
        else:
            body += _with_base_timestamp(payload, record, horizon_ms)
    max_timestamp = header.max_timestamp
    if not header.is_log_append_time:
        max_timestamp = max(record.timestamp for record in kept)
    return _batch(
        header._replace(
            attributes=header.attributes if horizon_ms is None else header.attributes | DELETE_HORIZON_MASK,
            base_timestamp=header.base_timestamp if horizon_ms is None else horizon_ms,
            max_timestamp=max_timestamp,
            records_count=len(kept),
        ),
        compression.compress(header.codec, body),
    )


def _with_base_timestamp(payload: memoryview, record: RawRecord, base_timestamp: int) -> bytearray:
    body = bytearray(1)  # attributes: none are defined
    write_varint(body, record.timestamp - base_timestamp)
    body += payload[record.after_timestamp : record.end]
    framed = bytearray()
    write_varint(framed, len(body))
    return framed + body


def _empty(header: BatchHeader) -> bytearray:
    attributes = header.attributes & ~(CODEC_MASK | DELETE_HORIZON_MASK)
    return _batch(header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, records_count=0), b"")


def _batch(header: BatchHeader, payload: Buffer) -> bytearray:
    batch = bytearray(HEADER_BYTES + len(payload))
    batch[HEADER_BYTES:] = payload
    HEADER.pack_into(batch, 0, *header._replace(batch_length=len(batch) - PREFIX_BYTES))
    struct.pack_into(">I", batch, CRC_POSITION, crc32c(memoryview(batch)[CRC_START:]))
    return batch
