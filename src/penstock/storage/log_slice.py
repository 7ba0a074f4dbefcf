"""Batches of a segment that are read when they are sent.

From the file to the socket without a copy where the system can do that (`send`), else a piece at a time: the client
begins to receive at once, and who reads slowly holds a piece in memory instead of a whole reply.
"""

from penstock.storage.fs import Buffer, File
from penstock.storage.segment import NotCached, Segment

PIECE_BYTES = 128 << 10  # Stays in the processor's cache on its way.


class SliceGone(Exception):
    """What was to be read is not there any more: retention, compaction, or a leader that does not have it."""


class LogSlice:
    __slots__ = ("_changes", "_end", "_is_loaded", "_position", "_segment", "_size", "next_offset")

    def __init__(self, segment: Segment, position: int, size: int, next_offset: int) -> None:
        self._segment = segment
        self._position = position
        self._size = size
        self.next_offset = next_offset  # From which on its reader will read.
        self._end = position + size
        self._changes = segment.changes
        self._is_loaded = False  # A moment ago. Not asked again then, or a cache that forgets would hold us for ever.

    def __len__(self) -> int:
        """Of all of it, sent or not."""
        return self._size

    @property
    def is_done(self) -> bool:
        return self._position == self._end

    @property
    def is_gone(self) -> bool:
        """Whether it can no longer be read."""
        return self._segment.changes != self._changes

    def send(self, descriptor: int) -> int:
        """Give a socket what it takes of the rest; says how much. NotCached: `load` first.

        SliceGone or OSError: there is no rest.
        """
        file, size = self._file(), self._end - self._position
        if not self._is_loaded and not file.is_cached(self._position, size):
            raise NotCached(file, self._position, size)
        count = file.send(descriptor, self._position, size)
        self._on_read(count)
        return count

    def next_piece(self) -> Buffer:
        """The bytes that come next; raises as `send` does."""
        file, size = self._file(), min(PIECE_BYTES, self._end - self._position)
        piece = file.read(self._position, size) if self._is_loaded else file.read_cached(self._position, size)
        if piece is None:
            raise NotCached(file, self._position, self._end - self._position)
        if len(piece) < size:
            raise SliceGone(f"{file.path} is shorter than it was")
        self._on_read(size)
        return piece

    async def load(self, miss: NotCached) -> None:
        """Have the rest in memory."""
        await self._segment.load(miss)
        self._is_loaded = True

    def _file(self) -> File:
        if self.is_gone:
            raise SliceGone(f"{self._segment.path()} has changed")
        return self._segment.file

    def _on_read(self, count: int) -> None:
        self._position += count
        self._is_loaded = False
