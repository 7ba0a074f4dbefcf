"""Key → its highest offset, in bounded memory: what a compaction pass knows of the part it cleans by."""

from collections.abc import Iterable
from hashlib import blake2b

# An entry takes a digest of 49 bytes, an offset of 32 and about 110 of the dictionary's table, which is at worst a
# third full after it has doubled: 128 MiB, Kafka's log.cleaner.dedupe.buffer.size, hold this many.
ENTRIES_MAX = (128 << 20) // 192

DIGEST_BYTES = 16  # Two of a billion keys meet with a chance of 1e-21. Not md5: a client could make keys that collide.


class OffsetMap:
    def __init__(self, entries_max: int = ENTRIES_MAX) -> None:
        self._entries_max = entries_max
        self._offsets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    def has_room(self, count: int) -> bool:
        """Whether `count` more keys fit; an empty map takes any number, so that every pass gets somewhere."""
        return not self._offsets or len(self._offsets) + count <= self._entries_max

    def put(self, keys: Iterable[tuple[bytes, int]]) -> None:
        """Take note of (key, offset) pairs in order of offset."""
        offsets = self._offsets
        for key, offset in keys:
            offsets[blake2b(key, digest_size=DIGEST_BYTES).digest()] = offset

    def is_latest(self, key: bytes, offset: int) -> bool:
        """Whether no record of `key` with a higher offset is known."""
        return offset >= self._offsets.get(blake2b(key, digest_size=DIGEST_BYTES).digest(), -1)
