"""Fields whose length comes first, as the two hot requests read them: short where the message is flexible."""

import struct

from penstock.base.errors import BadPeer
from penstock.wire.varint import read_uvarint

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


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
