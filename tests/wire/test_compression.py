import base64
import gzip
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable

import cramjam
import pytest
from aiokafka import codec as aiokafka_codec
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire import compression
from penstock.wire.compression import (
    BLOCKS_COUNT_MAX,
    BadData,
    Codec,
    TooLarge,
    check_decompressed_size,
    compress,
    decompress,
)
from penstock.wire.varint import Buffer

CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
MIB = 1024 * 1024
TEXT = b" ".join(b"line %d of some text" % number for number in range(10_000))  # 228,889 bytes: several blocks each

each_codec = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
plain_bytes = st.one_of(
    st.binary(max_size=2000),
    st.builds(lambda piece, count: piece * count, st.binary(min_size=1, max_size=50), st.integers(0, 5000)),
)


def verdict(read: Callable[[int, bytes, int], Buffer | int], codec: int, data: bytes, bytes_max: int) -> str:
    try:
        result = read(codec, data, bytes_max)
    except (BadData, TooLarge) as error:
        return type(error).__name__
    assert (result if isinstance(result, int) else len(result)) <= bytes_max
    return "fine"


def judge(codec: int, data: bytes, bytes_max: int) -> None:
    """What passes the check is never too large, and what can be decompressed passes the check."""
    checked = verdict(check_decompressed_size, codec, data, bytes_max)
    decompressed = verdict(decompress, codec, data, bytes_max)
    if (checked, decompressed) == ("fine", "fine"):
        assert len(decompress(codec, data, bytes_max)) <= check_decompressed_size(codec, data, bytes_max)
    assert (checked, decompressed) not in [("fine", "TooLarge"), ("BadData", "fine"), ("TooLarge", "fine")]


def zstd_frame(*blocks: bytes, descriptor: int = 0, rest: bytes = b"\x58") -> bytes:
    """A frame without content size and with a window of 2 MiB, unless told otherwise."""
    return struct.pack("<IB", 0xFD2FB528, descriptor) + rest + b"".join(blocks)


def zstd_block(kind: int, size: int, data: bytes = b"", *, is_last: bool = True) -> bytes:
    return (size << 3 | kind << 1 | is_last).to_bytes(3, "little") + data


def lz4_with_content_size(frame: bytes, size: int) -> bytes:
    descriptor = bytes([frame[4] | 0x08, frame[5]]) + struct.pack("<Q", size)
    return frame[:4] + descriptor + bytes([compression._xxh32(descriptor) >> 8 & 0xFF]) + frame[7:]


# Round trips and the limit


@pytest.mark.parametrize("codec", list(Codec))
@given(plain=plain_bytes)
def test_plain_bytes_come_back_and_one_byte_less_is_too_little(codec: Codec, plain: bytes) -> None:
    data = memoryview(bytearray(compress(codec, memoryview(plain))))
    check_decompressed_size(codec, data, len(plain))
    assert decompress(codec, data, len(plain)) == plain
    if plain:
        with pytest.raises(TooLarge):
            decompress(codec, data, len(plain) - 1)
        if codec != Codec.GZIP:
            with pytest.raises(TooLarge):
                check_decompressed_size(codec, data, len(plain) - 1)


@each_codec
@pytest.mark.parametrize("size", [0, 1, 32_767, 32_768, 32_769, 65_536, 65_537, 131_072, 131_073, 3 * MIB])
def test_block_boundaries_do_not_show(codec: Codec, size: int) -> None:
    plain = (TEXT * 14)[:size]
    data = compress(codec, bytearray(plain))
    check_decompressed_size(codec, data, size)
    assert decompress(codec, data, 4 * MIB) == plain


@each_codec
def test_honest_payloads_are_checked_without_decompressing(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_inflate", "_snappy_decompress", "_decompress_blocks"):
        monkeypatch.delattr(compression, name)
    check_decompressed_size(codec, compress(codec, TEXT), 100 * MIB)


def test_limit_is_found_by_decompressing_where_blocks_are_small() -> None:
    compressor = cramjam.zstd.Compressor()
    data = b""
    for _ in range(100):  # Each flush ends a block, which for all we know holds 128 KiB.
        compressor.compress(b"a few words ")
        data += bytes(compressor.flush())
    data += bytes(compressor.finish())
    check_decompressed_size(Codec.ZSTD, data, 1200)
    with pytest.raises(TooLarge):
        check_decompressed_size(Codec.ZSTD, data, 1199)


@pytest.mark.parametrize("codec", [5, 6, 7, -1])
def test_unknown_codecs_are_refused(codec: int) -> None:
    with pytest.raises(BadData):
        decompress(codec, b"x", 100)
    with pytest.raises(BadData):
        check_decompressed_size(codec, b"x", 100)
    with pytest.raises(ValueError, match="unknown codec"):
        compress(codec, b"x")


# Other clients


# What kafka-clients 4.4.0 (Java) makes of JAVA_PLAIN: deflated once more, only to keep it short here.
JAVA_PLAIN = b"penstock " * 8000
JAVA_DATA = {
    Codec.GZIP: "c-oWi=3oGW|8I|N<YZ9bVb~D<XRQV2)(ijoC&#M<XQiL--R$KuctD-p#vRj^I7l)w002B{H)a",
    Codec.SNAPPY: "c-m_U_Hzsfh-3f)MhIr(ZD?RpC`ipKF3C^MR`|!sFp5UeC>lkhXr!TAoD8rE0bV1FhRP@!MWbjGjnoQ((fWXqLN=^I7!4GXf)4=0"
    "bd*2",
    Codec.LZ4: "c-mu8@|8$%XcA^*V3=Q!npa$spPa40$?$)KgZlyCpwM9e21~XAG+^)qi$wr9;DE{*07a-L@c",
    Codec.ZSTD: "c-qt0s{fZEqKAROqaZb}xFkP0TY-_mMDomOK}H4!0FxXDv;",
}


@each_codec
def test_what_java_writes_is_read(codec: Codec) -> None:
    data = zlib.decompress(base64.b85decode(JAVA_DATA[codec]))
    check_decompressed_size(codec, data, len(JAVA_PLAIN))
    assert decompress(codec, data, len(JAVA_PLAIN)) == JAVA_PLAIN


AIOKAFKA = {
    Codec.GZIP: (aiokafka_codec.gzip_encode, aiokafka_codec.gzip_decode),
    Codec.SNAPPY: (aiokafka_codec.snappy_encode, aiokafka_codec.snappy_decode),
    Codec.LZ4: (aiokafka_codec.lz4_encode, aiokafka_codec.lz4_decode),
    Codec.ZSTD: (aiokafka_codec.zstd_encode, aiokafka_codec.zstd_decode),
}


@each_codec
def test_aiokafka_and_we_read_each_other(codec: Codec) -> None:
    encode, decode = AIOKAFKA[codec]
    check_decompressed_size(codec, encode(TEXT), len(TEXT))
    assert decompress(codec, encode(TEXT), len(TEXT)) == TEXT
    assert decode(compress(codec, TEXT)) == TEXT


def test_snappy_is_written_as_java_writes_it() -> None:
    data = compress(Codec.SNAPPY, TEXT)
    magic, version, compatible, length = struct.unpack_from(">8siii", data)
    assert (magic, version, compatible) == (b"\x82SNAPPY\x00", 1, 1)
    assert cramjam.snappy.decompress_raw_len(data[20 : 20 + length]) == 32 * 1024


def test_lz4_is_written_in_independent_blocks_of_64_kib() -> None:
    magic, flags, descriptor = struct.unpack_from("<IBB", compress(Codec.LZ4, TEXT))
    assert (magic, flags >> 5, descriptor) == (0x184D2204, 0b011, 0x40)


def test_snappy_without_framing_is_read() -> None:  # librdkafka and franz-go write it.
    data = bytes(cramjam.snappy.compress_raw(TEXT))
    check_decompressed_size(Codec.SNAPPY, data, len(TEXT))
    assert decompress(Codec.SNAPPY, data, len(TEXT)) == TEXT


def test_snappy_header_versions_do_not_matter() -> None:
    data = compress(Codec.SNAPPY, TEXT)
    assert decompress(Codec.SNAPPY, data[:8] + struct.pack("<ii", 1, 1) + data[16:], len(TEXT)) == TEXT


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.ZSTD])
def test_streams_end_to_end_are_read_as_one(codec: Codec) -> None:
    data = compress(codec, TEXT) + compress(codec, b"") + compress(codec, b"more")
    check_decompressed_size(codec, data, len(TEXT) + 4)
    assert decompress(codec, data, len(TEXT) + 4) == TEXT + b"more"
    with pytest.raises(TooLarge):
        decompress(codec, data, len(TEXT) + 3)


def test_only_one_lz4_frame_is_read() -> None:  # Kafka stops after the first, which would lose records.
    with pytest.raises(BadData):
        decompress(Codec.LZ4, compress(Codec.LZ4, TEXT) * 2, MIB)


# Broken data


@each_codec
def test_empty_input_is_refused(codec: Codec) -> None:
    assert verdict(decompress, codec, b"", MIB) == verdict(check_decompressed_size, codec, b"", MIB) == "BadData"


@each_codec
@pytest.mark.parametrize("garbage", [b"\x00", b"\x00" * 8, b"garbage!" * 4])
def test_trailing_garbage_is_refused(codec: Codec, garbage: bytes) -> None:
    with pytest.raises(BadData):
        decompress(codec, compress(codec, TEXT) + garbage, MIB)


@each_codec
@pytest.mark.parametrize("plain", [b"", b"short", TEXT[:40_000]], ids=["empty", "short", "long"])
def test_data_cut_anywhere_is_refused(codec: Codec, plain: bytes) -> None:
    data = compress(codec, plain)
    for end in range(0, len(data), 1 + len(data) // 3000):
        # A snappy stream may well end behind a block; the missing records tell.
        expected = "fine" if codec == Codec.SNAPPY and end == 16 else "BadData"
        assert verdict(decompress, codec, data[:end], MIB) == expected, end
        assert verdict(check_decompressed_size, codec, data[:end], MIB) in ("fine", "BadData")


@each_codec
@given(choices=st.data())
def test_flipped_bits_give_a_verdict(codec: Codec, choices: st.DataObject) -> None:
    data = bytearray(compress(codec, TEXT[:5000]))
    # The first bytes are where the structure is, so they get half of the flips.
    positions = st.one_of(st.integers(0, 30), st.integers(0, len(data) - 1)).filter(lambda at: at < len(data))
    for position in choices.draw(st.lists(positions, min_size=1, max_size=4)):
        data[position] ^= 1 << choices.draw(st.integers(0, 7))
    judge(codec, bytes(data), choices.draw(st.sampled_from([4000, 5000, 20_000, MIB])))


@each_codec
@given(tail=st.binary(max_size=300), kept=st.integers(0, 20), bytes_max=st.integers(0, 2 * MIB))
def test_any_bytes_give_a_verdict(codec: Codec, tail: bytes, kept: int, bytes_max: int) -> None:
    judge(codec, compress(codec, b"some words, some words")[:kept] + tail, bytes_max)


def test_gzip_with_a_wrong_checksum_is_refused() -> None:
    data = bytearray(gzip.compress(TEXT))
    data[-5] ^= 1
    with pytest.raises(BadData):
        decompress(Codec.GZIP, data, MIB)


def test_snappy_claims_count_even_when_they_are_lies() -> None:
    four_gib = b"\xff\xff\xff\xff\x0f"
    for data in (four_gib + b"\x00a", compress(Codec.SNAPPY, b"")[:16] + b"\x00\x00\x00\x07" + four_gib + b"\x00a"):
        assert verdict(check_decompressed_size, Codec.SNAPPY, data, MIB) == "TooLarge"
        assert verdict(decompress, Codec.SNAPPY, data, MIB) == "TooLarge"
        assert verdict(decompress, Codec.SNAPPY, data, 2**33) == "BadData"  # 7 bytes cannot hold 4 GiB.


def test_snappy_with_an_empty_block_is_refused() -> None:
    with pytest.raises(BadData):
        check_decompressed_size(Codec.SNAPPY, compress(Codec.SNAPPY, b"x") + bytes(4), MIB)


def test_lz4_content_size_must_be_right() -> None:
    frame = compress(Codec.LZ4, TEXT)
    check_decompressed_size(Codec.LZ4, lz4_with_content_size(frame, len(TEXT)), MIB)
    for size in (0, len(TEXT) - 1, len(TEXT) + 1, 2**64 - 1):
        data = lz4_with_content_size(frame, size)
        assert verdict(check_decompressed_size, Codec.LZ4, data, MIB) == "BadData"
        assert verdict(decompress, Codec.LZ4, data, MIB) == "BadData"


def test_lz4_frames_that_kafka_cannot_read_are_refused() -> None:
    frame = compress(Codec.LZ4, TEXT)
    linked = bytes(cramjam.lz4.compress(TEXT))
    wrong_checksum = frame[:6] + bytes([frame[6] ^ 1]) + frame[7:]
    plain_block_without_bytes = frame[:-4] + b"\x00\x00\x00\x80" + frame[-4:]
    huge_block = frame[:7] + struct.pack("<I", 65_537) + frame[11:]
    for data in (linked, wrong_checksum, plain_block_without_bytes, huge_block):
        assert verdict(check_decompressed_size, Codec.LZ4, data, MIB) == "BadData"
        assert verdict(decompress, Codec.LZ4, data, MIB) == "BadData"
    for flags, descriptor in ((0x61, 0x40), (0x62, 0x40), (0xA0, 0x40), (0x60, 0x30), (0x60, 0xC0), (0x60, 0x41)):
        checksum = compression._xxh32(bytes([flags, descriptor])) >> 8 & 0xFF
        data = frame[:4] + bytes([flags, descriptor, checksum]) + frame[7:]
        assert verdict(check_decompressed_size, Codec.LZ4, data, MIB) == "BadData"


@pytest.mark.parametrize(
    ("data", "expected"),
    [(b"", 0x02CC5D05), (b"a", 0x550D7456), (b"abc", 0x32D153FF), (b"0123456789", 0x950C9C0A)],
)
def test_xxh32_agrees_with_the_reference(data: bytes, expected: int) -> None:
    assert compression._xxh32(data) == expected


def test_zstd_window_may_be_128_mib_and_no_more() -> None:
    for window_byte, expected in ((17 << 3, "fine"), (17 << 3 | 1, "BadData"), (21 << 3, "BadData"), (255, "BadData")):
        data = zstd_frame(zstd_block(0, 5, b"hello"), rest=bytes([window_byte]))
        assert verdict(check_decompressed_size, Codec.ZSTD, data, MIB) == expected
        assert verdict(decompress, Codec.ZSTD, data, MIB) == expected


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (zstd_frame(zstd_block(0, 5, b"hello")), "fine"),
        (zstd_frame(zstd_block(1, 128 * 1024, b"x")), "fine"),
        (zstd_frame(zstd_block(1, 128 * 1024 + 1, b"x")), "BadData"),  # larger than a block may be
        (zstd_frame(zstd_block(1, 1025, b"x"), rest=b"\x00"), "BadData"),  # larger than the window
        (zstd_frame(zstd_block(3, 5, b"hello")), "BadData"),  # no such type
        (zstd_frame(zstd_block(0, 5, b"hello", is_last=False)), "BadData"),  # chain without an end
        (zstd_frame(zstd_block(0, 5, b"hello"), descriptor=0x08), "BadData"),  # reserved bit
        (zstd_frame(zstd_block(0, 5, b"hello"), descriptor=0x01, rest=b"\x58\x07"), "BadData"),  # dictionary
        (zstd_frame(zstd_block(0, 5, b"hello"), descriptor=0x20, rest=b"\x05"), "fine"),
        (zstd_frame(zstd_block(0, 5, b"hello"), descriptor=0xE0, rest=struct.pack("<Q", 2**63)), "TooLarge"),
        (zstd_frame(zstd_block(0, 5, b"hello"), descriptor=0x04), "BadData"),  # checksum is missing
        (b"\x5a\x2a\x4d\x18\x03\x00\x00\x00abc" + zstd_frame(zstd_block(0, 5, b"hello")), "fine"),  # skippable first
        (b"\x5a\x2a\x4d\x18\x04\x00\x00\x00abc", "BadData"),  # skippable frame cut short
        (b"\x5a\x2a\x4d\x18\xff\xff\xff\xffabc", "BadData"),
    ],
)
def test_zstd_structure(data: bytes, expected: str) -> None:
    assert verdict(check_decompressed_size, Codec.ZSTD, data, MIB) == expected
    assert verdict(decompress, Codec.ZSTD, data, MIB) == expected


def test_zstd_content_size_must_be_right() -> None:
    data = zstd_frame(zstd_block(0, 5, b"hello"), descriptor=0x60, rest=b"\x00\x00")  # claims 256
    with pytest.raises(BadData):
        decompress(Codec.ZSTD, data, MIB)


# Bombs


@pytest.mark.parametrize(
    ("codec", "data"),
    [
        (Codec.GZIP, compress(Codec.GZIP, b"") * 50_000),
        (Codec.SNAPPY, compress(Codec.SNAPPY, b"") + b"\x00\x00\x00\x01\x00" * 200_000),
        (Codec.SNAPPY, compress(Codec.SNAPPY, b"") * 60_000),
        (Codec.LZ4, compress(Codec.LZ4, b"")[:7] + b"\x01\x00\x00\x80xHASH" * 100_000),
        (Codec.ZSTD, zstd_frame(*[zstd_block(0, 0, is_last=False)] * 300_000)),
        (Codec.ZSTD, b"\x50\x2a\x4d\x18\x00\x00\x00\x00" * 125_000),
    ],
    ids=["gzip members", "snappy blocks", "snappy headers", "lz4 blocks", "zstd blocks", "zstd skippable frames"],
)
def test_a_megabyte_of_nothing_is_refused_early(codec: Codec, data: bytes) -> None:
    with pytest.raises(TooLarge, match=str(BLOCKS_COUNT_MAX)):
        check_decompressed_size(codec, data, 100 * MIB)
    with pytest.raises(TooLarge, match=str(BLOCKS_COUNT_MAX)):
        decompress(codec, data, 100 * MIB)


def test_a_payload_compressed_twice_is_decompressed_once() -> None:
    inner = compress(Codec.GZIP, bytes(10 * MIB))
    assert decompress(Codec.GZIP, compress(Codec.GZIP, inner), MIB) == inner


BOMBS_SCRIPT = """
import resource
import struct
import sys
from pathlib import Path

from penstock.wire.compression import BadData, TooLarge, check_decompressed_size, decompress

MIB = 1024 * 1024
bombs = [eval(line) for line in sys.stdin]
address_space_pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = address_space_pages * resource.getpagesize() + 32 * MIB
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for codec, data, bytes_max in bombs:
    for read in (decompress, check_decompressed_size):
        try:
            read(codec, data, bytes_max)
            print("fine")
        except (BadData, TooLarge) as error:
            print(type(error).__name__)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS is not enforced elsewhere")
def test_bombs_are_defused_within_a_few_megabytes() -> None:
    plain = bytes(100 * MIB)
    rle = [zstd_block(1, 128 * 1024, b"x", is_last=False)] * 800
    lying = zstd_frame(*rle, zstd_block(0, 0), descriptor=0x80, rest=b"\x58" + struct.pack("<I", 1000))
    period = cramjam.zstd.Compressor()  # streams: compressed blocks, no content size
    period.compress(b"abcdefghij" * (10 * MIB))
    bombs = [
        *[(int(codec), compress(codec, plain), MIB) for codec in CODECS],
        (int(Codec.ZSTD), zstd_frame(*rle, zstd_block(0, 0)), MIB),
        (int(Codec.ZSTD), lying, MIB),
        (int(Codec.ZSTD), bytes(period.finish()), MIB),
        (int(Codec.SNAPPY), bytes(cramjam.snappy.compress_raw(plain)), MIB),
        (int(Codec.LZ4), lz4_with_content_size(compress(Codec.LZ4, plain), 1000), MIB),
    ]
    refused = [
        # Within the limit by what they say, so the memory is only bounded by the data being impossible.
        (int(Codec.SNAPPY), b"\xff\xff\xff\xff\x0f\x00a", 2**40),
        (int(Codec.ZSTD), zstd_frame(zstd_block(0, 5, b"hello"), rest=bytes([21 << 3])), 2**40),  # 2 GiB window
        (int(Codec.LZ4), lz4_with_content_size(compress(Codec.LZ4, b"hello"), 2**62), 2**40),
    ]
    script = subprocess.run(
        [sys.executable, "-c", BOMBS_SCRIPT],
        input="".join(f"{bomb!r}\n" for bomb in bombs + refused),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert script.returncode == 0, script.stderr
    assert script.stdout.split() == ["TooLarge"] * 2 * len(bombs) + ["BadData"] * 2 * len(refused)
