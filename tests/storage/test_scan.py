import struct

import pytest

from penstock.storage.scan import BadBatch, scan_batches, scan_headers, whole_batches
from penstock.wire.batch import CRC_START, HEADER_BYTES

from .support import batch

THREE = [bytes(batch(0, [b"a"] * 3)), bytes(batch(3)), bytes(batch(4, [b"x" * 9000]))]
WHOLE = b"".join(THREE)


def reader(data):
    return lambda position, size: data[position : position + size]


def test_whole_batches_stop_at_the_end_offset_and_at_a_cut():
    assert whole_batches(WHOLE, 100) == (len(WHOLE), 5)
    assert whole_batches(WHOLE, 4) == (len(THREE[0] + THREE[1]), 4)
    assert whole_batches(WHOLE[:-1], 100) == (len(THREE[0] + THREE[1]), 4)
    assert whole_batches(WHOLE[: HEADER_BYTES - 1], 100) == (0, -1)
    assert whole_batches(b"", 100) == (0, -1)


@pytest.mark.parametrize("length", [-(2**31), -12, -1, 0, 48])
def test_a_damaged_length_ends_the_walk(length):
    damaged = bytearray(WHOLE)
    struct.pack_into(">i", damaged, len(THREE[0]) + 8, length)
    assert whole_batches(damaged, 100) == (len(THREE[0]), 3)


def test_a_scan_gives_every_batch_with_its_place():
    found = list(scan_batches(reader(WHOLE), 0, len(WHOLE), 0))
    assert [bytes(one.view) for one in found] == THREE
    assert [one.position for one in found] == [0, len(THREE[0]), len(THREE[0]) + len(THREE[1])]
    assert list(scan_headers(reader(WHOLE), 0, len(WHOLE), 0)) == [(one.position, one.header) for one in found]


def test_a_scan_says_where_the_next_batch_is_when_only_the_checksum_is_wrong():
    damaged = bytearray(WHOLE)
    damaged[len(THREE[0]) + CRC_START + 20] ^= 1
    scan = scan_batches(reader(damaged), 0, len(damaged), 0)
    next(scan)
    with pytest.raises(BadBatch, match="checksum") as bad:
        next(scan)
    assert bad.value.position == len(THREE[0])
    assert bad.value.skip_to == len(THREE[0] + THREE[1])


@pytest.mark.parametrize(
    ("position", "value", "reason"),
    [(16, b"\x01", "magic"), (8, b"\xff", "length"), (0, b"\x80", "base offset"), (23, b"\xff", "last offset delta")],
)
def test_a_header_that_makes_no_sense_ends_the_scan(position, value, reason):
    damaged = bytearray(WHOLE)
    damaged[position : position + 1] = value
    for scan in (scan_batches, scan_headers):
        with pytest.raises(BadBatch, match=reason):
            list(scan(reader(damaged), 0, len(damaged), 0))


def test_a_file_that_shrank_meanwhile_ends_the_scan():
    shrunk = WHOLE[: len(THREE[0]) + 70]
    for scan in (scan_batches, scan_headers):
        with pytest.raises(BadBatch):
            list(scan(reader(shrunk), 0, len(WHOLE), 0))
