"""What a produced batch must be to be stored (S7, S8 and S9 of the list of bad inputs)."""

import struct
from collections.abc import Callable
from dataclasses import replace

import pytest

from penstock.base.errors import ErrorCode, Refused
from penstock.base.steps import run_now
from penstock.base.topic_config import TopicConfig
from penstock.partition.batch_check import (
    LONG_BYTES,
    RECORDS_HOPPED_MAX,
    Prepared,
    check_batch,
    count_records,
    is_long,
    prepare,
    wants_records,
)
from penstock.wire.batch import CRC_POSITION, CRC_START, HEADER_BYTES, Record, build_batch, read_header, records_of
from penstock.wire.compression import Codec

NOW_MS = 1_700_000_000_000
LIMIT = 1 << 20
DEFAULTS = TopicConfig()


def batch(count: int = 3, *, codec: Codec = Codec.NONE, timestamp: int = NOW_MS, key: bytes | None = b"k") -> bytearray:
    records = [Record(offset, timestamp, key, b"value %d" % offset) for offset in range(count)]
    return build_batch(records, base_offset=0, codec=codec)


def reseal(data: bytearray) -> bytearray:
    """Give the batch a right checksum again after a change."""
    import crc32c

    struct.pack_into(">I", data, CRC_POSITION, crc32c.crc32c(memoryview(data)[CRC_START:]))
    return data


def changed(layout: str, position: int, value: int, count: int = 3) -> bytearray:
    data = batch(count)
    struct.pack_into(layout, data, position, value)
    return reseal(data)


def refusal(data: bytearray, config: TopicConfig = DEFAULTS, version: int = 9) -> ErrorCode:
    with pytest.raises(Refused) as refused:
        check_batch(memoryview(data), config, produce_version=version, now_ms=NOW_MS, decompressed_bytes_max=LIMIT)
    return refused.value.code


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("count", [1, 2, RECORDS_HOPPED_MAX, RECORDS_HOPPED_MAX + 1, 5000])
def test_sound_batches_pass(codec: Codec, count: int) -> None:
    data = batch(count, codec=codec)
    header = check_batch(
        memoryview(data), TopicConfig(), produce_version=9, now_ms=NOW_MS, decompressed_bytes_max=LIMIT
    )
    assert header.records_count == count


def corrupt_crc() -> bytearray:
    data = batch()
    data[-1] ^= 1
    return data


CASES: dict[str, tuple[Callable[[], bytearray], ErrorCode]] = {
    "nothing": (bytearray, ErrorCode.invalid_record),
    "a wrong checksum": (corrupt_crc, ErrorCode.corrupt_message),
    "a header cut short": (lambda: batch()[: HEADER_BYTES - 1], ErrorCode.corrupt_message),
    "a length too long": (lambda: changed(">i", 8, 10_000), ErrorCode.corrupt_message),
    "a length too short": (lambda: changed(">i", 8, 48), ErrorCode.corrupt_message),
    "a negative length": (lambda: changed(">i", 8, -12), ErrorCode.corrupt_message),
    "magic 0": (lambda: changed(">b", 16, 0), ErrorCode.invalid_record),
    "magic 1": (lambda: changed(">b", 16, 1), ErrorCode.invalid_record),
    "magic 3": (lambda: changed(">b", 16, 3), ErrorCode.invalid_record),
    "two batches": (lambda: batch() + batch(), ErrorCode.invalid_record),
    "a control batch": (lambda: changed(">h", 21, 0x20), ErrorCode.invalid_record),
    "too many records declared": (lambda: changed(">i", 57, 4), ErrorCode.invalid_record),
    "no records": (lambda: changed(">i", 57, 0), ErrorCode.invalid_record),
    "a negative count": (lambda: changed(">i", 57, -3), ErrorCode.invalid_record),
    "a last offset delta too small": (lambda: changed(">i", 23, 1), ErrorCode.invalid_record),
    "a last offset delta too large": (lambda: changed(">i", 23, 9), ErrorCode.invalid_record),
    "an unknown codec": (lambda: changed(">h", 21, 5), ErrorCode.unsupported_compression_type),
    "a codec that the bytes are not of": (lambda: changed(">h", 21, 4), ErrorCode.corrupt_message),
    "a timestamp of year 9999": (lambda: batch(timestamp=253_402_300_799_000), ErrorCode.invalid_timestamp),
    "a negative timestamp": (lambda: batch(timestamp=-5), ErrorCode.invalid_timestamp),
    "a negative producer id": (lambda: changed(">q", 43, -2), ErrorCode.invalid_record),
    "a transaction of nobody": (lambda: changed(">h", 21, 0x10), ErrorCode.invalid_record),
}


@pytest.mark.parametrize("name", CASES)
def test_unsound_batches_are_refused(name: str) -> None:
    make, code = CASES[name]
    assert refusal(make()) is code


def test_fewer_records_than_declared_are_refused_although_the_delta_agrees() -> None:
    data = batch(3)
    struct.pack_into(">i", data, 57, 4)
    struct.pack_into(">i", data, 23, 3)
    assert refusal(reseal(data)) is ErrorCode.invalid_record


def test_a_negative_key_length_in_a_lone_record_is_refused() -> None:
    data = batch(1)
    key_length = bytes(data[HEADER_BYTES:]).index(b"\x02k")
    data[HEADER_BYTES + key_length] = 5  # zigzag of -3
    assert refusal(reseal(data)) is ErrorCode.invalid_record


def test_zstd_needs_produce_v7() -> None:
    assert refusal(batch(codec=Codec.ZSTD), version=6) is ErrorCode.unsupported_compression_type


def test_a_batch_over_max_message_bytes_is_refused() -> None:
    assert refusal(batch(500), TopicConfig(max_message_bytes=1000)) is ErrorCode.message_too_large


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_decompression_bomb_is_refused(codec: Codec) -> None:
    bomb = build_batch([Record(0, NOW_MS, None, bytes(64 << 20))], base_offset=0, codec=codec)
    config = TopicConfig(max_message_bytes=64 << 20)
    assert refusal(bomb, config) is ErrorCode.message_too_large


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_compacted_topic_takes_no_record_without_a_key(codec: Codec) -> None:
    config = TopicConfig(cleanup_policy=("compact",))
    assert refusal(batch(key=None, codec=codec), config) is ErrorCode.invalid_record


def test_append_time_topics_do_not_care_for_the_clients_clock() -> None:
    config = TopicConfig(message_timestamp_type="LogAppendTime")
    data = batch(timestamp=253_402_300_799_000)
    check_batch(memoryview(data), config, produce_version=9, now_ms=NOW_MS, decompressed_bytes_max=LIMIT)


def test_records_older_than_allowed_are_refused() -> None:
    config = replace(TopicConfig(), message_timestamp_before_max_ms=1000)
    assert refusal(batch(timestamp=NOW_MS - 1001), config) is ErrorCode.invalid_timestamp


def test_hopping_counts_records_of_any_size() -> None:
    records = [Record(offset, NOW_MS, None, bytes(size)) for offset, size in enumerate([0, 1, 63, 64, 9000, 70_000])]
    data = build_batch(records, base_offset=0)
    assert count_records(memoryview(data)[HEADER_BYTES:]) == 6


def prepared(data: bytearray, config: TopicConfig) -> Prepared:
    steps = prepare(memoryview(data), config, produce_version=9, now_ms=NOW_MS, decompressed_bytes_max=LIMIT)
    return run_now(steps)


@pytest.mark.parametrize(("codec", "compression"), [(Codec.NONE, "uncompressed"), (Codec.ZSTD, "zstd")])
@pytest.mark.parametrize("count", [1, 20, 1000])
def test_recompression_keeps_every_record(codec: Codec, compression: str, count: int) -> None:
    data = batch(count, codec=Codec.GZIP)
    again = prepared(data, TopicConfig(compression_type=compression)).recompressed
    assert again is not None
    assert read_header(again).codec == codec
    assert [record[:5] for record in records_of(again, decompressed_bytes_max=LIMIT)] == [
        record[:5] for record in records_of(data, decompressed_bytes_max=LIMIT)
    ]


LYING = {
    "fewer records than declared": (3, 4),
    "more records than declared": (4, 3),
    "far more declared than fit": (3, 900_000),
}


@pytest.mark.parametrize(("there", "declared"), LYING.values(), ids=LYING)
@pytest.mark.parametrize("codec", list(Codec))
def test_a_wrong_count_is_found_when_every_record_is_looked_at(codec: Codec, there: int, declared: int) -> None:
    data = batch(there, codec=codec)
    struct.pack_into(">i", data, 57, declared)
    struct.pack_into(">i", data, 23, declared - 1)
    with pytest.raises(Refused) as refused:
        prepared(reseal(data), TopicConfig(verify_records=True))
    assert refused.value.code is ErrorCode.invalid_record


@pytest.mark.parametrize("codec", list(Codec))
def test_a_count_that_cannot_fit_is_found_in_every_topic(codec: Codec) -> None:
    """A batch of a few bytes cannot hold a million records, whatever they are; no need to decompress it."""
    data = batch(3, codec=codec)
    struct.pack_into(">i", data, 57, 900_000)
    struct.pack_into(">i", data, 23, 899_999)
    assert refusal(reseal(data)) is ErrorCode.invalid_record


@pytest.mark.parametrize("codec", list(Codec))
def test_sound_batches_pass_when_every_record_is_looked_at(codec: Codec) -> None:
    for config in (TopicConfig(verify_records=True), TopicConfig(cleanup_policy=("compact",))):
        assert prepared(batch(3000, codec=codec), config) == Prepared(None)


def test_what_looks_at_every_record_takes_long_for_large_and_compressed_batches() -> None:
    assert not is_long(memoryview(batch(1)))
    assert not is_long(memoryview(batch(255)))
    assert is_long(memoryview(batch(256)))
    assert is_long(memoryview(batch(65_536)))
    assert is_long(memoryview(batch(1, codec=Codec.ZSTD)))
    assert is_long(memoryview(bytearray(LONG_BYTES + 1)))
    assert not is_long(memoryview(bytearray(10)))


@pytest.mark.parametrize(
    ("config", "wants"),
    [
        (TopicConfig(), False),
        (TopicConfig(verify_records=True), True),
        (TopicConfig(cleanup_policy=("delete", "compact")), True),
        (TopicConfig(compression_type="zstd"), True),
        (TopicConfig(compression_type="gzip"), False),
    ],
)
def test_few_topics_have_every_record_looked_at(config: TopicConfig, wants: bool) -> None:
    assert wants_records(memoryview(batch(codec=Codec.GZIP)), config) is wants
