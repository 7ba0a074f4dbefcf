"""Variable-length integers: zigzag (records) and unsigned (compact lengths, tags)."""

Buffer = bytes | bytearray | memoryview

VARLONG_BYTES_MAX = 10
UVARINT_BYTES_MAX = 5


class InvalidVarint(ValueError):
    """More bytes than the type can have, or none left."""


def read_uvarint(data: Buffer, position: int) -> tuple[int, int]:
    """An unsigned 32-bit varint and the position after it."""
    if position < len(data) and (byte := data[position]) < 0x80:  # Most are short.
        return byte, position + 1
    value, position = _read(data, position, UVARINT_BYTES_MAX)
    if value > 0xFFFFFFFF:
        raise InvalidVarint(f"{value} does not fit 32 bits")
    return value, position


def read_varint(data: Buffer, position: int) -> tuple[int, int]:
    """A zigzag varint of up to 64 bits and the position after it."""
    if position < len(data) and (byte := data[position]) < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    value, position = _read(data, position, VARLONG_BYTES_MAX)
    if value > 0xFFFFFFFFFFFFFFFF:
        raise InvalidVarint(f"{value} does not fit 64 bits")
    return (value >> 1) ^ -(value & 1), position


def _read(data: Buffer, position: int, bytes_max: int) -> tuple[int, int]:
    value = shift = 0
    end = min(position + bytes_max, len(data))
    while position < end:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise InvalidVarint("varint is cut short or too long")


def write_uvarint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def write_varint(out: bytearray, value: int) -> None:
    write_uvarint(out, value << 1 if value >= 0 else (-value << 1) - 1)
