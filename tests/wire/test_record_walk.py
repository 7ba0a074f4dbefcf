"""Looking through records: the same verdict as decoding every one, in slices."""

import struct
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.steps import Steps, run_now
from penstock.wire.batch import HEADER_BYTES, CorruptBatch, Header, Record, build_batch, decode_records, read_header
from penstock.wire.record_walk import SLICE_COUNT, FoundRecord, check_records, find_record, is_plain_record

headers = st.lists(st.builds(Header, st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3)
values = st.none() | st.binary(max_size=300)
records = st.lists(st.tuples(st.integers(0, 10**12), values, values, headers), min_size=1, max_size=12)


def make(fields: list[tuple[int, bytes | None, bytes | None, list[Header]]]) -> bytearray:
    made = [Record(number, time, key, value, tags) for number, (time, key, value, tags) in enumerate(fields)]
    return build_batch(made, base_offset=0)


def parts(batch: bytearray) -> tuple[object, memoryview]:
    return read_header(batch), memoryview(batch)[HEADER_BYTES:]


def is_sound(batch: bytearray, *, needs_key: bool = False) -> bool:
    header, data = parts(batch)
    try:
        run_now(check_records(header, data, needs_key=needs_key))  # type: ignore[arg-type]
    except CorruptBatch:
        return False
    return True


def decodes(batch: bytearray, *, needs_key: bool = False) -> bool:
    header, data = parts(batch)
    try:
        found = list(decode_records(header, data))  # type: ignore[arg-type]
    except CorruptBatch:
        return False
    in_order = [record.offset for record in found] == list(range(len(found)))
    return in_order and not (needs_key and any(record.key is None for record in found))


@given(records, st.booleans())
def test_records_that_clients_write_are_sound(fields, needs_key) -> None:
    batch = make(fields)
    assert is_sound(batch, needs_key=needs_key) == decodes(batch, needs_key=needs_key)
    assert is_sound(batch)


@given(values, values, st.data())
def test_a_plain_record_is_sound(key, value, data) -> None:
    batch = make([(10**12, key, value, [])])
    assert is_plain_record(parts(batch)[1])
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(HEADER_BYTES, len(batch) - 1))
        batch[position] = data.draw(st.integers(0, 255))
    cut = batch[: data.draw(st.integers(max(HEADER_BYTES + 7, len(batch) - 3), len(batch)))]
    assert is_sound(cut) or not is_plain_record(parts(cut)[1])


@pytest.mark.parametrize("size", [0, 1, 57, 58, 63, 64, 120, 8_180, 8_185, 8_190, 16_000, 100_000])
def test_a_plain_record_may_have_any_size_up_to_8_kib(size: int) -> None:
    assert is_plain_record(parts(make([(1, None, bytes(size), [])]))[1]) == (size <= 8_180)


@given(records, st.data())
def test_damage_is_found_as_by_decoding(fields, data) -> None:
    """But for a timestamp out of all range, which only decoding minds."""
    batch = make(fields)
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(HEADER_BYTES, len(batch) - 1))
        batch[position] = data.draw(st.integers(0, 255))
    if decodes(batch):
        assert is_sound(batch)
    elif is_sound(batch):
        header, payload = parts(batch)
        with pytest.raises(CorruptBatch, match="timestamp"):
            list(decode_records(header, payload))  # type: ignore[arg-type]


@given(records, st.integers(1, 200))
def test_what_is_cut_short_or_goes_on_is_not_sound(fields, count) -> None:
    batch = make(fields)
    assert not is_sound(batch[: max(HEADER_BYTES, len(batch) - count)])
    assert not is_sound(batch + bytes(count))


@given(records, st.integers(0, 10**12), st.integers(0, 12), st.integers(0, 12))
def test_the_first_record_of_a_time_is_found(fields, timestamp, start, end) -> None:
    header, data = parts(make(fields))
    expected = next(
        (
            FoundRecord(record.timestamp, record.offset)
            for record in decode_records(header, data)  # type: ignore[arg-type]
            if record.timestamp >= timestamp and start <= record.offset < end
        ),
        None,
    )
    found = run_now(find_record(header, data, timestamp=timestamp, start=start, end=end))  # type: ignore[arg-type]
    assert found == expected


def test_log_append_time_is_that_of_every_record() -> None:
    header, data = parts(make([(5, None, b"v", []), (9, None, b"v", [])]))
    header = header._replace(attributes=8, max_timestamp=100)  # type: ignore[attr-defined]
    assert run_now(find_record(header, data, timestamp=50, start=1, end=9)) == FoundRecord(100, 1)


@dataclass
class Turns:
    count: int = 0

    def of(self, steps: Steps[object]) -> "Turns":
        self.count = sum(1 for _ in steps)
        return self


def test_many_records_are_looked_at_in_slices() -> None:
    batch = make([(1, b"k", None, [])] * (5 * SLICE_COUNT))
    header, data = parts(batch)
    assert Turns().of(check_records(header, data, needs_key=True)).count == 5  # type: ignore[arg-type]
    assert Turns().of(find_record(header, data, timestamp=2, start=0, end=10)).count == 5  # type: ignore[arg-type]


def test_many_headers_are_looked_at_in_slices_or_not_at_all() -> None:
    batch = make([(1, None, None, [Header("", None)] * (5 * SLICE_COUNT))])
    header, data = parts(batch)
    assert Turns().of(check_records(header, data, needs_key=False)).count == 5  # type: ignore[arg-type]
    assert Turns().of(check_records(header, data, needs_key=False, headers_max=100)).count == 0  # type: ignore[arg-type]


def test_a_count_of_headers_that_does_not_fit_is_refused_at_once() -> None:
    batch = make([(1, None, b"v" * 20, [])])
    batch[-1] = struct.pack("b", 60)[0]  # 30 headers.
    assert not is_sound(batch)
