"""Rows that were encoded in bulk are the records that they were made of; keys go where Kafka's clients send them."""

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2

from penstock.spark import encode
from penstock.spark.encode import Rows, encode_headers, partitions_of, pieces
from penstock.wire.batch import Header, has_valid_crc, read_header, records_of
from penstock.wire.compression import Codec

content = st.none() | st.binary(max_size=20) | st.binary(min_size=60, max_size=70) | st.just(bytes(9000))
headers = st.lists(st.builds(Header, st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=2)
times = st.one_of(st.integers(0, 2**41), st.just(2**62))
records = st.lists(st.tuples(times, content, content, headers), min_size=1, max_size=20)


def rows_of(drawn) -> Rows:
    encoded = [encode_headers([header._asdict() for header in each]) for *_, each in drawn]
    return Rows(
        pa.array([key for _, key, _, _ in drawn], pa.binary()),
        pa.array([value for _, _, value, _ in drawn], pa.binary()),
        np.array([time for time, *_ in drawn], np.int64),
        pa.array(encoded, pa.binary()) if any(each for *_, each in drawn) else None,
    )


@given(records, st.sampled_from(Codec), st.integers(0, 10))
def test_what_is_encoded_is_there(drawn, codec, skipped):
    rows = rows_of(drawn * 12)
    rows = rows.cut(skipped, len(rows.keys))  # A slice: its buffers begin elsewhere.
    batch = encode.encode(rows, codec=codec, producer_id=7, epoch=3, sequence=11, is_transactional=True)
    header = read_header(batch)
    assert has_valid_crc(batch, 0, header)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 11)
    assert header.is_transactional and header.codec == codec
    assert header.max_timestamp == max(time for time, *_ in (drawn * 12)[skipped:])
    found = [
        (record.timestamp, record.key, record.value, list(record.headers))
        for record in records_of(batch, decompressed_bytes_max=1 << 30)
    ]
    assert found == (drawn * 12)[skipped:]


@settings(max_examples=30)
@given(records)
def test_pieces_are_all_rows_in_order_and_small(drawn):
    rows = rows_of(drawn * 20)
    parts = list(pieces(rows))
    assert pa.concat_arrays([part.values for part in parts]) == rows.values
    for part in parts:
        batch = encode.encode(part, codec=Codec.NONE, producer_id=1, epoch=0, sequence=0, is_transactional=False)
        assert len(batch) <= encode.BATCH_BYTES + 20_000


@given(st.lists(st.none() | st.binary(max_size=40), min_size=1), st.integers(1, 50), st.integers(0, 3))
def test_keys_go_where_kafkas_clients_send_them(keys, count, skipped):
    column = pa.array(keys, pa.binary())[min(skipped, len(keys) - 1) :]
    found = partitions_of(column, count).tolist()
    for key, partition in zip(column.to_pylist(), found, strict=True):
        if key is not None:
            assert partition == (murmur2(key) & 0x7FFFFFFF) % count
