"""Batches with something wrong in them, and a right checksum unless that is what is wrong."""

import struct
import zlib
from typing import Any

import cramjam
import crc32c

from penstock.wire.batch import CRC_POSITION, CRC_START, HEADER, HEADER_BYTES, BatchHeader, read_header
from penstock.wire.compression import Codec

from .client import batch_of

BOMB_BYTES = 100 << 20


def with_header(batch: bytes | bytearray, **fields: Any) -> bytearray:
    """The batch with other header fields, and the checksum that then is right."""
    header = read_header(batch)._replace(**fields)
    changed = bytearray(batch)
    HEADER.pack_into(changed, 0, *header)
    return sealed(changed)


def sealed(batch: bytearray) -> bytearray:
    struct.pack_into(">I", batch, CRC_POSITION, crc32c.crc32c(memoryview(batch)[CRC_START:]))
    return batch


def with_payload(payload: bytes, *, codec: int = 0, records_count: int = 1, **fields: Any) -> bytearray:
    """A batch around any bytes."""
    template = read_header(batch_of(b"x"))
    header: BatchHeader = template._replace(
        batch_length=HEADER_BYTES - 12 + len(payload),
        attributes=codec,
        records_count=records_count,
        last_offset_delta=records_count - 1,
    )._replace(**fields)
    batch = bytearray(HEADER_BYTES) + payload
    HEADER.pack_into(batch, 0, *header)
    return sealed(batch)


def record(body: bytes) -> bytes:
    """A record of fewer than 64 bytes: its length, then the rest."""
    assert len(body) < 64
    return bytes((len(body) << 1,)) + body


def zstd_bomb(size: int) -> bytes:
    return bytes(cramjam.zstd.compress(bytes(size), level=19))


def gzip_bomb(size: int) -> bytes:
    return zlib.compress(bytes(size), 9, wbits=31)


def zstd_with_window(exponent: int) -> bytes:
    """A frame of one empty block that asks for a window of 2**(10 + exponent) bytes."""
    return struct.pack("<I", 0xFD2FB528) + bytes((0b0000_0000, exponent << 3)) + b"\x01\x00\x00"


def lz4_with_content_size(plain: bytes, claimed: int) -> bytes:
    """An lz4 frame whose header claims another size than its content has."""
    from penstock.wire.compression import _xxh32

    compressor = cramjam.lz4.Compressor(level=1, content_checksum=False, block_linked=False)
    compressor.compress(plain)
    frame = bytes(compressor.finish())
    blocks = frame[7:]
    descriptor = bytes((frame[4] | 0b1000, frame[5])) + struct.pack("<Q", claimed)
    return frame[:4] + descriptor + bytes((_xxh32(descriptor) >> 8 & 0xFF,)) + blocks


__all__ = ["BOMB_BYTES", "Codec", "gzip_bomb", "lz4_with_content_size", "record", "sealed", "with_header",
           "with_payload", "zstd_bomb", "zstd_with_window"]  # fmt: skip
