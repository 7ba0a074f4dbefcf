"""Frames: a four-byte size, then that many bytes. Where received bytes go, without copying the large ones.

Small frames are cut out of one receive buffer that all connections share, for it is empty again when the event loop
turns to the next one. A frame that does not fit is received straight into a buffer of its own, which grows with what
has come: a peer that announces 50 MiB and sends one byte costs 16 KiB.
"""

import struct

from penstock.base.errors import BadPeer

RECEIVE_BYTES = 256 * 1024  # One read of a busy socket; a quarter of the usual produce request.
FRAME_START_BYTES = 16 * 1024
FRAME_GROWTH = 8  # A frame's buffer is at most this many times what its sender has paid for.
SIZE_BYTES = 4

# Where a read begins in the shared buffer, so that the first frame lies at a multiple of 16, as does the copy of it.
# A large block that is copied by 1 to 15 bytes up, counted within a page, takes AMD's Zen 4 far longer: 50 us instead
# of 3 for 128 KB.
READ_START = 12

_SIZE = struct.Struct(">i")


class BadSize(BadPeer):
    """A frame's size is out of bounds. The frames before it are whole and may be answered."""

    def __init__(self, message: str, frames: list[memoryview]) -> None:
        super().__init__(message)
        self.frames = frames


class FrameReader:
    """Sans-I/O: `get_buffer` says where to receive, `received` gives the frames that are whole."""

    __slots__ = ("_begun_count", "_buffer", "_filled", "_frame_bytes", "_frame_bytes_max", "_rest", "_shared")

    def __init__(self, shared: bytearray, frame_bytes_max: int) -> None:
        self._shared = memoryview(shared)[READ_START:]
        self._frame_bytes_max = frame_bytes_max
        self._rest = b""  # The first bytes of a size, fewer than four.
        self._buffer: bytearray | None = None  # Of the frame that is being received on its own.
        self._frame_bytes = 0
        self._filled = 0
        self._begun_count = 0  # Frames that did not come in one piece.

    @property
    def is_mid_frame(self) -> bool:
        return self._buffer is not None or bool(self._rest)

    @property
    def reserved_bytes(self) -> int:
        """Memory held for a frame that is not whole yet."""
        return 0 if self._buffer is None else len(self._buffer)

    @property
    def progress(self) -> tuple[int, int]:
        """Which frame is being received, and how many bytes of it have come."""
        return self._begun_count, self._filled if self._buffer is not None else len(self._rest)

    def get_buffer(self) -> memoryview:
        if self._buffer is None:
            return self._shared
        if self._filled == len(self._buffer):
            self._buffer = self._grown(self._buffer)
        return memoryview(self._buffer)[self._filled :]

    def _grown(self, buffer: bytearray) -> bytearray:
        """A copy, as extending it would be in most cases: whoever received into it may hold it still."""
        grown = bytearray(min(self._frame_bytes, self._filled * FRAME_GROWTH))
        grown[: len(buffer)] = buffer
        return grown

    def received(self, count: int) -> list[memoryview]:
        """Whole frames, in order and writable; BadSize when a size is out of bounds."""
        if self._buffer is not None:
            self._filled += count
            if self._filled < self._frame_bytes:
                return []
            frame = memoryview(self._buffer)
            self._buffer = None
            return [frame]
        return self._cut(self._shared[:count])

    def _cut(self, data: memoryview) -> list[memoryview]:
        if self._rest:
            data = memoryview(self._rest + data)
            self._rest = b""
        frames: list[memoryview] = []
        position, end = 0, len(data)
        while end - position >= SIZE_BYTES:
            (size,) = _SIZE.unpack_from(data, position)
            if not 0 <= size <= self._frame_bytes_max:
                raise BadSize(f"frame of {size} bytes, {self._frame_bytes_max} are allowed", frames)
            position += SIZE_BYTES
            if end - position < size:
                self._begin(size, data[position:])
                return frames
            # A copy: the shared buffer is about to be used by others, and batches are stamped in place.
            frames.append(memoryview(bytearray(data[position : position + size])))
            position += size
        if position < end:
            self._rest = bytes(data[position:])
            self._begun_count += 1
        return frames

    def _begin(self, size: int, data: memoryview) -> None:
        reserve = max(FRAME_START_BYTES, len(data) * FRAME_GROWTH)
        self._buffer = bytearray(min(size, reserve))
        self._buffer[: len(data)] = data
        self._frame_bytes = size
        self._filled = len(data)
        self._begun_count += 1
