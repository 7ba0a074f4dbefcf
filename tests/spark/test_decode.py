"""Bulk decoding gives what decoding record by record gives, and refuses what it refuses."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.spark import decode
from penstock.spark.decode import Span, headers_of, to_arrow
from penstock.wire.batch import (
    HEADER_BYTES,
    TIMESTAMP_TYPE_MASK,
    CorruptBatch,
    Header,
    Record,
    build_batch,
    read_header,
    records_of,
)

content = st.none() | st.binary(max_size=20) | st.binary(min_size=60, max_size=70) | st.just(bytes(9000))
headers = st.lists(st.builds(Header, st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=2)
times = st.one_of(st.integers(0, 100), st.integers(-(2**40), 2**40))
records = st.tuples(st.integers(1, 3), times, content, content, headers)
batches = st.lists(st.lists(records, min_size=1, max_size=12), min_size=1, max_size=6)


def built(drawn, *, is_append_time=False, repeat=1) -> tuple[bytearray, list[Span], list[bytearray]]:
    """`drawn` as batches one after the other, the way they lie in a Fetch's reply."""
    data, spans, raws, offset = bytearray(b"before"), [], [], 7
    for batch in drawn:
        made = []
        for step, time, key, value, record_headers in batch * repeat:
            made.append(Record(offset, 1_700_000_000_000 + time, key, value, record_headers))
            offset += step
        raw = build_batch(
            made, base_offset=made[0].offset, attributes=TIMESTAMP_TYPE_MASK if is_append_time else 0, max_timestamp=99
        )
        header, start = read_header(raw), len(data) + HEADER_BYTES
        spans.append(
            Span(
                start,
                len(data) + len(raw),
                header.records_count,
                header.base_offset,
                header.last_offset_delta,
                header.base_timestamp,
                99 if is_append_time else None,
            )
        )
        raws.append(raw)
        data += raw
    return data + bytes(decode.WORD_BYTES), spans, raws


def decoded(data, spans):
    (columns,) = decode.decode(data, spans, 1 << 30)
    return columns


def rows(data, spans):
    columns = decoded(data, spans)
    table = to_arrow(data, columns, topic="t", partition=3, has_headers=True)
    table.validate(full=True)
    return [
        (
            row["offset"],
            row["timestamp"].value // 1_000_000 if hasattr(row["timestamp"], "value") else row["timestamp"],
            row["key"],
            row["value"],
            [Header(**header) for header in row["headers"] or ()],
        )
        for row in table.set_column(5, "timestamp", table["timestamp"].cast("int64")).to_pylist()
    ]


def expected(raws):
    return [
        (record.offset, record.timestamp * 1000, record.key, record.value, list(record.headers))
        for raw in raws
        for record in records_of(raw, decompressed_bytes_max=1 << 30)
    ]


@settings(max_examples=60)
@given(batches, st.booleans(), st.sampled_from([1, 1, 40]))
@example([[(1, 0, None, b"x" * 100, [])]] * 3, False, 300)
def test_as_record_by_record(drawn, is_append_time, repeat):
    data, spans, raws = built(drawn, is_append_time=is_append_time, repeat=repeat)
    assert rows(data, spans) == expected(raws)


@settings(max_examples=15)
@given(batches, st.sampled_from([1, 5]))
@example([[(1, 0, None, b"x" * 100, [])]] * 3, 100)
@example([[(1, 0, None, b"x" * size, []) for size in range(60, 200)]] * 3, 1)
def test_many_batches_are_walked_side_by_side(drawn, repeat):
    data, spans, raws = built(drawn * decode.ABREAST_MIN, repeat=repeat)
    assert rows(data, spans) == expected(raws)


@given(batches, st.integers(1, 20))
@settings(max_examples=20)
def test_some_at_a_time_are_all_of_them(drawn, count_max):
    data, spans, raws = built(drawn)
    parts = list(decode.decode(data, spans, count_max))
    assert all(len(part.offset) >= count_max for part in parts[:-1])
    offsets = [offset for part in parts for offset in part.offset.tolist()]
    assert offsets == [offset for offset, *_ in expected(raws)]


def test_times_far_apart():
    data, spans, raws = built([[(1, 0, None, b"", []), (1, 2**52, b"k", None, [])]])
    assert rows(data, spans) == expected(raws)


def test_a_time_beyond_what_spark_can_hold_is_refused():
    data, spans, _ = built([[(1, 0, None, b"", []), (1, 2**62, b"k", None, [])]])
    with pytest.raises(CorruptBatch, match="timestamp"):
        rows(data, spans)


@settings(max_examples=60)
@given(batches, st.data(), st.sampled_from([1, 40]))
def test_damage_is_found_or_harmless(drawn, choices, repeat):
    """A byte is changed: either that is noticed, or every record is still of its batch and as long as it says."""
    times = choices.draw(st.sampled_from([1, decode.ABREAST_MIN]))
    data, spans, _ = built(drawn * times, repeat=repeat)
    span = choices.draw(st.sampled_from(spans))
    place = choices.draw(st.integers(span.start, min(span.end, span.start + 400) - 1))
    data[place] ^= choices.draw(st.integers(1, 255))
    try:
        columns = decoded(data, spans)
        to_arrow(data, columns, topic="t", partition=3, has_headers=True).validate(full=True)
    except CorruptBatch:
        return
    for one in spans:
        mine = (columns.key_start >= one.start) & (columns.key_start < one.end)
        assert mine.sum() == one.records_count
        assert (columns.end[mine] <= one.end).all()


@pytest.mark.parametrize("spans_count", [1, decode.ABREAST_MIN])
@pytest.mark.parametrize("change", [-200, -1, 1, 5, 1 << 30])
def test_a_wrong_count_is_refused(change, spans_count):
    data, spans, _ = built([[(1, 0, b"k", b"v" * size, []) for size in range(200)]] * spans_count)
    with pytest.raises(CorruptBatch):
        decoded(data, [span._replace(records_count=span.records_count + change) for span in spans])


def test_headers_that_lie_are_refused():
    with pytest.raises(CorruptBatch):
        headers_of(bytearray(b"\x7e\x00\x00"), 0, 3)
