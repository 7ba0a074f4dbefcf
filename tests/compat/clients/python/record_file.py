"""Records in a file that every client program, in every language, reads and writes.

Big-endian, one record after the other, no header and no padding:

    | partition i32 | offset i64 | timestamp_ms i64 | key | value | header count i32 | name, value | name, value | ...

where a key, value or name is an i32 length (-1 for null) and then that many bytes.
"""

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

_PREFIX = struct.Struct(">iqq")
_LENGTH = struct.Struct(">i")
_NULL = _LENGTH.pack(-1)


class Record(NamedTuple):
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def write_records(path: Path, records: Iterable[Record]) -> None:
    parts: list[bytes] = []
    for record in records:
        parts.append(_PREFIX.pack(record.partition, record.offset, record.timestamp_ms))
        _put(parts, record.key)
        _put(parts, record.value)
        parts.append(_LENGTH.pack(len(record.headers)))
        for name, value in record.headers:
            _put(parts, name.encode())
            _put(parts, value)
    path.write_bytes(b"".join(parts))


def read_records(path: Path) -> Iterator[Record]:
    data = path.read_bytes()
    position = 0

    def take() -> bytes | None:
        nonlocal position
        (length,) = _LENGTH.unpack_from(data, position)
        position += 4
        if length < 0:
            return None
        position += length
        return data[position - length : position]

    while position < len(data):
        partition, offset, timestamp_ms = _PREFIX.unpack_from(data, position)
        position += _PREFIX.size
        key, value = take(), take()
        (header_count,) = _LENGTH.unpack_from(data, position)
        position += 4
        headers = tuple(((take() or b"").decode(), take()) for _ in range(header_count))
        yield Record(partition, offset, timestamp_ms, key, value, headers)


def in_log_order(records: Iterable[Record]) -> list[Record]:
    return sorted(records, key=lambda record: (record.partition, record.offset))


def _put(parts: list[bytes], data: bytes | None) -> None:
    if data is None:
        parts.append(_NULL)
    else:
        parts.append(_LENGTH.pack(len(data)))
        parts.append(data)
