"""The primitive types of the records that coordinators store: writing them, and reading what may be damaged.

A version is flexible or not: lengths are then unsigned varints plus one, or int16 and int32. Every length is checked
against the bytes that are left; CorruptRecord is all that reading raises, besides what `records.decode` turns into it.
"""

import struct
from uuid import UUID

from penstock.wire.fields import TAGS_MAX
from penstock.wire.varint import read_uvarint

STRING_BYTES_MAX = 32_767  # Lengths in keys and in the values of classic groups are int16.

INT8 = struct.Struct(">b")
INT16 = struct.Struct(">h")
INT32 = struct.Struct(">i")
INT64 = struct.Struct(">q")


class CorruptRecord(ValueError):
    """The bytes are of a type that we know and are not what it says."""


def string(text: str) -> bytes:
    raw = text.encode()
    return INT16.pack(len(raw)) + raw


def nullable_string(text: str | None) -> bytes:
    return INT16.pack(-1) if text is None else string(text)


class Reader:
    def __init__(self, data: bytes, position: int = 0, flexible: bool = False) -> None:
        self.data = data
        self.position = position
        self.flexible = flexible

    def _fixed(self, layout: struct.Struct) -> int:
        (number,) = layout.unpack_from(self.data, self.position)
        self.position += layout.size
        return int(number)

    def int8(self) -> int:
        return self._fixed(INT8)

    def int16(self) -> int:
        return self._fixed(INT16)

    def int32(self) -> int:
        return self._fixed(INT32)

    def int64(self) -> int:
        return self._fixed(INT64)

    def uvarint(self) -> int:
        number, self.position = read_uvarint(self.data, self.position)
        return number

    def _take(self, length: int) -> bytes:
        end = self.position + length
        if length < 0 or end > len(self.data):
            raise CorruptRecord(f"{length} bytes at {self.position}, {len(self.data) - self.position} are left")
        raw = self.data[self.position : end]
        self.position = end
        return raw

    def skip(self, length: int) -> None:
        self._take(length)

    def uuid(self) -> UUID:
        return UUID(bytes=self._take(16))

    def nullable_string(self) -> str | None:
        length = self.uvarint() - 1 if self.flexible else self.int16()
        return None if length == -1 else self._take(length).decode()

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise CorruptRecord("null in place of a string")
        return text

    def blob(self) -> bytes:
        return self._take(self.uvarint() - 1 if self.flexible else self.int32())

    def count(self, item_bytes_min: int, *, null_as: int = -1) -> int:
        """How many items an array has, of at least so many bytes each."""
        count = self.uvarint() - 1 if self.flexible else self.int32()
        if count == -1:
            count = null_as
        if not 0 <= count <= (len(self.data) - self.position) // item_bytes_min:
            raise CorruptRecord(f"{count} items claimed, {len(self.data) - self.position} bytes are left")
        return count

    def tags(self) -> dict[int, bytes]:
        """The tagged fields, unread; none in a version that has no tags."""
        if not self.flexible:
            return {}
        count = self.uvarint()
        if count > TAGS_MAX:
            raise CorruptRecord(f"{count} tagged fields, {TAGS_MAX} are allowed")
        return {self.uvarint(): self._take(self.uvarint()) for _ in range(count)}
