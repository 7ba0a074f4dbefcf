"""Which batches of a log belong to aborted transactions, and which markers are still needed. Pure.

A compaction pass shows it every batch, in order. What an aborted transaction wrote goes at once. A marker stays while
the pass finds anything of its transaction, also what goes in this very pass; it is hollow from the next one on. For a
marker that outlives its data does no harm, and data that outlives its marker would count for the other outcome, or be
open for ever (Redpanda #16679).
"""

from collections.abc import Iterable

from penstock.storage.txn_index import AbortedTxn
from penstock.wire.batch import BatchHeader
from penstock.wire.txn_marker import EndTxnMarker


class TxnCleaning:
    def __init__(self, aborted: Iterable[AbortedTxn], start: int = 0) -> None:
        """`aborted`: all that have records in what is looked at, which begins at `start`."""
        found = [entry for entry in aborted if entry.last_offset >= start]
        found.sort(key=lambda entry: entry.first_offset, reverse=True)
        self._to_come = found  # The next to begin last.
        self._aborted: dict[int, AbortedTxn] = {}  # By producer: the one that has begun.
        self._seen: dict[int, int] = {}  # Producer → offset of its last transactional batch that no marker has ended.

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether a data batch is of an aborted transaction."""
        if not header.is_transactional:
            return False
        self._begin_up_to(header.base_offset)
        self._seen[header.producer_id] = header.base_offset
        entry = self._aborted.get(header.producer_id)
        return entry is not None and header.base_offset < entry.last_offset

    def end(self, header: BatchHeader, marker: EndTxnMarker | None) -> tuple[bool, AbortedTxn | None]:
        """Whether a control batch is hollow; and what the index has to say of it when it is not."""
        if marker is None:  # It is empty, or of another kind.
            return header.records_count == 0, None
        self._begin_up_to(header.base_offset)
        is_needed = self._seen.pop(header.producer_id, None) is not None
        entry = self._aborted.pop(header.producer_id, None)
        if entry is not None and entry.last_offset > header.base_offset:
            self._aborted[header.producer_id] = entry  # It ends later.
            entry = None
        is_indexed = entry is not None and entry.last_offset == header.base_offset and not marker.is_commit
        return not is_needed, entry if is_needed and is_indexed else None

    def _begin_up_to(self, offset: int) -> None:
        while self._to_come and self._to_come[-1].first_offset <= offset:
            entry = self._to_come.pop()
            self._aborted[entry.producer_id] = entry
