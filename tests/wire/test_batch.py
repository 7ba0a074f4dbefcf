import base64
import struct
import zlib

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.batch import (
    CRC_POSITION,
    HEADER_BYTES,
    BatchHeader,
    CorruptBatch,
    Header,
    Record,
    build_batch,
    decode_records,
    has_valid_crc,
    read_header,
    records_of,
    stamp,
    stamp_append_time,
)
from penstock.wire.compression import Codec, TooLarge
from penstock.wire.varint import write_varint

BYTES_MAX = 1024 * 1024
RECORDS_COUNT_POSITION = 57
BASE_OFFSET = 1000
BASE_TIMESTAMP = 1_700_000_000_000

payloads = st.none() | st.binary(max_size=40)
headers = st.lists(st.builds(Header, st.text(max_size=8), payloads), max_size=3)
record_fields = st.tuples(st.integers(1, 2**20), st.integers(-(2**40), 2**40), payloads, payloads, headers)


def records_with_gaps(fields: list[tuple[int, int, bytes | None, bytes | None, list[Header]]]) -> list[Record]:
    records, offset = [], BASE_OFFSET - 1
    for gap, timestamp, key, value, record_headers in fields:
        offset += gap
        records.append(Record(offset, timestamp, key, value, record_headers))
    return records


def read_all(batch: bytes | bytearray, position: int = 0) -> list[Record]:
    return [record._replace(size=0) for record in records_of(batch, position, decompressed_bytes_max=BYTES_MAX)]


def sample_batch(codec: Codec = Codec.NONE) -> bytearray:
    records = [
        Record(BASE_OFFSET, BASE_TIMESTAMP, None, b"only a value"),
        Record(BASE_OFFSET + 1, BASE_TIMESTAMP + 5, b"key", None, [Header("name", b"content"), Header("", None)]),
        Record(BASE_OFFSET + 4, BASE_TIMESTAMP - 5, b"", b""),
    ]
    return build_batch(records, base_offset=BASE_OFFSET, codec=codec)


def varints(*values: int) -> bytes:
    out = bytearray()
    for value in values:
        write_varint(out, value)
    return bytes(out)


def batch_around(body: bytes, records_count: int = 1) -> bytearray:
    """A batch whose one record has `body` behind its length."""
    batch = build_batch([], base_offset=0, last_offset=0)
    batch += varints(len(body)) + body
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">i", batch, RECORDS_COUNT_POSITION, records_count)
    return batch


# Build and read


@given(st.lists(record_fields, min_size=1, max_size=6), st.sampled_from(Codec), st.binary(max_size=3))
def test_records_come_back_as_they_were(fields: list, codec: Codec, before: bytes) -> None:
    records = records_with_gaps(fields)
    batch = build_batch(records, base_offset=BASE_OFFSET, codec=codec)
    header = read_header(batch)
    assert has_valid_crc(batch, 0, header)
    assert (header.size, header.codec, header.records_count) == (len(batch), codec, len(records))
    assert (header.base_offset, header.last_offset) == (BASE_OFFSET, records[-1].offset)
    assert header.max_timestamp == max(record.timestamp for record in records)
    assert read_all(before + batch + b"behind", len(before)) == records


def test_header_has_the_fields_given() -> None:
    record = Record(7, 50, b"k", b"v")
    batch = build_batch(
        [record],
        base_offset=5,
        codec=Codec.ZSTD,
        leader_epoch=3,
        attributes=0x37,  # Whatever codec it names gives way to `codec`.
        producer_id=77,
        producer_epoch=2,
        base_sequence=9,
        last_offset=12,
        base_timestamp=40,
        max_timestamp=60,
    )
    header = read_header(batch)
    assert header == BatchHeader(5, len(batch) - 12, 3, 2, header.crc, 0x34, 7, 40, 60, 77, 2, 9, 1)
    assert (header.is_transactional, header.is_control, header.is_log_append_time) == (True, True, False)
    assert (header.last_offset, header.next_offset) == (12, 13)
    assert read_all(batch) == [record._replace(headers=[])]


def test_batch_without_records_keeps_its_offsets() -> None:
    batch = build_batch([], base_offset=5, last_offset=9)
    header = read_header(batch)
    assert (header.size, header.next_offset, header.max_timestamp) == (HEADER_BYTES, 10, -1)
    assert read_all(batch) == []


def test_sizes_of_records_add_up_to_the_payload() -> None:
    batch = sample_batch()
    sizes = [record.size for record in records_of(batch, decompressed_bytes_max=BYTES_MAX)]
    assert sum(sizes) == len(batch) - HEADER_BYTES


def test_stamping_offset_and_epoch_leaves_the_checksum_valid() -> None:
    batch = bytearray(b"before") + sample_batch(Codec.LZ4)
    stamp(batch, 6, 5000, 8)
    header = read_header(batch, 6)
    assert (header.base_offset, header.partition_leader_epoch, header.size) == (5000, 8, len(batch) - 6)
    assert has_valid_crc(batch, 6, header)
    assert [record.offset for record in read_all(batch, 6)] == [5000, 5001, 5004]


def test_stamping_append_time_changes_every_timestamp() -> None:
    batch = bytearray(b"before") + sample_batch(Codec.GZIP)
    stamp_append_time(batch, 6, read_header(batch, 6), 123)
    header = read_header(batch, 6)
    assert header.is_log_append_time
    assert header.codec == Codec.GZIP
    assert has_valid_crc(batch, 6, header)
    assert {record.timestamp for record in read_all(batch, 6)} == {123}


@given(position=st.integers(CRC_POSITION, len(sample_batch()) - 1), bit=st.integers(0, 7))
def test_checksum_finds_every_flipped_bit(position: int, bit: int) -> None:
    batch = sample_batch()
    batch[position] ^= 1 << bit
    assert not has_valid_crc(batch, 0, read_header(batch))


# Other clients


@pytest.mark.parametrize("codec", list(Codec))
def test_aiokafka_reads_what_we_build(codec: Codec) -> None:
    records = [
        Record(offset, BASE_TIMESTAMP + offset, b"k%d" % offset, b"v" * 100_000, [Header("h", b"1")])
        for offset in range(10, 20, 3)
    ]
    theirs = DefaultRecordBatch(bytes(build_batch(records, base_offset=10, codec=codec)))
    assert theirs.validate_crc()
    assert [Record(r.offset, r.timestamp, r.key, r.value, r.headers) for r in theirs] == [
        record._replace(headers=[("h", b"1")]) for record in records
    ]


@pytest.mark.parametrize("codec", list(Codec))
def test_we_read_what_aiokafka_builds(codec: Codec) -> None:
    builder = DefaultRecordBatchBuilder(2, int(codec), 0, -1, -1, -1, 10_000_000)
    records = [
        Record(offset, BASE_TIMESTAMP - offset, None, b"%d" % offset * 50_000, [Header("ключ", None)])
        for offset in range(4)
    ]
    for record in records:
        builder.append(
            record.offset, record.timestamp, record.key, record.value, [(h.key, h.value) for h in record.headers]
        )
    batch = bytes(builder.build())
    assert has_valid_crc(batch, 0, read_header(batch))
    assert read_header(batch).codec == codec
    assert read_all(batch) == records


# The payload of librdkafka 2.16.0 for three records of LIBRDKAFKA_VALUE with one header: deflated once more, only to
# keep it short here.
LIBRDKAFKA_VALUE = b"penstock " * 1000
LIBRDKAFKA_PAYLOADS = {
    Codec.GZIP: "eNqT7+ZgAAPmt7cCORsMRBgOvE0U2N2pwKGlsSzCIlmn7UW/7J2/sR2rVZdP+RT6yUzv90a+Yn4GNPAh2cWn8Nrysy1mzOhSax9k"
    "G8/FJpxrbH6Gb5fC0kwGBgAr7CJ6",
    Codec.SNAPPY: "eNpbepnR40UPIwMDA+OFHsaC1LzikvzkbIV/nAyjaJCjKk4GASamDKYyIXNlBqZ/5sqjaJCja8CIYhkNhsGPDpkrAwDL3xSD",
    Codec.LZ4: "eNpjUfKVSHBomsnAwPCf5UUPI5BmvNDDWJCaV1ySn5ytwMnwnzDQD2RiymAqM1eWZzJXJkK9mzwLUepsAsDmAt3EAAD+mXaw",
    Codec.ZSTD: "eNrT2Kr/lyGilJHhx4seRgYGBsYLPYwFqXnFJfnJ2QpMTBlMZWBxJhZmFkM95o6ZC41XnTeMOAQA8ugRqw==",
}


@pytest.mark.parametrize("codec", list(LIBRDKAFKA_PAYLOADS))
def test_we_read_what_librdkafka_builds(codec: Codec) -> None:
    batch = build_batch([], base_offset=0, codec=codec, last_offset=2)[:HEADER_BYTES]
    batch += zlib.decompress(base64.b64decode(LIBRDKAFKA_PAYLOADS[codec]))
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">i", batch, RECORDS_COUNT_POSITION, 3)
    records = read_all(batch)
    assert [record.offset for record in records] == [0, 1, 2]
    assert all((record.value, record.headers) == (LIBRDKAFKA_VALUE, [Header("h", b"v")]) for record in records)


# Broken batches


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("records_count", [-(2**31), -1, 0, 1, 2, 4, 2**31 - 1])
def test_wrong_records_count_is_corrupt(codec: Codec, records_count: int) -> None:
    batch = sample_batch(codec)
    struct.pack_into(">i", batch, RECORDS_COUNT_POSITION, records_count)
    with pytest.raises(CorruptBatch):
        read_all(batch)


def test_negative_records_count_is_corrupt_without_records_too() -> None:
    batch = build_batch([], base_offset=0, last_offset=0)
    struct.pack_into(">i", batch, RECORDS_COUNT_POSITION, -1)
    with pytest.raises(CorruptBatch):
        read_all(batch)


@pytest.mark.parametrize("codec", list(Codec))
def test_batch_cut_anywhere_is_corrupt(codec: Codec) -> None:
    batch = sample_batch(codec)
    for end in range(len(batch)):
        cut = batch[:end]
        with pytest.raises(CorruptBatch):
            read_all(cut)
        if end > HEADER_BYTES:  # Cut, and the length says so: only the records can tell.
            struct.pack_into(">i", cut, 8, end - 12)
            with pytest.raises(CorruptBatch):
                read_all(cut)


@pytest.mark.parametrize("batch_length", [-(2**31), -100, -12, 0, 48, 2**31 - 1])
def test_impossible_batch_length_is_corrupt(batch_length: int) -> None:
    batch = sample_batch()
    struct.pack_into(">i", batch, 8, batch_length)
    struct.pack_into(">i", batch, RECORDS_COUNT_POSITION, 0)
    with pytest.raises(CorruptBatch):
        read_all(batch)


ATTRIBUTES_AND_DELTAS = b"\x00\x00\x00"
NULL_KEY_AND_VALUE = varints(-1, -1)


def test_smallest_record_is_read() -> None:
    batch = batch_around(ATTRIBUTES_AND_DELTAS + NULL_KEY_AND_VALUE + varints(0))
    assert read_all(batch) == [Record(0, -1, None, None, [])]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        ATTRIBUTES_AND_DELTAS,
        ATTRIBUTES_AND_DELTAS + varints(-2, -1, 0),
        ATTRIBUTES_AND_DELTAS + varints(-(2**31), -1, 0),
        ATTRIBUTES_AND_DELTAS + varints(-1, -2, 0),
        ATTRIBUTES_AND_DELTAS + varints(2**31 - 1, -1, 0),
        ATTRIBUTES_AND_DELTAS + varints(-1, 2**63 - 1, 0),
        ATTRIBUTES_AND_DELTAS + NULL_KEY_AND_VALUE + varints(2**31 - 1),
        ATTRIBUTES_AND_DELTAS + NULL_KEY_AND_VALUE + varints(1),
        ATTRIBUTES_AND_DELTAS + NULL_KEY_AND_VALUE + varints(-1),
        ATTRIBUTES_AND_DELTAS + NULL_KEY_AND_VALUE + varints(1, -1, -1),
        ATTRIBUTES_AND_DELTAS + NULL_KEY_AND_VALUE + varints(1, 100, -1),
        ATTRIBUTES_AND_DELTAS + NULL_KEY_AND_VALUE + varints(1, 0, -2),
        ATTRIBUTES_AND_DELTAS + NULL_KEY_AND_VALUE + varints(0, 0),
        b"\x00" + b"\xff" * 9 + b"\x7f" + b"\x00" + NULL_KEY_AND_VALUE + varints(0),
        b"\x00" + b"\xff" * 30,
    ],
    ids=[
        "empty",
        "only attributes and deltas",
        "key length -2",
        "key length least",
        "value length -2",
        "key longer than the record",
        "value longer than the record",
        "2 billion headers",
        "one header, none there",
        "header count -1",
        "header without a name",
        "header name longer than the record",
        "header value length -2",
        "bytes after the last field",
        "timestamp over 64 bits",
        "varint without an end",
    ],
)
def test_record_that_makes_no_sense_is_corrupt(body: bytes) -> None:
    with pytest.raises(CorruptBatch):
        read_all(batch_around(body))


@pytest.mark.parametrize("length", [-1, -(2**62), 0, 5, 2**62])
def test_record_of_impossible_length_is_corrupt(length: int) -> None:
    header = read_header(batch_around(b""))
    with pytest.raises(CorruptBatch):
        list(decode_records(header, varints(length) + ATTRIBUTES_AND_DELTAS + NULL_KEY_AND_VALUE + varints(0)))


def test_field_may_not_reach_into_the_next_record() -> None:
    first = ATTRIBUTES_AND_DELTAS + varints(-1, 8, 0)
    second = varints(6) + ATTRIBUTES_AND_DELTAS + NULL_KEY_AND_VALUE + varints(0)
    batch = batch_around(first, records_count=2)
    batch += second
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    with pytest.raises(CorruptBatch):
        read_all(batch)


@given(st.binary(max_size=200), st.integers(-2, 5))
def test_any_payload_is_read_or_corrupt(payload: bytes, records_count: int) -> None:
    header = read_header(build_batch([], base_offset=0, last_offset=0))._replace(records_count=records_count)
    try:
        records = list(decode_records(header, payload))
    except CorruptBatch:
        return
    assert sum(record.size for record in records) == len(payload)


def test_payload_over_the_limit_is_too_large_not_corrupt() -> None:
    batch = build_batch([Record(0, 0, None, bytes(2 * BYTES_MAX))], base_offset=0, codec=Codec.ZSTD)
    with pytest.raises(TooLarge):
        read_all(batch)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codec_is_corrupt(codec: int) -> None:
    batch = sample_batch(Codec.GZIP)
    struct.pack_into(">h", batch, 21, codec)
    with pytest.raises(CorruptBatch):
        read_all(batch)


def test_header_names_that_are_no_utf8_survive_a_round_trip() -> None:
    name = b"\xff\xfe".decode(errors="surrogateescape")
    batch = build_batch([Record(0, 0, None, None, [Header(name, b"v")])], base_offset=0)
    (record,) = records_of(batch, decompressed_bytes_max=1000)
    assert record.headers[0].key.encode(errors="surrogateescape") == b"\xff\xfe"


def test_a_record_outside_the_batchs_offsets_or_the_range_of_time_is_corrupt() -> None:
    beyond = build_batch([Record(0, 0, None, None), Record(7, 0, None, None)], base_offset=0, last_offset=3)
    late = build_batch([Record(0, 2**62, None, None)], base_offset=0, base_timestamp=0)
    struct.pack_into(">q", late, 27, 2**62)
    for batch in (beyond, late):
        with pytest.raises(CorruptBatch):
            list(records_of(batch, decompressed_bytes_max=1000))
