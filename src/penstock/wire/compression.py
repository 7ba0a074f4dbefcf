"""Compression of batch payloads, never decompressing past a limit.

Whatever bytes come in, only `BadData` or `TooLarge` come out, and memory stays within about twice the limit (zstd may
reserve a window of 128 MiB, but touches no more of it than it decompresses). What Kafka's own reader accepts is
accepted (several gzip members, snappy streams or zstd frames in a row), except that bytes left over at the end, which
it ignores in places, are refused.

zstd, lz4 and snappy announce their blocks, so a walk over the block headers bounds the size without decompressing:
10 to 60 µs for 1 MB of payload, against 0.5 to 4 ms to decompress it. gzip has no such structure, and takes 10 ms.
"""

import mmap
import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum

import cramjam

from penstock.wire.varint import Buffer

# 16,384 blocks hold 512 MiB in the smallest blocks that clients write (snappy's 32 KB), and take 6 to 18 ms to walk.
# Without a limit a megabyte of empty blocks would hold up the event loop for ten times as long.
BLOCKS_COUNT_MAX = 16_384

GZIP_HEADER = b"\x1f\x8b\x08"  # Magic, and deflate as the only method there is.
GZIP_BYTES_MIN = 18  # 10 of header, 8 of trailer.
DEFLATE_RATIO_MAX = 1032  # The densest code is 2 bits for a match of 258 bytes.
INFLATE_INPUT_BYTES = 16 * 1024  # zlib copies what it has not consumed, so it is fed small pieces.
INFLATE_OUTPUT_BYTES = 1024 * 1024
MAPPED_BYTES_MIN = 1024 * 1024  # Below it memory is cleared in no time.
LZ4_INPUT_BYTES = 256 * 1024  # Three milliseconds to compress.

SNAPPY_RATIO_MAX = 22  # The densest tag is 3 bytes for a copy of 64.
XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_BLOCK_BYTES = 32 * 1024
_XERIAL_HEADER = struct.Struct(">8sii")  # magic, version, oldest version that can read it

LZ4_MAGIC = 0x184D2204
LZ4_RATIO_MAX = 255  # The densest byte is a length extension, worth 255.
LZ4_FLAGS_FIXED_MASK = 0b1110_0011  # Version, independent blocks; reserved bit, dictionary.
LZ4_FLAGS_FIXED = 0b0110_0000  # Version 1, independent blocks, no dictionary: Kafka reads nothing else.
LZ4_BLOCK_CHECKSUM = 0b0001_0000
LZ4_CONTENT_SIZE = 0b0000_1000
LZ4_CONTENT_CHECKSUM = 0b0000_0100
_LZ4_HEADER = struct.Struct("<IBB")  # magic, flags, block descriptor

ZSTD_MAGIC = 0xFD2FB528
ZSTD_SKIPPABLE_MAGIC = 0x184D2A50  # The low four bits are free.
ZSTD_BLOCK_BYTES_MAX = 128 * 1024
ZSTD_WINDOW_BYTES_MAX = 128 * 1024 * 1024  # What zstd accepts by default, in Kafka's clients as here.
ZSTD_LEVEL = 3
_ZSTD_RAW, _ZSTD_RLE, _ZSTD_COMPRESSED = range(3)

_U32 = struct.Struct("<I")
_OUTPUT_FULL = "failed to write whole buffer"  # How cramjam says that the output does not fit.


class Codec(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class BadData(ValueError):
    """Not valid compressed data of that codec."""


class TooLarge(ValueError):
    """Would decompress to more than the limit, or has too many blocks to find out."""


def compress(codec: int, data: Buffer) -> bytes:
    """`data` in the form that every Kafka client can read."""
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            return zlib.compress(data, wbits=31)
        case Codec.SNAPPY:
            return _snappy_compress(memoryview(data))
        case Codec.LZ4:
            compressor = cramjam.lz4.Compressor(level=1, content_checksum=False, block_linked=False)
            # cramjam 2.9 takes nothing but bytes here, and keeps the interpreter's lock meanwhile: a little at a time.
            for start in range(0, len(data), LZ4_INPUT_BYTES):
                compressor.compress(bytes(data[start : start + LZ4_INPUT_BYTES]))
            return bytes(compressor.finish())
        case Codec.ZSTD:
            return bytes(cramjam.zstd.compress(data, level=ZSTD_LEVEL))
    raise ValueError(f"unknown codec {codec}")


def decompress(codec: int, data: Buffer, bytes_max: int) -> Buffer:
    """The plain bytes of `data`; TooLarge when there are more than `bytes_max`, BadData when they cannot be had."""
    view = memoryview(data)
    match codec:
        case Codec.NONE:
            if len(view) > bytes_max:
                raise TooLarge(f"{len(view)} bytes, {bytes_max} are allowed")
            return bytes(view)
        case Codec.GZIP:
            return _gzip_decompress(view, bytes_max)
        case Codec.SNAPPY:
            return _snappy_decompress(view, bytes_max)
        case Codec.LZ4 | Codec.ZSTD:
            return _decompress_blocks(codec, view, _size_max(codec, view, bytes_max), bytes_max)
    raise BadData(f"unknown codec {codec}")


def check_decompressed_size(codec: int, data: Buffer, bytes_max: int) -> int:
    """TooLarge or BadData unless `data` decompresses to `bytes_max` at most; BadData only where that shows cheaply.

    Gives what it is or, where that is not known, the most that it can be. Decompresses only what could go over the
    limit: gzip past `bytes_max / DEFLATE_RATIO_MAX` bytes, which may take milliseconds, and lz4 or zstd whose blocks,
    if all full, would not fit.
    """
    view = memoryview(data)
    match codec:
        case Codec.GZIP:
            if len(view) * DEFLATE_RATIO_MAX > bytes_max:
                return sum(map(len, _inflate(view, bytes_max)))
            if len(view) < GZIP_BYTES_MIN or view[:3] != GZIP_HEADER:
                raise BadData("no gzip header")
            return len(view) * DEFLATE_RATIO_MAX
        case Codec.SNAPPY:
            return sum(size for _, size in _snappy_blocks(view, bytes_max))
        case Codec.LZ4 | Codec.ZSTD:
            size_max = _size_max(codec, view, bytes_max)
            # Kafka ignores a content size in the lz4 header, but librdkafka's consumers stumble over a wrong one.
            is_claim_open = codec == Codec.LZ4 and view[4] & LZ4_CONTENT_SIZE
            if size_max > bytes_max or is_claim_open:
                return len(_decompress_blocks(codec, view, size_max, bytes_max))
            return size_max
    return len(decompress(codec, view, bytes_max))


def is_check_slow(codec: int, data: Buffer, bytes_max: int) -> bool:
    """Whether `check_decompressed_size` has to decompress, which may take a quarter of a second."""
    view = memoryview(data)
    if codec == Codec.GZIP:
        return len(view) * DEFLATE_RATIO_MAX > bytes_max
    if codec not in (Codec.LZ4, Codec.ZSTD):
        return False
    try:
        is_over = _size_max(codec, view, bytes_max) > bytes_max
    except (BadData, TooLarge):
        return False  # The check will say so at once.
    return is_over or (codec == Codec.LZ4 and bool(view[4] & LZ4_CONTENT_SIZE))


def _output(size: int) -> memoryview:
    """Room for plain bytes. What is large comes from the kernel, page by page as it is written to: to clear 100 MiB
    beforehand would take half a second in which no other thread runs."""
    return memoryview(bytearray(size) if size < MAPPED_BYTES_MIN else mmap.mmap(-1, size))


def _gzip_decompress(view: memoryview, bytes_max: int) -> Buffer:
    """How much it is shows only by decompressing: a mapping is as large as it can be, and takes what is written."""
    out = _output(min(bytes_max, len(view) * DEFLATE_RATIO_MAX) + 1)
    size = 0
    for piece in _inflate(view, bytes_max):
        out[size : size + len(piece)] = piece
        size += len(piece)
    return out[:size]


def _inflate(view: memoryview, bytes_max: int) -> Iterator[bytes]:
    """The plain bytes of all gzip members in pieces of a megabyte at most."""
    position = size = 0
    members_count = 1
    inflater = zlib.decompressobj(wbits=31)
    while position < len(view) or not inflater.eof:
        if inflater.eof:
            members_count += 1
            if members_count > BLOCKS_COUNT_MAX:
                raise TooLarge(f"more than {BLOCKS_COUNT_MAX} gzip members")
            inflater = zlib.decompressobj(wbits=31)
        piece = view[position : position + INFLATE_INPUT_BYTES]
        try:
            output = inflater.decompress(piece, INFLATE_OUTPUT_BYTES)
        except zlib.error as error:
            raise BadData(f"gzip: {error}") from error
        # At the end of a member zlib may leave the rest in both places.
        consumed = len(piece) - len(inflater.unused_data if inflater.eof else inflater.unconsumed_tail)
        if not consumed and not output and not inflater.eof:
            raise BadData("gzip data is cut short")
        position += consumed
        size += len(output)
        if size > bytes_max:
            raise TooLarge(f"gzip data holds more than {bytes_max} bytes")
        yield output


def _snappy_compress(view: memoryview) -> bytes:
    """The framing of Java's SnappyOutputStream, which the Java client writes and all others read."""
    out = bytearray(_XERIAL_HEADER.pack(XERIAL_MAGIC, 1, 1))
    for start in range(0, len(view), XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + XERIAL_BLOCK_BYTES]))
        out += len(block).to_bytes(4, "big")
        out += block
    return bytes(out)


def _snappy_decompress(view: memoryview, bytes_max: int) -> memoryview:
    blocks = _snappy_blocks(view, bytes_max)
    window = _output(sum(size for _, size in blocks))
    position = 0
    try:
        for block, size in blocks:
            cramjam.snappy.decompress_raw_into(block, window[position : position + size])
            position += size
    except cramjam.DecompressionError as error:
        raise BadData(str(error)) from error
    return window


def _snappy_blocks(view: memoryview, bytes_max: int) -> list[tuple[memoryview, int]]:
    """Each raw snappy block and the plain size it claims, which snappy's decoder then holds it to."""
    blocks: list[tuple[memoryview, int]] = []
    total = 0
    for block in _xerial_blocks(view) if view[:8] == XERIAL_MAGIC else [view]:
        try:
            size = cramjam.snappy.decompress_raw_len(block)
        except cramjam.DecompressionError as error:
            raise BadData(str(error)) from error
        total += size
        if total > bytes_max:
            raise TooLarge(f"snappy data claims more than {bytes_max} bytes")
        if not block or size > len(block) * SNAPPY_RATIO_MAX:
            raise BadData(f"snappy block of {len(block)} bytes claims to hold {size}")
        blocks.append((block, size))
    return blocks


def _xerial_blocks(view: memoryview) -> Iterator[memoryview]:
    position = count = 0
    while position < len(view):
        count += 1
        if count > BLOCKS_COUNT_MAX:
            raise TooLarge(f"more than {BLOCKS_COUNT_MAX} snappy blocks")
        # A header may come again between blocks, where streams were put end to end. Its versions say nothing: Java
        # does not look at them, and some clients write them little-endian.
        if view[position] == XERIAL_MAGIC[0] and view[position : position + 8] == XERIAL_MAGIC:
            position += _XERIAL_HEADER.size
            continue
        start = position + 4
        position = start + int.from_bytes(view[position:start], "big")
        if not start < position <= len(view):
            raise BadData("snappy block is cut short or empty")
        yield view[start:position]
    if position != len(view):
        raise BadData("snappy header is cut short")


def _size_max(codec: int, view: memoryview, bytes_max: int) -> int:
    """The most that lz4 or zstd data can decompress to; TooLarge when the least it can is over the limit already."""
    least = most = 0
    blocks = _zstd_blocks(view, bytes_max) if codec == Codec.ZSTD else _lz4_blocks(view)
    try:
        for count, (block_least, block_most) in enumerate(blocks, 1):
            least += block_least
            most += block_most
            if least > bytes_max:
                raise TooLarge(f"holds more than {bytes_max} bytes")
            if count > BLOCKS_COUNT_MAX:
                raise TooLarge(f"more than {BLOCKS_COUNT_MAX} blocks")
    except (struct.error, IndexError) as error:
        raise BadData("compressed data is cut short") from error
    return most


def _decompress_blocks(codec: int, view: memoryview, size_max: int, bytes_max: int) -> memoryview:
    out = _output(min(size_max, bytes_max))
    decoder = cramjam.zstd if codec == Codec.ZSTD else cramjam.lz4
    try:
        size = decoder.decompress_into(view, out)
    except cramjam.DecompressionError as error:
        if str(error) == _OUTPUT_FULL:
            raise TooLarge(f"holds more than {bytes_max} bytes") from error
        raise BadData(str(error)) from error
    return out[:size]


def _lz4_blocks(view: memoryview) -> Iterator[tuple[int, int]]:
    """The least and the most bytes in each block of the one lz4 frame that `view` must be.

    magic u32 | flags u8 | block descriptor u8 | content size u64? | checksum u8 | blocks … | 0 u32 | checksum u32?
    block:  is_plain bit 31, size bits 0-30 of u32 | data | checksum u32?
    """
    magic, flags, descriptor = _LZ4_HEADER.unpack_from(view)
    if magic != LZ4_MAGIC or flags & LZ4_FLAGS_FIXED_MASK != LZ4_FLAGS_FIXED or descriptor & 0x8F or descriptor < 0x40:
        raise BadData("not an lz4 frame that Kafka reads")
    block_bytes_max = 1 << (2 * (descriptor >> 4) + 8)  # 4, 5, 6, 7: 64 KiB, 256 KiB, 1 MiB, 4 MiB
    position = _LZ4_HEADER.size + (8 if flags & LZ4_CONTENT_SIZE else 0)
    if view[position] != _xxh32(view[4:position]) >> 8 & 0xFF:
        raise BadData("lz4 header does not match its checksum")
    if flags & LZ4_CONTENT_SIZE and not any(view[6:14]):
        raise BadData("lz4 content size 0")  # The decoder would take it for unknown, and not compare.
    position += 1
    checksum_bytes = 4 if flags & LZ4_BLOCK_CHECKSUM else 0
    while header := _U32.unpack_from(view, position)[0]:
        size = header & 0x7FFFFFFF
        if not 0 < size <= block_bytes_max:
            raise BadData(f"lz4 block of {size} bytes, {block_bytes_max} are allowed")
        yield (size, size) if header >> 31 else (0, min(size * LZ4_RATIO_MAX, block_bytes_max))
        position += 4 + size + checksum_bytes
    position += 8 if flags & LZ4_CONTENT_CHECKSUM else 4
    if position != len(view):
        raise BadData(f"lz4 frame ends at byte {position} of {len(view)}")


def _xxh32(data: Buffer) -> int:
    """xxHash32, seed 0, of fewer than 16 bytes: all that an lz4 header needs, and no reason for one more library."""
    value = 0x165667B1 + len(data)
    words_end = len(data) & ~3
    for position in range(0, words_end, 4):
        value = value + _U32.unpack_from(data, position)[0] * 0xC2B2AE3D & 0xFFFFFFFF
        value = (value << 17 | value >> 15) * 0x27D4EB2F & 0xFFFFFFFF
    for byte in data[words_end:]:
        value = value + byte * 0x165667B1 & 0xFFFFFFFF
        value = (value << 11 | value >> 21) * 0x9E3779B1 & 0xFFFFFFFF
    value = (value ^ value >> 15) * 0x85EBCA77 & 0xFFFFFFFF
    value = (value ^ value >> 13) * 0xC2B2AE3D & 0xFFFFFFFF
    return value ^ value >> 16


def _zstd_blocks(view: memoryview, bytes_max: int) -> Iterator[tuple[int, int]]:
    """The least and the most bytes in each block of all zstd frames, of which `view` must have one at least.

    frame:  magic u32 | header | blocks … | checksum u32?      or, skipped:  magic u32 | size u32 | anything
    block:  is_last bit 0, type bits 1-2, size bits 3-23 of u24 | data
    """
    position = 0
    while position < len(view) or position == 0:
        (magic,) = _U32.unpack_from(view, position)
        if magic & ~0xF == ZSTD_SKIPPABLE_MAGIC:
            yield 0, 0
            position += 8 + _U32.unpack_from(view, position + 4)[0]
            continue
        if magic != ZSTD_MAGIC:
            raise BadData("not a zstd frame")
        has_checksum = view[position + 4] & 0b100
        position, block_bytes_max = _zstd_frame_header(view, position + 4, bytes_max)
        is_last = 0
        while not is_last:
            header = view[position] | view[position + 1] << 8 | view[position + 2] << 16
            is_last, kind, size = header & 1, header >> 1 & 3, header >> 3
            if size > block_bytes_max or kind > _ZSTD_COMPRESSED:
                raise BadData(f"zstd block of type {kind} and {size} bytes, {block_bytes_max} are allowed")
            yield (0, block_bytes_max) if kind == _ZSTD_COMPRESSED else (size, size)
            position += 4 if kind == _ZSTD_RLE else 3 + size
        position += 4 if has_checksum else 0
    if position != len(view):
        raise BadData("zstd data is cut short")


def _zstd_frame_header(view: memoryview, position: int, bytes_max: int) -> tuple[int, int]:
    """The position after the header and the most that one block of the frame may hold."""
    descriptor = view[position]
    position += 1
    if descriptor & 0b1011:  # A reserved bit, and the length of a dictionary's id.
        raise BadData("zstd frame needs a dictionary or a newer reader")
    is_single_segment = descriptor & 0b10_0000
    window = 0
    if not is_single_segment:
        exponent, mantissa = view[position] >> 3, view[position] & 7
        window = (8 + mantissa) << (exponent + 7)
        position += 1
    content_size_bytes = (1 if is_single_segment else 0, 2, 4, 8)[descriptor >> 6]
    content_size = int.from_bytes(view[position : position + content_size_bytes], "little")
    if content_size_bytes == 2:
        content_size += 256
    if content_size > bytes_max:
        raise TooLarge(f"zstd frame claims {content_size} bytes, {bytes_max} are allowed")
    window = content_size if is_single_segment else window
    if window > ZSTD_WINDOW_BYTES_MAX:
        raise BadData(f"zstd frame needs a window of {window} bytes, {ZSTD_WINDOW_BYTES_MAX} are allowed")
    return position + content_size_bytes, min(window, ZSTD_BLOCK_BYTES_MAX)
