"""Rows as record batches: the way back of decode.py, again a column at a time. Pure: Arrow columns in, bytes out.

A record is joined from pieces that Arrow glues together: what comes before the key (lengths and deltas, made by numpy),
the key, the value's length, the value, and the headers.
"""

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.decode import Int64s, UInt64s
from penstock.wire import compression
from penstock.wire.batch import (
    CRC_POSITION,
    CRC_START,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    PREFIX_BYTES,
    TRANSACTIONAL_MASK,
    BatchHeader,
)
from penstock.wire.checksum import crc32c
from penstock.wire.compression import Codec
from penstock.wire.varint import write_varint

BATCH_BYTES = 512 << 10  # Half of what a broker takes by default, so that lengths and headers have room.
RECORD_OVERHEAD_BYTES = 32  # At most: five varints and the attributes.

_SEVEN = np.uint64(0x7F)
_MORE = np.uint8(0x80)
_MURMUR_SEED = 0x9747B28C
_MURMUR = np.uint32(0x5BD1E995)


class Rows(NamedTuple):
    """Records for one partition, in order."""

    keys: pa.Array  # Binary, perhaps null.
    values: pa.Array
    timestamps_ms: Int64s
    headers: pa.Array | None  # Binary: as they are on the wire, with their number in front. None: nobody has any.

    def taken(self, which: Any) -> "Rows":
        chosen = pa.array(which)
        return Rows(
            self.keys.take(chosen),
            self.values.take(chosen),
            self.timestamps_ms[which],
            None if self.headers is None else self.headers.take(chosen),
        )

    def cut(self, start: int, end: int) -> "Rows":
        return Rows(
            self.keys[start:end],
            self.values[start:end],
            self.timestamps_ms[start:end],
            None if self.headers is None else self.headers[start:end],
        )


def pieces(rows: Rows) -> Iterator[Rows]:
    """The rows in parts that make a batch each."""
    size = _lengths(rows.keys).clip(0) + _lengths(rows.values).clip(0) + RECORD_OVERHEAD_BYTES
    if rows.headers is not None:
        size = size + _lengths(rows.headers).clip(0)
    number = np.cumsum(size) // BATCH_BYTES
    bounds = np.flatnonzero(np.diff(number)) + 1
    for start, end in zip([0, *bounds.tolist()], [*bounds.tolist(), len(rows.keys)], strict=True):
        yield rows.cut(start, end)


def encode(
    rows: Rows, *, codec: Codec, producer_id: int, epoch: int, sequence: int, is_transactional: bool
) -> bytearray:
    """One batch. Its base offset is 0: the broker gives the right one."""
    payload: Any = _records(rows)
    if codec is not Codec.NONE:
        payload = compression.compress(codec, payload)
    batch = bytearray(HEADER_BYTES + len(payload))
    batch[HEADER_BYTES:] = payload
    count = len(rows.keys)
    header = BatchHeader(
        base_offset=0,
        batch_length=len(batch) - PREFIX_BYTES,
        partition_leader_epoch=-1,
        magic=MAGIC,
        crc=0,
        attributes=codec | (TRANSACTIONAL_MASK if is_transactional else 0),
        last_offset_delta=count - 1,
        base_timestamp=int(rows.timestamps_ms[0]),
        max_timestamp=int(rows.timestamps_ms.max()),
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        records_count=count,
    )
    HEADER.pack_into(batch, 0, *header)
    struct.pack_into(">I", batch, CRC_POSITION, crc32c(memoryview(batch)[CRC_START:]))
    return batch


def _records(rows: Rows) -> memoryview:
    key_bytes, value_bytes = _lengths(rows.keys), _lengths(rows.values)
    time = _varints(rows.timestamps_ms - rows.timestamps_ms[0])
    number = _varints(np.arange(len(rows.keys), dtype=np.int64))
    key_size, value_size = _varints(key_bytes), _varints(value_bytes)
    length = 1 + time.length + number.length + key_size.length + value_size.length
    length += key_bytes.clip(0) + value_bytes.clip(0)
    length += 1 if rows.headers is None else _lengths(rows.headers)
    attributes = _Pieces(np.zeros((len(length), 1), np.uint8), np.ones(len(length), np.int64))
    heads = _glued([_varints(length), attributes, time, number, key_size])
    tails = pa.scalar(b"\0", pa.binary()) if rows.headers is None else rows.headers
    empty = pa.scalar(b"", pa.binary())
    whole = pc.binary_join_element_wise(
        heads, rows.keys.fill_null(empty), _glued([value_size]), rows.values.fill_null(empty), tails, empty
    )
    bounds = np.frombuffer(whole.buffers()[1], np.int32, len(whole) + 1, whole.offset * 4)
    return memoryview(whole.buffers()[2])[int(bounds[0]) : int(bounds[-1])]


class _Pieces(NamedTuple):
    """A few bytes for each record: row by row, of which the first `length` count."""

    data: npt.NDArray[np.uint8]
    length: Int64s


def _varints(values: Int64s) -> _Pieces:
    rest: UInt64s = ((values << 1) ^ (values >> 63)).view(np.uint64)
    width = max((int(rest.max(initial=0)).bit_length() + 6) // 7, 1)
    data = np.empty((len(values), width), np.uint8)
    length = np.ones(len(values), np.int64)
    for byte in range(width):
        data[:, byte] = rest & _SEVEN
        rest = rest >> np.uint64(7)
        is_more = rest > 0
        data[:, byte][is_more] |= _MORE
        length += is_more
    return _Pieces(data, length)


def _glued(parts: list[_Pieces]) -> pa.Array:
    """The bytes of all parts of a record one after the other, as a binary column."""
    data = np.hstack([part.data for part in parts])
    counts = np.hstack([np.arange(part.data.shape[1]) < part.length[:, None] for part in parts])
    bounds = np.zeros(len(data) + 1, np.int32)
    np.cumsum(sum(part.length for part in parts), out=bounds[1:])
    return pa.Array.from_buffers(pa.binary(), len(data), [None, pa.py_buffer(bounds), pa.py_buffer(data[counts])])


def _lengths(column: pa.Array) -> Int64s:
    """Bytes of each value; -1 for null."""
    lengths: Int64s = pc.binary_length(column).fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return lengths


def encode_headers(headers: list[dict[str, Any]] | None) -> bytes:
    out = bytearray()
    write_varint(out, len(headers or ()))
    for header in headers or ():
        name, value = header["key"].encode(), header["value"]
        write_varint(out, len(name))
        out += name
        write_varint(out, -1 if value is None else len(value))
        out += value or b""
    return bytes(out)


def partitions_of(keys: pa.Array, count: int) -> Int64s:
    """The partition of each key, as Kafka's clients choose it (murmur2); of a null, whatever."""
    column = keys.fill_null(pa.scalar(b"", pa.binary()))
    bounds = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4).astype(np.int64)
    data = np.append(np.frombuffer(column.buffers()[2] or b"", np.uint8), np.zeros(8, np.uint8))
    words: Any = np.ndarray(shape=(len(data) - 3,), dtype="<u4", buffer=data, strides=(1,))
    start, length = bounds[:-1], np.diff(bounds)
    found = np.uint32(_MURMUR_SEED) ^ length.astype(np.uint32)
    order = np.argsort(-length, kind="stable")  # Who has no more words drops out at the end.
    blocks = (length // 4)[order]
    for block in range(int(blocks[0]) if len(blocks) else 0):
        active = order[: int(np.searchsorted(-blocks, -block, side="left"))]
        word = words[start[active] + 4 * block] * _MURMUR
        word ^= word >> np.uint32(24)
        found[active] = (found[active] * _MURMUR) ^ (word * _MURMUR)
    rest, end = length & 3, start + (length & ~3)
    for byte in (2, 1, 0):
        has = rest > byte
        found[has] ^= data[end[has] + byte].astype(np.uint32) << np.uint32(8 * byte)
    found = np.where(rest > 0, found * _MURMUR, found)
    found ^= found >> np.uint32(13)
    found = found * _MURMUR
    found ^= found >> np.uint32(15)
    return (found & np.uint32(0x7FFFFFFF)).astype(np.int64) % count
