"""Which transactions of one partition are undecided, and up to where readers of committed data may read.

In: a transaction's first batch, its marker, the high watermark. Out: the last stable offset, what an abort hides. No
I/O, no clock. A transaction holds readers back from its first offset on until its marker is committed:

    first_offset        marker      high_watermark
         |---- open -----|... ends ......|  then it is forgotten

    first_unstable <= every first_offset of an open or uncommitted transaction
"""

from heapq import heappop, heappush

from penstock.base.types import Offset
from penstock.storage.txn_index import AbortedTxn


class Transactions:
    __slots__ = ("_ended", "_open", "first_unstable")  # There is one for each of thousands of partitions.

    def __init__(self) -> None:
        self.first_unstable: Offset | None = None  # Where the oldest of them begins.
        self._open: dict[int, Offset] = {}  # Producer id → first offset; in order of that, as they are in the log.
        # (first offset, marker's offset) of those that have ended; some of them committed, behind the first.
        self._ended: list[tuple[Offset, Offset]] = []

    def __len__(self) -> int:
        return len(self._open)

    @property
    def has_uncommitted(self) -> bool:
        """Whether a marker waits for the high watermark."""
        return bool(self._ended)

    @property
    def first_undecided(self) -> Offset | None:
        """Where the oldest open transaction begins."""
        return next(iter(self._open.values()), None)

    def begin(self, producer_id: int, first_offset: Offset) -> None:
        """A producer without an open transaction writes a transactional batch."""
        assert producer_id not in self._open, f"producer {producer_id} has a transaction open"
        self._open[producer_id] = first_offset
        if self.first_unstable is None:
            self.first_unstable = first_offset

    def aborted(self, producer_id: int, marker_offset: Offset) -> AbortedTxn | None:
        """What an abort marker at that offset would hide; None when the producer has no transaction open."""
        first = self._open.get(producer_id)
        if first is None:
            return None
        others = (offset for other, offset in self._open.items() if other != producer_id)
        return AbortedTxn(producer_id, first, marker_offset, next(others, marker_offset + 1))

    def end(self, producer_id: int, marker_offset: Offset) -> None:
        """A marker was written. Of a producer with nothing open it means nothing."""
        first = self._open.pop(producer_id, None)
        if first is not None:
            heappush(self._ended, (first, marker_offset))
            self._find_first_unstable()

    def on_high_watermark(self, high_watermark: Offset) -> None:
        """Everything below it is committed, markers as well."""
        ended = self._ended
        while ended and ended[0][1] < high_watermark:
            heappop(ended)
        self._find_first_unstable()

    def _find_first_unstable(self) -> None:
        undecided = self.first_undecided
        if self._ended and (undecided is None or self._ended[0][0] < undecided):
            undecided = self._ended[0][0]
        self.first_unstable = undecided
