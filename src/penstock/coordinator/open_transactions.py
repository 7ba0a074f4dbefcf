"""What open transactions have written under each key, until they end.

A transaction's writes count when it commits, and then as of where they are in the log: what was written under the same
key after them, by a transaction that is committed or by none, has overtaken them. Two logs of which one is compacted
must say the same, and compaction knows nothing but the order of the records.

Pure. In: `write` and `overtake` with every record in the order of the log, `forget` with a tombstone, `end` with a
marker. Keys and values are whatever the log has: the coordinator's loader has bytes, the groups have records.
"""

from collections.abc import Iterator
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class _Write(Generic[V]):
    __slots__ = ("is_overtaken", "value")

    def __init__(self, value: V) -> None:
        self.value = value
        self.is_overtaken = False


class OpenTransactions(Generic[K, V]):
    def __init__(self) -> None:
        # By key and producer id, in the order of the log; the last write of each. No level is ever empty.
        self._writes: dict[K, dict[int, _Write[V]]] = {}
        self._keys: dict[int, dict[K, None]] = {}  # By producer id, the keys that it has written.

    def __contains__(self, key: K) -> bool:
        """Whether an open transaction has written it; also when that is overtaken."""
        return key in self._writes

    def __iter__(self) -> Iterator[K]:
        return iter(self._writes)

    def __len__(self) -> int:
        """How many keys are written."""
        return len(self._writes)

    def write(self, producer_id: int, key: K, value: V) -> V | None:
        """Gives what the same transaction wrote before."""
        writes = self._writes.setdefault(key, {})
        before = writes.pop(producer_id, None)
        writes[producer_id] = _Write(value)
        self._keys.setdefault(producer_id, {})[key] = None
        return None if before is None else before.value

    def overtake(self, key: K) -> None:
        """The key was written outside of any transaction."""
        for write in self._writes.get(key, {}).values():
            write.is_overtaken = True

    def forget(self, key: K) -> list[V]:
        """The key was deleted, and with it all that was written before. Gives what that was."""
        writes = self._writes.pop(key, {})
        for producer_id in writes:
            keys = self._keys[producer_id]
            del keys[key]
            if not keys:
                del self._keys[producer_id]
        return [write.value for write in writes.values()]

    def end(self, producer_id: int, *, is_commit: bool) -> tuple[list[tuple[K, V]], list[tuple[K, V]]]:
        """The transaction is over: what counts now, and what it has written in all."""
        counting, written = [], []
        for key in self._keys.pop(producer_id, ()):
            writes = self._writes[key]
            write = writes[producer_id]
            written.append((key, write.value))
            if is_commit and not write.is_overtaken:
                counting.append((key, write.value))
                for other in writes.values():
                    if other is write:
                        break  # What comes after it in the log has not been overtaken by it.
                    other.is_overtaken = True
            del writes[producer_id]
            if not writes:
                del self._writes[key]
        return counting, written

    def writes(self, *, overtaken: bool) -> Iterator[tuple[int, K, V]]:
        """All with their producers; those of one key in the order of the log."""
        for key, writes in self._writes.items():
            for producer_id, write in writes.items():
                if write.is_overtaken is overtaken:
                    yield producer_id, key, write.value
