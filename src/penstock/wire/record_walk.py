"""Looking through the records of a batch without making an object of each, in slices.

A batch of a kilobyte can hold a million records, and a record of a megabyte half a million headers. A slice takes about
a millisecond; between slices others have their turn (base/steps.py).
"""

from typing import NamedTuple

from penstock.base.steps import Steps
from penstock.wire.batch import RECORD_BYTES_MIN, BatchHeader, Buffer, CorruptBatch, plain_payload
from penstock.wire.compression import Codec
from penstock.wire.varint import InvalidVarint, read_varint

SLICE_COUNT = 1_000  # Records or headers, of about a microsecond each.


class FoundRecord(NamedTuple):
    timestamp: int
    offset: int


def plain_records(header: BatchHeader, payload: memoryview, decompressed_bytes_max: int) -> Steps[Buffer]:
    """The records' bytes without compression; CorruptBatch or `compression.TooLarge` when they cannot be had."""
    if header.codec == Codec.NONE:
        return payload
    data: Buffer = yield lambda: plain_payload(header, payload, decompressed_bytes_max)
    return data


def find_record(
    header: BatchHeader, data: Buffer, *, timestamp: int, start: int, end: int
) -> Steps[FoundRecord | None]:
    """The first record of `timestamp` or later with an offset in [start, end). Looks at no key, value or header."""
    position, size = 0, len(data)
    append_time = header.max_timestamp if header.is_log_append_time else None
    try:
        for number in range(header.records_count):
            if number % SLICE_COUNT == SLICE_COUNT - 1:
                yield None
            length, position = read_varint(data, position)
            next_position = position + length
            if length < RECORD_BYTES_MIN - 1 or next_position > size:
                raise CorruptBatch(f"record {number} has length {length}, {size - position} bytes are left")
            delta, position = read_varint(data, position + 1)
            record_time = header.base_timestamp + delta if append_time is None else append_time
            if record_time >= timestamp:
                offset_delta, _ = read_varint(data, position)
                offset = header.base_offset + offset_delta
                if start <= offset < end:
                    return FoundRecord(record_time, offset)
            position = next_position
    except (InvalidVarint, IndexError) as error:
        raise CorruptBatch(f"record at byte {position} cannot be read: {error}") from error
    return None


def is_plain_record(data: memoryview) -> bool:
    """Whether `data` is a batch's only record, sound, of less than 8 KiB and without headers.

    False says nothing: then `check_records` has to look. Most small requests carry just such a record.
    """
    size = len(data)
    length, position = data[0], 1
    if length > 0x7F:
        if data[1] > 0x7F:
            return False
        length, position = length + ((data[1] - 1) << 7), 2
    # Zigzag: all lengths are doubled. Attributes, timestamp delta and offset delta follow, the deltas being zero.
    if size < position + 6 or length != (size - position) << 1 or data[position + 1] or data[position + 2]:
        return False
    position += 3
    for _ in range(2):  # The key and the value; 1 is -1, none.
        if position >= size - 1:
            return False
        length = data[position]
        position += 1
        if length > 0x7F:
            byte = data[position]
            if byte > 0x7F:
                return False
            length += (byte - 1) << 7
            position += 1
        if length & 1:
            if length != 1:
                return False
        else:
            position += length >> 1
    return position == size - 1 and data[position] == 0


def check_records(header: BatchHeader, data: Buffer, *, needs_key: bool, headers_max: int | None = None) -> Steps[None]:
    """CorruptBatch unless exactly the records that the header announces fill `data`, each whole, in order, and sound.

    `headers_max`: a record with more headers than that is taken at its word from there on.
    """
    position, size, work = 0, len(data), 0
    try:
        for number in range(header.records_count):
            work += 1
            if work >= SLICE_COUNT:
                work = 0
                yield None
            length, position = read_varint(data, position)
            end = position + length
            if length < RECORD_BYTES_MIN - 1 or end > size:
                raise CorruptBatch(f"record {number} has length {length}, {size - position} bytes are left")
            _, position = read_varint(data, position + 1)
            offset_delta, position = read_varint(data, position)
            if offset_delta != number:
                raise CorruptBatch(f"record {number} has offset delta {offset_delta}")
            key_bytes, position = read_varint(data, position)
            if key_bytes < 0 and needs_key:
                raise CorruptBatch("a compacted topic takes no record without a key")
            value_bytes, position = read_varint(data, position + max(key_bytes, 0))
            count, position = read_varint(data, position + max(value_bytes, 0))
            if min(key_bytes, value_bytes) < -1 or not 0 <= 2 * count <= end - position:
                raise CorruptBatch(
                    f"record {number} has fields of {key_bytes} and {value_bytes} bytes, {count} headers"
                )
            if count and (headers_max is None or count <= headers_max):
                for _ in range(count):
                    work += 1
                    if work >= SLICE_COUNT:
                        work = 0
                        yield None
                    name_bytes, position = read_varint(data, position)
                    value_bytes, position = read_varint(data, position + max(name_bytes, 0))
                    position += max(value_bytes, 0)
                    if name_bytes < 0 or value_bytes < -1:
                        raise CorruptBatch(f"record {number} has a header of {name_bytes} and {value_bytes} bytes")
            elif count:
                position = end
            if position != end:
                raise CorruptBatch(f"record {number} ends {end - position} bytes early")
    except (InvalidVarint, IndexError) as error:
        raise CorruptBatch(f"record at byte {position} cannot be read: {error}") from error
    if position != size:
        raise CorruptBatch(f"{size - position} bytes left after {header.records_count} records")
