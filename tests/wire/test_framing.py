"""Frames, cut out of whatever pieces the network delivers."""

import ctypes
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.errors import BadPeer
from penstock.wire.framing import FRAME_GROWTH, FRAME_START_BYTES, SIZE_BYTES, FrameReader

LIMIT = 1 << 20


def receive(reader: FrameReader, data: bytes) -> list[bytes]:
    """What asyncio does: fill the buffer that the reader offers, as far as it goes, and hold it until the next one."""
    frames = []
    while data:
        buffer = reader.get_buffer()
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        frames += [bytes(frame) for frame in reader.received(count)]
        data = data[count:]
    return frames


@given(
    payloads=st.lists(st.binary(max_size=400), max_size=12),
    large=st.integers(0, 300_000),
    cuts=st.lists(st.integers(1, 5000), min_size=1, max_size=30),
)
def test_frames_come_out_whole_and_in_order_however_they_are_cut(
    payloads: list[bytes], large: int, cuts: list[int]
) -> None:
    payloads = [*payloads, bytes(large), b"end"]
    stream = b"".join(struct.pack(">i", len(payload)) + payload for payload in payloads)
    reader = FrameReader(bytearray(1024), LIMIT)
    frames = []
    position = number = 0
    while position < len(stream):
        count = cuts[number % len(cuts)]
        frames += receive(reader, stream[position : position + count])
        position += count
        number += 1
    assert frames == payloads
    assert not reader.is_mid_frame


@pytest.mark.parametrize("size", [-1, LIMIT + 1, 0x7FFFFFFF, -(2**31)])
def test_a_size_out_of_bounds_is_refused_at_once(size: int) -> None:
    reader = FrameReader(bytearray(1024), LIMIT)
    with pytest.raises(BadPeer, match="frame of"):
        receive(reader, struct.pack(">i", size))


def test_a_sender_that_announces_much_and_sends_little_costs_little() -> None:
    reader = FrameReader(bytearray(1024), 100 << 20)
    receive(reader, struct.pack(">i", 50 << 20) + b"x")
    assert reader.is_mid_frame
    assert len(reader.get_buffer()) < FRAME_START_BYTES
    receive(reader, bytes(FRAME_START_BYTES))
    assert len(reader.get_buffer()) <= FRAME_GROWTH * (FRAME_START_BYTES + 1)


def test_frames_can_be_written_to_and_do_not_share_memory() -> None:
    shared = bytearray(64)
    reader = FrameReader(shared, LIMIT)
    reader.get_buffer()[:12] = struct.pack(">i", 2) + b"ab" + struct.pack(">i", 2) + b"cd"
    first, second = reader.received(12)
    first[0] = ord("X")
    shared[:] = bytes(64)
    assert (bytes(first), bytes(second)) == (b"Xb", b"cd")


def test_the_first_frame_of_a_read_is_copied_without_a_shift_within_16_bytes() -> None:
    shared = bytearray(1024)
    reader = FrameReader(shared, LIMIT)
    assert (_address(reader.get_buffer()) + SIZE_BYTES - _address(memoryview(shared))) % 16 == 0


def _address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))
