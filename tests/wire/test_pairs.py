"""Keys and values as `records_of` finds them; on damaged bytes CorruptBatch and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.batch import CorruptBatch, Header, Record, build_batch, read_header, records_of
from penstock.wire.compression import Codec
from penstock.wire.pairs import BatchPairs, batches_of_pairs

BYTES_MAX = 1 << 20

payloads = st.none() | st.binary(max_size=300)
records = st.builds(
    Record,
    offset=st.just(0),
    timestamp=st.integers(0, 2**40),
    key=payloads,
    value=payloads,
    headers=st.lists(st.builds(Header, st.text(max_size=8), payloads), max_size=2),
)
batches = st.lists(
    st.tuples(st.lists(records, min_size=1, max_size=80), st.sampled_from(Codec)), min_size=1, max_size=4
)


def built(groups: list[tuple[list[Record], Codec]]) -> bytes:
    out, offset = b"", 100
    for group, codec in groups:
        numbered = [record._replace(offset=offset + number) for number, record in enumerate(group)]
        out += build_batch(numbered, base_offset=offset, codec=codec)
        offset += len(group)
    return out


def read(data: bytes) -> list[BatchPairs]:
    return list(batches_of_pairs(data, decompressed_bytes_max=BYTES_MAX))


@given(batches)
def test_pairs_are_those_of_the_records(groups: list[tuple[list[Record], Codec]]) -> None:
    data, position = built(groups), 0
    for found in read(data):
        header = read_header(data, position)
        expected = [(r.key, r.value) for r in records_of(data, position, decompressed_bytes_max=BYTES_MAX)]
        assert found == BatchPairs(header.base_offset, header.next_offset, expected, None)
        position += header.size
    assert position == len(data)


@given(batches, st.data())
def test_damaged_bytes_are_a_corrupt_batch_or_what_records_of_makes_of_them(
    groups: list[tuple[list[Record], Codec]], data: st.DataObject
) -> None:
    raw = bytearray(built([(group, Codec.NONE) for group, _ in groups]))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(61, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = read(bytes(raw))
    except CorruptBatch:
        return
    position = 0
    for batch in found:
        try:
            expected = [(r.key, r.value) for r in records_of(raw, position, decompressed_bytes_max=BYTES_MAX)]
        except CorruptBatch:
            pass  # It looks at more: deltas, timestamps, headers.
        else:
            assert batch.error is None
            assert batch.pairs == expected
        position += read_header(raw, position).size


@pytest.mark.parametrize("cut", [1, 30, 60, 61, 62, 69])
def test_a_batch_that_is_cut_short_is_corrupt(cut: int) -> None:
    data = built([([Record(0, 0, b"k", b"v")], Codec.NONE)])
    with pytest.raises(CorruptBatch):
        read(data + data[:cut])


def test_a_batch_behind_a_damaged_one_is_read() -> None:
    data = built([([Record(0, 0, b"k", b"v")], Codec.NONE), ([Record(0, 0, b"a", None)], Codec.NONE)])
    damaged = bytearray(data)
    damaged[61] = 0x7F
    first, second = read(bytes(damaged))
    assert (first.pairs, isinstance(first.error, CorruptBatch)) == ([], True)
    assert (second.pairs, second.base_offset) == ([(b"a", None)], 101)


def test_a_batch_of_a_transaction_tells_whose_it_is() -> None:
    data = bytes(
        build_batch([Record(0, 1, b"k", b"v")], base_offset=0, attributes=0x10, producer_id=7, producer_epoch=2)
    )
    (found,) = read(data)
    assert found.header == read_header(data)
    assert read(bytes(build_batch([Record(0, 1, b"k", b"v")], base_offset=0, producer_id=7)))[0].header is None
