"""Fields as the two hot requests read them by hand, and the generic codec, too: those in tags, and UUIDs."""

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any
from uuid import UUID

from penstock.base.errors import BadPeer
from penstock.wire.varint import read_uvarint

Buffer = bytes | bytearray | memoryview
Reader = Callable[[Buffer, int], tuple[Any, int]]

TAGS_MAX = 64  # Kafka defines fewer than ten for any message; more is an attack on the loop that skips them.
# Array elements and tags in one request: ten times the partitions that a large broker has. An element of two bytes
# becomes an object of 500, and takes 3 µs, so that a frame of the allowed 100 MiB would hold up everybody for minutes.
ELEMENTS_MAX = 100_000
UUIDS_MAX = 1024  # Of topics, remembered: requests name the same few again and again.

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


class Allowance:
    """How many elements the request that is being read may still have."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = ELEMENTS_MAX

    def take(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise BadPeer(f"more than {ELEMENTS_MAX} elements in a request")


def read_string(frame: memoryview, position: int, flexible: bool) -> tuple[str | None, int]:
    if flexible:
        length, position = read_uvarint(frame, position)
        length -= 1
    else:
        (length,) = _INT16.unpack_from(frame, position)
        position += 2
    if length == -1:
        return None, position
    end = position + length
    if length < 0 or end > len(frame):
        raise BadPeer(f"string of {length} bytes, {len(frame) - position} are left")
    return str(frame[position:end], "utf-8"), end


def read_length(frame: memoryview, position: int, flexible: bool) -> tuple[int, int]:
    """A number of bytes or of elements; -1 for null."""
    if flexible:
        length, position = read_uvarint(frame, position)
        return length - 1, position
    (length,) = _INT32.unpack_from(frame, position)
    if length < -1:
        raise BadPeer(f"length of {length}")
    return length, position + 4


def read_count(frame: memoryview, position: int, flexible: bool) -> tuple[int, int]:
    """The number of elements of an array that may not be null, and that the frame has bytes for."""
    count, position = read_length(frame, position, flexible)
    if not 0 <= count <= len(frame) - position:
        raise BadPeer(f"array claims {count} elements, {len(frame) - position} bytes are left")
    return count, position


def read_uuid(data: Buffer, position: int) -> tuple[UUID, int]:
    raw = bytes(data[position : position + 16])
    if len(raw) < 16:
        raise BadPeer("uuid cut short")
    return _uuid(raw), position + 16


@lru_cache(UUIDS_MAX)
def _uuid(raw: bytes) -> UUID:
    return UUID(bytes=raw)


def read_tags(
    data: Buffer,
    position: int,
    known: dict[int, tuple[str, Reader]],
    values: dict[str, Any],
    allowance: Allowance | None = None,
) -> int:
    """Put the known tagged fields into `values`, skip the others, and give the position after them."""
    if data[position] == 0:
        return position + 1
    count, position = read_uvarint(data, position)
    if count > TAGS_MAX:
        raise BadPeer(f"{count} tagged fields, {TAGS_MAX} are allowed")
    if allowance is not None:
        allowance.take(count)
    previous = -1
    for _ in range(count):
        tag, position = read_uvarint(data, position)
        size, position = read_uvarint(data, position)
        end = position + size
        if tag <= previous or end > len(data):
            raise BadPeer(f"tag {tag} after {previous} with {size} bytes, {len(data) - position} are left")
        previous = tag
        if tag in known:
            name, reader = known[tag]
            values[name], stop = reader(data, position)
            if stop != end:
                raise BadPeer(f"tag {tag} has {size} bytes, its field takes {stop - position}")
        position = end
    return position
