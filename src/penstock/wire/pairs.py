"""Keys and values of many batches at once: for who reads a whole compacted log, and wants nothing else of it.

Four times as fast as `records_of`: no object per record, and of what lies between the keys and values only the lengths
are read. What does not fit its batch is CorruptBatch here as there; checksums are the log's business.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from penstock.wire.batch import (
    BATCH_LENGTH_MIN,
    CONTROL_MASK,
    HEADER_BYTES,
    PREFIX_BYTES,
    TRANSACTIONAL_MASK,
    BatchHeader,
    CorruptBatch,
    plain_payload,
    read_header,
)
from penstock.wire.compression import Codec, TooLarge
from penstock.wire.varint import InvalidVarint, read_varint

Pair = tuple[bytes | None, bytes | None]

# base_offset, batch_length, attributes, last_offset_delta, records_count
_HEAD = struct.Struct(">qi9xhi30xi")
_CODEC_MASK = 0x07
_NOT_PLAIN = TRANSACTIONAL_MASK | CONTROL_MASK


class BatchPairs(NamedTuple):
    base_offset: int
    next_offset: int
    pairs: list[Pair]
    error: CorruptBatch | None  # Then `pairs` is empty.
    header: BatchHeader | None = None  # Of a batch that is part of a transaction, or ends one.


def batches_of_pairs(data: bytes, *, decompressed_bytes_max: int) -> Iterator[BatchPairs]:
    """What is in each of the whole batches that `data` consists of. CorruptBatch when they do not fill it."""
    position = 0
    while position < len(data):
        try:
            base_offset, length, attributes, last_delta, count = _HEAD.unpack_from(data, position)
        except struct.error as error:
            raise CorruptBatch("batch header cut short") from error
        end = position + PREFIX_BYTES + length
        if length < BATCH_LENGTH_MIN or end > len(data):
            raise CorruptBatch(f"batch of {length} bytes at byte {position}, {len(data) - position} are left")
        pairs, failure = [], None
        try:
            if attributes & _CODEC_MASK == Codec.NONE:
                pairs = _pairs(data, position + HEADER_BYTES, end, count)
            else:
                plain = _plain(data, position, end, decompressed_bytes_max)
                pairs = _pairs(plain, 0, len(plain), count)
        except CorruptBatch as error:
            failure = error
        except (InvalidVarint, IndexError, TooLarge) as error:
            failure = CorruptBatch(f"a record cannot be read: {error}")
        header = read_header(data, position) if attributes & _NOT_PLAIN else None
        yield BatchPairs(base_offset, base_offset + last_delta + 1, pairs, failure, header)
        position = end


def _plain(data: bytes, position: int, end: int, decompressed_bytes_max: int) -> bytes:
    header: BatchHeader = read_header(data, position)
    return bytes(plain_payload(header, memoryview(data)[position + HEADER_BYTES : end], decompressed_bytes_max))


def _pairs(data: bytes, position: int, end: int, count: int) -> list[Pair]:
    """The `count` records from `position` to `end`. A varint below 128 is one byte, and most are."""
    pairs: list[Pair] = []
    add = pairs.append
    for _ in range(count):
        length = data[position]
        if length < 0x80:
            length = (length >> 1) ^ -(length & 1)
            position += 1
        else:
            length, position = read_varint(data, position)
        record_end = position + length
        if record_end > end:
            raise CorruptBatch(f"a record of {length} bytes at byte {position} of {end}")
        position += 1  # Attributes.
        while data[position] >= 0x80:  # Timestamp delta.
            position += 1
        position += 1
        while data[position] >= 0x80:  # Offset delta.
            position += 1
        position += 1
        length = data[position]
        if length < 0x80:
            length = (length >> 1) ^ -(length & 1)
            position += 1
        else:
            length, position = read_varint(data, position)
        if length == -1:
            key = None
        elif length < -1:
            raise CorruptBatch(f"a key of {length} bytes")
        else:
            key = data[position : position + length]
            position += length
        length = data[position]
        if length < 0x80:
            length = (length >> 1) ^ -(length & 1)
            position += 1
        else:
            length, position = read_varint(data, position)
        if length == -1:
            add((key, None))
        elif length < -1:
            raise CorruptBatch(f"a value of {length} bytes")
        else:
            add((key, data[position : position + length]))
            position += length
        if position >= record_end:  # The number of headers comes after the value.
            raise CorruptBatch(f"key and value end at byte {position}, their record at {record_end}")
        position = record_end
    if position != end:
        raise CorruptBatch(f"{end - position} bytes left after {count} records")
    return pairs
