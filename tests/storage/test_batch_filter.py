import contextlib
from random import Random

import pytest
from aiokafka.record.memory_records import MemoryRecords

from penstock.storage.batch_filter import DELETE_HORIZON_MASK, Pass, filtered, keys_of
from penstock.storage.offset_map import OffsetMap
from penstock.wire.batch import (
    CONTROL_MASK,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    CorruptBatch,
    Header,
    Record,
    build_batch,
    has_valid_crc,
    read_header,
    records_of,
)
from penstock.wire.compression import Codec, TooLarge

from .support import NOW_MS

DAY_MS = 86_400_000
CODECS = list(Codec)


def rules(latest=(), *, end=10_000, now_ms=NOW_MS, decompressed_bytes_max=1 << 20):
    known = OffsetMap()
    known.put(latest)
    return Pass(known, end, now_ms, DAY_MS, decompressed_bytes_max)


def records(*keys_and_values):
    return [
        Record(100 + number, NOW_MS - 5000 + number, key, value, [Header("h", b"%d" % number)])
        for number, (key, value) in enumerate(keys_and_values)
    ]


def clean(data, passing, keep_empty=False):
    result = filtered(read_header(data), memoryview(data), passing, keep_empty=keep_empty)
    if result is not None:
        header = read_header(result)
        assert header.size == len(result)
        assert has_valid_crc(result, 0, header)
    return None if result is None else bytes(result)


def decoded(data):
    return [record[:5] for record in records_of(data, decompressed_bytes_max=1 << 20)]


THREE = records((b"a", b"1"), (b"b", b"2"), (b"c", b"3"))


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_that_loses_nothing_is_copied_as_it_is(codec):
    data = build_batch(THREE, base_offset=100, codec=codec)
    view = memoryview(data)
    assert filtered(read_header(data), view, rules([(b"a", 100)]), keep_empty=False) is view


@pytest.mark.parametrize("codec", CODECS)
def test_old_values_go_and_everything_else_stays(codec):
    data = build_batch(
        THREE,
        base_offset=100,
        codec=codec,
        leader_epoch=7,
        producer_id=42,
        producer_epoch=3,
        base_sequence=11,
        attributes=TRANSACTIONAL_MASK,
    )
    result = clean(data, rules([(b"a", 500), (b"c", 501)]))
    before, after = read_header(data), read_header(result)
    assert decoded(result) == [THREE[1][:5]]
    for field in (
        "base_offset", "partition_leader_epoch", "attributes", "last_offset_delta", "producer_id", "producer_epoch",
        "base_sequence", "base_timestamp",
    ):  # fmt: skip
        assert getattr(after, field) == getattr(before, field), field
    assert (after.records_count, after.max_timestamp) == (1, THREE[1].timestamp)
    assert after.next_offset == 103


def test_a_batch_that_loses_everything_goes():
    data = build_batch(THREE, base_offset=100)
    assert clean(data, rules([(b"a", 500), (b"b", 500), (b"c", 500)])) is None


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_whose_sequence_is_needed_stays_without_records(codec):
    data = build_batch(THREE, base_offset=100, codec=codec, producer_id=42, producer_epoch=3, base_sequence=11)
    result = clean(data, rules([(b"a", 500), (b"b", 500), (b"c", 500)]), keep_empty=True)
    header = read_header(result)
    assert len(result) == 61
    assert (header.base_offset, header.last_offset, header.records_count) == (100, 102, 0)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (42, 3, 11)
    assert (header.codec, header.base_timestamp, header.max_timestamp) == (0, -1, THREE[2].timestamp)
    assert clean(result, rules(), keep_empty=True) == result
    assert clean(result, rules(), keep_empty=False) is None


@pytest.mark.parametrize("codec", CODECS)
def test_a_tombstone_gets_a_delete_horizon_when_it_is_first_seen(codec):
    kept = records((b"a", None), (b"b", b"2"))
    data = build_batch(kept, base_offset=100, codec=codec)
    result = clean(data, rules([(b"a", 100)]))
    header = read_header(result)
    assert header.attributes & DELETE_HORIZON_MASK
    assert header.base_timestamp == NOW_MS + DAY_MS
    assert header.codec == codec
    assert decoded(result) == [record[:5] for record in kept]  # Timestamps too.
    assert clean(result, rules([(b"a", 100)], now_ms=NOW_MS + DAY_MS - 1)) == result
    after = clean(result, rules([(b"a", 100)], now_ms=NOW_MS + DAY_MS))
    assert decoded(after) == [kept[1][:5]]
    assert read_header(after).base_timestamp == NOW_MS + DAY_MS


def test_a_horizon_does_not_move_with_later_passes():
    data = build_batch(records((b"a", None), (b"b", b"2"), (b"c", b"3")), base_offset=100)
    first = clean(data, rules())
    second = clean(first, rules([(b"b", 500)], now_ms=NOW_MS + 1000))
    assert read_header(second).base_timestamp == NOW_MS + DAY_MS
    assert len(decoded(second)) == 2


def test_an_overwritten_tombstone_goes_at_once():
    data = build_batch(records((b"a", None)), base_offset=100)
    assert clean(data, rules([(b"a", 500)])) is None


def test_records_without_a_key_go():
    data = build_batch(records((None, b"1"), (b"b", b"2"), (None, None)), base_offset=100)
    result = clean(data, rules())
    assert [record[2] for record in decoded(result)] == [b"b"]
    assert not read_header(result).attributes & DELETE_HORIZON_MASK


def test_what_the_pass_did_not_read_stays():
    data = build_batch(records((b"a", b"1"), (b"a", b"2"), (b"a", b"3"), (b"a", None)), base_offset=100)
    assert clean(data, rules([(b"a", 101)], end=100)) == bytes(data)
    result = clean(data, rules([(b"a", 101)], end=102))
    assert [record[3] for record in decoded(result)] == [b"2", b"3", None]


def test_control_batches_stay():
    data = build_batch(records((b"a", b"1")), base_offset=100, attributes=CONTROL_MASK | TRANSACTIONAL_MASK)
    assert clean(data, rules([(b"a", 500)])) == bytes(data)


def test_append_time_stays_the_time_of_all_records():
    data = build_batch(THREE, base_offset=100, attributes=TIMESTAMP_TYPE_MASK, max_timestamp=NOW_MS + 77)
    result = clean(data, rules([(b"c", 500)]))
    assert read_header(result).max_timestamp == NOW_MS + 77
    assert {record[1] for record in decoded(result)} == {NOW_MS + 77}


def test_keys_come_with_their_offsets():
    data = build_batch(records((b"a", b"1"), (None, b"2"), (b"", None)), base_offset=100, codec=Codec.ZSTD)
    assert keys_of(read_header(data), memoryview(data), 1 << 20) == [(b"a", 100), (b"", 102)]


def test_a_batch_that_decompresses_to_too_much_is_refused():
    data = build_batch(records((b"a", b"x" * 100_000)), base_offset=100, codec=Codec.ZSTD)
    for work in (
        lambda: keys_of(read_header(data), memoryview(data), 1000),
        lambda: clean(data, rules(decompressed_bytes_max=1000)),
    ):
        with pytest.raises(TooLarge):
            work()


def test_whatever_the_records_are_only_corrupt_batch_comes_out():
    data = build_batch(THREE, base_offset=100)
    random = Random(5)
    for _ in range(3000):
        damaged = bytearray(data)
        for _ in range(random.randint(1, 3)):
            damaged[random.randrange(61, len(damaged))] = random.randrange(256)
        with contextlib.suppress(CorruptBatch):
            keys_of(read_header(damaged), memoryview(damaged), 1 << 20)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_another_reader_of_kafkas_format_reads_the_result(codec):
    data = build_batch(records((b"a", None), (b"b", b"2"), (b"c", b"3")), base_offset=100, codec=codec)
    read = MemoryRecords(clean(data, rules([(b"b", 500)]))).next_batch()
    assert read.validate_crc()
    assert [(record.offset, record.timestamp, record.key, record.value) for record in read] == [
        (100, NOW_MS - 5000, b"a", None),
        (102, NOW_MS - 4998, b"c", b"3"),
    ]
