import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.varint import InvalidVarint, read_uvarint, read_varint, write_uvarint, write_varint

SIGNED = st.integers(-(2**63), 2**63 - 1)
UNSIGNED = st.integers(0, 2**32 - 1)


@given(SIGNED, st.binary(max_size=3), st.binary(max_size=3))
def test_varint_reads_back_wherever_it_lies(value: int, before: bytes, after: bytes) -> None:
    out = bytearray(before)
    write_varint(out, value)
    end = len(out)
    assert read_varint(memoryview(out + after), len(before)) == (value, end)


@given(UNSIGNED, st.binary(max_size=3), st.binary(max_size=3))
def test_uvarint_reads_back_wherever_it_lies(value: int, before: bytes, after: bytes) -> None:
    out = bytearray(before)
    write_uvarint(out, value)
    end = len(out)
    assert read_uvarint(memoryview(out + after), len(before)) == (value, end)


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (-65, "8101"),
        (2**31 - 1, "feffffff0f"),
        (-(2**31), "ffffffff0f"),
        (2**63 - 1, "feffffffffffffffff01"),
        (-(2**63), "ffffffffffffffffff01"),
    ],
)
def test_varint_is_written_as_kafka_writes_it(value: int, encoded: str) -> None:
    out = bytearray()
    write_varint(out, value)
    assert out.hex() == encoded


@given(SIGNED)
def test_varint_cut_short_is_refused(value: int) -> None:
    out = bytearray()
    write_varint(out, value)
    for end in range(len(out)):
        with pytest.raises(InvalidVarint):
            read_varint(out[:end], 0)


def test_nothing_is_read_behind_the_end() -> None:
    with pytest.raises(InvalidVarint):
        read_varint(b"\x00", 5)


@pytest.mark.parametrize("encoded", ["ffffffffffffffffffff01", "ffffffffffffffffff02", "ffffffffffffffffff7f"])
def test_varint_over_64_bits_is_refused(encoded: str) -> None:
    with pytest.raises(InvalidVarint):
        read_varint(bytes.fromhex(encoded), 0)


@pytest.mark.parametrize("encoded", ["ffffffffff01", "ffffffff10", "ffffffff7f"])
def test_uvarint_over_32_bits_is_refused(encoded: str) -> None:
    with pytest.raises(InvalidVarint):
        read_uvarint(bytes.fromhex(encoded), 0)
