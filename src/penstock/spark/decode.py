"""Records of many batches at once, as columns: no object, and but for finding where it begins no step, per record.

A batch's records follow each other, each with its length in front, so their beginnings have to be found one after the
other: 250 ns each in Python, a third of it where the batches of a reply are walked side by side, and next to nothing
where neighbours are of equal size. From there on numpy reads a field of
all records at a time (a varint of up to eight bytes is one load of eight bytes and some arithmetic: 12 ns), and Arrow
copies the keys and values out (20 ns). docs/spark.md has what it comes to.

What does not fit is CorruptBatch, never a wrong row: every record must end exactly where the next begins.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.wire.batch import RECORD_BYTES_MIN, CorruptBatch, Header
from penstock.wire.varint import InvalidVarint, read_varint

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]

WORD_BYTES = 8  # `data` must go on for as many bytes behind the last record.
# Where so many records in a row are of equal size, more are looked for; else Python walks on, from so many on.
RUN_COUNT_MIN = 32
WALK_COUNT = 64
# So many batches, or more, are walked side by side: a step in all of them at once takes numpy as long as 16 steps take
# Python. Not those with records so large that their lengths are more than two bytes, of which there are few.
ABREAST_MIN = 16
ABREAST_RECORD_BYTES_MAX = 4096

_CONTINUED = np.uint64(0x8080808080808080)
_SEVENS = [np.uint64(0x7F << 8 * byte) for byte in range(WORD_BYTES)]
_ONE = np.uint64(1)

MS_US = 1000
TIMESTAMP_MS_MAX = (1 << 63) // MS_US - 1  # Spark counts in microseconds.


class Span(NamedTuple):
    """Where in the data the records of one batch are, and what its header says about them."""

    start: int
    end: int
    records_count: int
    base_offset: int
    last_offset_delta: int
    base_timestamp: int
    append_time: int | None  # Instead of the records' own times.


class Columns(NamedTuple):
    """A value for each record, in their order. Lengths of -1 are nulls."""

    offset: Int64s
    timestamp: Int64s  # Milliseconds since 1970.
    timestamp_type: Int64s  # 1: the time of the append.
    key_start: Int64s
    key_bytes: Int64s
    value_start: Int64s
    value_bytes: Int64s
    headers_start: Int64s  # Where the number of headers is.
    end: Int64s

    def kept(self, mask: npt.NDArray[np.bool_]) -> "Columns":
        return Columns(*(column[mask] for column in self))


def decode(data: bytearray | memoryview, spans: Sequence[Span], count_max: int) -> Iterator[Columns]:
    """All records of all spans, about `count_max` at a time: a span is not cut.

    `data` has at least WORD_BYTES more behind the last.
    """
    words: Any = np.ndarray(shape=(len(data) - WORD_BYTES + 1,), dtype="<u8", buffer=data, strides=(1,))
    starts = _starts(data, words, spans)
    first = done = count = 0
    for number, span in enumerate(spans, 1):
        count += span.records_count
        if count >= count_max or number == len(spans):
            yield _columns(words, starts[done : done + count], spans[first:number])
            first, done, count = number, done + count, 0


def _columns(words: Any, starts: Int64s, spans: Sequence[Span]) -> Columns:
    """The fields of the records of all spans, which begin at `starts`."""
    counts = np.array([span.records_count for span in spans], np.int64)
    ends = np.empty_like(starts)
    ends[:-1] = starts[1:]
    ends[np.cumsum(counts) - 1] = [span.end for span in spans]  # A span has at least one record.
    length, position = _varints(words, starts)
    if (position + length != ends).any() or (length < RECORD_BYTES_MIN - 1).any():
        raise CorruptBatch("a record does not end where the next begins")
    timestamp_delta, position = _varints(words, position + 1)  # After the attributes, of which there are none.
    offset_delta, position = _varints(words, position)
    key_bytes, key_start = _varints(words, position)
    value_bytes, value_start = _varints(words, _behind(key_start, key_bytes, ends))
    headers_start = _behind(value_start, value_bytes, ends)

    def of_span(values: list[int]) -> Int64s:
        return np.repeat(np.array(values, np.int64), counts)

    timestamp_type = of_span([span.append_time is not None for span in spans])
    timestamp = of_span([span.base_timestamp for span in spans]) + timestamp_delta
    if timestamp_type.any():
        timestamp = np.where(timestamp_type == 1, of_span([span.append_time or 0 for span in spans]), timestamp)
    if (offset_delta < 0).any() or (offset_delta > of_span([span.last_offset_delta for span in spans])).any():
        raise CorruptBatch("a record's offset is not in its batch")
    return Columns(
        of_span([span.base_offset for span in spans]) + offset_delta,
        timestamp,
        timestamp_type,
        key_start,
        key_bytes,
        value_start,
        value_bytes,
        headers_start,
        ends,
    )


def _starts(data: bytearray | memoryview, words: Any, spans: Sequence[Span]) -> Int64s:
    """Where each record of each span begins, in order."""
    if any(not 1 <= span.records_count <= (span.end - span.start) // RECORD_BYTES_MIN for span in spans):
        raise CorruptBatch("a batch cannot have as many records as it says")
    abreast = [span for span in spans if not _is_better_alone(data, span)]
    found = _starts_abreast(data, abreast) if len(abreast) >= ABREAST_MIN else {}
    parts: list[Int64s] = []
    for span in spans:
        walked, position = found.get(span.start, (np.empty(0, np.int64), span.start))
        left = span.records_count - len(walked)
        if position != span.end if not left else position >= span.end or not _SIZES[_two_bytes(data, position)]:
            # It came to a length that it cannot read, or to no length at all: Python does, or says what is wrong.
            walked, position, left = walked[:0], span.start, span.records_count
        parts.append(walked)
        if left:
            parts.append(_starts_of_one(data, words, position, span.end, left))
    return np.concatenate(parts or [np.empty(0, np.int64)])


def _is_better_alone(data: bytearray | memoryview, span: Span) -> bool:
    """Large records, or many that seem to be of equal size."""
    mean_bytes = (span.end - span.start) / span.records_count
    if mean_bytes > ABREAST_RECORD_BYTES_MAX:
        return True
    first_bytes = int(_SIZES[_two_bytes(data, span.start)])
    return span.records_count > 2 * WALK_COUNT and abs(mean_bytes - first_bytes) < 2


def _two_bytes(data: bytearray | memoryview, position: int) -> int:
    return data[position] | data[position + 1] << 8


def _sizes() -> npt.NDArray[np.int32]:
    """By the first two bytes of a record: its size with its length, or 0 if the length has more than two bytes."""
    low, high = np.arange(1 << 16, dtype=np.int32) & 0xFF, np.arange(1 << 16, dtype=np.int32) >> 8
    is_short = low < 0x80
    number = np.where(is_short, low, high << 7 | low & 0x7F)
    is_length = (number & 1 == 0) & (is_short | (high < 0x80))
    return np.where(is_length, np.where(is_short, 1, 2) + (number >> 1), 0).astype(np.int32)


_SIZES = _sizes()


def _starts_abreast(data: bytearray | memoryview, spans: Sequence[Span]) -> dict[int, tuple[Int64s, int]]:
    """For each span, by its start: where its first records begin, and where the next one does.

    A step in all spans at once, for as long as enough of them have records left. Who comes to what is no length of one
    or two bytes stays there.
    """
    heads: Any = np.ndarray(shape=(len(data) - 1,), dtype="<u2", buffer=data, strides=(1,))
    ordered = sorted(spans, key=lambda span: -span.records_count)  # Who has no more records drops out at the end.
    counts = np.array([span.records_count for span in ordered], np.int64)
    position = np.array([span.start for span in ordered], np.int64)
    found: list[list[Int64s]] = [[] for _ in ordered]
    done = 0
    for until in sorted(set(counts[ABREAST_MIN - 1 :].tolist())):
        width = len(counts) - int(np.searchsorted(counts[::-1], until))
        active = position[:width]
        block = np.empty((until - done, width), np.int64)
        try:
            for row in block:
                row[:] = active
                active += _SIZES[heads[active]]
        except IndexError:  # Out of the data: somebody's lengths lie. Walked alone, they are told apart.
            return {}
        for number, column in enumerate(np.ascontiguousarray(block.T)):
            found[number].append(column)
        done = until
    return {
        span.start: (np.concatenate(parts), int(end)) for span, parts, end in zip(ordered, found, position, strict=True)
    }


def _starts_of_one(data: bytearray | memoryview, words: Any, position: int, end: int, records_count: int) -> Int64s:
    """Where each of the records begins that fill [position, end)."""
    found: list[Int64s] = []
    left, walk_count, reach = records_count, WALK_COUNT, WALK_COUNT
    while left:
        walked, position = _walk(data, position, end, min(left, walk_count))
        found.append(np.array(walked, np.int64))
        left -= len(walked)
        walk_count *= 2  # The less often equal sizes are found, the less often they are looked for.
        while left > RUN_COUNT_MIN:
            # Records whose lengths are equal, byte for byte, are of equal size: each begins where the last one ended.
            length, body = _length(data, position)
            size = body - position + length
            if length < RECORD_BYTES_MIN - 1 or size > end - position:
                raise CorruptBatch(f"a record of {length} bytes, {end - body} are left")
            ahead = min(left, reach, (end - position) // size)
            heads = words[position : position + ahead * size : size] & np.uint64((1 << 8 * (body - position)) - 1)
            is_same = heads == heads[0]
            run = ahead if is_same.all() else int(is_same.argmin())
            found.append(np.arange(run, dtype=np.int64) * size + position)
            position, left, reach = position + run * size, left - run, 2 * reach if run == ahead else WALK_COUNT
            if run < RUN_COUNT_MIN:
                break
            walk_count = 1
    if position != end:
        raise CorruptBatch(f"{end - position} bytes left after {records_count} records")
    return np.concatenate(found)


def _walk(data: bytearray | memoryview, position: int, end: int, count: int) -> tuple[list[int], int]:
    """Where each of the next `count` records begins, and where the last ends."""
    starts: list[int] = []
    add = starts.append
    for _ in range(count):
        add(position)
        low = data[position]
        if low < 0x80:
            position += 1 + (low >> 1)
        else:
            high = data[position + 1]
            if high < 0x80:
                position += 2 + ((high << 7 | low & 0x7F) >> 1)
            else:
                length, body = _length(data, position)
                position = body + length
        if position > end:
            raise CorruptBatch(f"a record goes on to byte {position} of {end}")
    return starts, position


def _length(data: bytearray | memoryview, position: int) -> tuple[int, int]:
    try:
        length, body = read_varint(data, position)
    except InvalidVarint as error:
        raise CorruptBatch(f"a record's length cannot be read: {error}") from error
    if length < 0:
        raise CorruptBatch(f"a record of {length} bytes")
    return length, body


def _varints(words: Any, position: Int64s) -> tuple[Int64s, Int64s]:
    """The zigzag varints at `position`, and the positions after them."""
    try:
        word = words[position]
    except IndexError as error:
        raise CorruptBatch(f"a field outside of its batch: {error}") from error
    last = ~word & _CONTINUED  # The lowest bit that is set is the top of the varint's last byte.
    taken = last ^ (last - _ONE)  # All bits up to there.
    bits = word & taken
    size = np.bitwise_count(taken).astype(np.int64) >> 3
    value = bits & _SEVENS[0]
    for byte in range(1, int(size.max(initial=1))):
        value |= (bits & _SEVENS[byte]) >> np.uint64(byte)
    if not last.all():
        _read_long(words, position, np.flatnonzero(last == 0), value, size)
    return ((value >> _ONE) ^ (~(value & _ONE) + _ONE)).view(np.int64), position + size


def _read_long(words: Any, position: Int64s, which: Int64s, value: UInt64s, size: Int64s) -> None:
    """Varints of nine and ten bytes, one by one: timestamps that differ by two million years."""
    for index in which.tolist():
        start = int(position[index])
        if start + 2 > len(words):
            raise CorruptBatch("a field outside of its batch")
        raw = int(words[start]).to_bytes(8, "little") + int(words[min(start + 8, len(words) - 1)]).to_bytes(8, "little")
        try:
            number, end = read_varint(raw, 0)
        except InvalidVarint as error:
            raise CorruptBatch(f"a field cannot be read: {error}") from error
        value[index] = (number << 1 ^ number >> 63) & 0xFFFFFFFFFFFFFFFF
        size[index] = end


def _behind(start: Int64s, length: Int64s, ends: Int64s) -> Int64s:
    """Where a field ends; -1, a null, takes no bytes. A byte must be left: what follows has at least one."""
    behind = start + np.maximum(length, 0)
    if (length < -1).any() or (behind >= ends).any() or (behind < start).any():
        raise CorruptBatch("a key or value does not fit its record")
    return behind


# To Arrow -------------------------------------------------------------------------------------------------------------

HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
    ]
)
SCHEMA_WITH_HEADERS = SCHEMA.append(pa.field("headers", HEADERS))


def to_arrow(
    data: bytearray | memoryview, columns: Columns, *, topic: str, partition: int, has_headers: bool
) -> pa.RecordBatch:
    """Rows as Spark's Kafka connector gives them."""
    count = len(columns.offset)
    if count and int(np.abs(columns.timestamp).max()) > TIMESTAMP_MS_MAX:
        raise CorruptBatch("a timestamp that Spark cannot hold")
    arrays = [
        _cut_out(data, columns.key_start, columns.key_bytes),
        _cut_out(data, columns.value_start, columns.value_bytes),
        pa.repeat(pa.scalar(topic, pa.string()), count),
        pa.array(np.full(count, partition, np.int32)),
        pa.array(columns.offset),
        pa.array(columns.timestamp * MS_US).view(pa.timestamp("us", tz="UTC")),
        pa.array(columns.timestamp_type.astype(np.int32)),
    ]
    if not has_headers:
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
    places = zip(columns.headers_start.tolist(), columns.end.tolist(), strict=True)
    headers = [headers_of(data, start, end) for start, end in places]
    arrays.append(pa.array([[header._asdict() for header in each] if each else None for each in headers], HEADERS))
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA_WITH_HEADERS)


def _cut_out(data: bytearray | memoryview, start: Int64s, length: Int64s) -> pa.Array:
    """Pieces of `data` as a binary column.

    Arrow knows where a value begins as the end of the one before, so the bytes between two pieces are taken for values
    as well; of those and the pieces, in turn, every second is then copied.
    """
    count = len(start)
    is_null = length < 0
    nulls = int(np.count_nonzero(is_null))
    if nulls == count:
        return pa.nulls(count, pa.binary())
    bounds = np.empty(2 * count + 1, np.int32)
    bounds[0:-1:2] = start
    bounds[1::2] = start + np.maximum(length, 0)
    bounds[-1] = bounds[-2]
    pieces = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    chosen = pa.array(np.arange(0, 2 * count, 2, dtype=np.int32), mask=is_null if nulls else None)
    return pieces.take(chosen)


def headers_of(data: bytearray | memoryview, position: int, end: int) -> list[Header]:
    """The headers that fill [position, end), with their number in front."""
    if position + 1 == end and data[position] == 0:
        return []
    try:
        count, position = read_varint(data, position)
        if not 0 <= 2 * count <= end - position:
            raise CorruptBatch(f"a record claims {count} headers in {end - position} bytes")
        headers = []
        for _ in range(count):
            name, position = _field(data, position, end)
            value, position = _field(data, position, end)
            if name is None:
                raise CorruptBatch("a header without a name")
            headers.append(Header(name.decode(errors="replace"), value))
    except (InvalidVarint, IndexError) as error:
        raise CorruptBatch(f"a header cannot be read: {error}") from error
    if position != end:
        raise CorruptBatch(f"a record ends {end - position} bytes early")
    return headers


def _field(data: bytearray | memoryview, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = read_varint(data, position)
    if length == -1:
        return None, position
    if length < 0 or position + length > end:
        raise CorruptBatch(f"a field of {length} bytes, {end - position} are left")
    return bytes(data[position : position + length]), position + length
