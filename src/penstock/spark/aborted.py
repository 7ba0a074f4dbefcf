"""Which batches a `read_committed` reader passes over. Pure: a Fetch's list of aborted transactions, then its batches.

The broker names the aborted transactions that touch what it sends, each by its producer and its first offset. From
there to its marker everything that the producer wrote in a transaction is void.
"""

from collections.abc import Iterable

from penstock.wire.batch import BatchHeader


class AbortedRecords:
    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        """`aborted` has producer ids and first offsets."""
        self._coming = sorted(((first_offset, producer_id) for producer_id, first_offset in aborted), reverse=True)
        self._producers: set[int] = set()  # Whose transaction, here, was aborted in the end.

    def is_void(self, header: BatchHeader) -> bool:
        """Whether the batch is a marker, or was aborted. Ask for each batch, in their order."""
        while self._coming and self._coming[-1][0] <= header.last_offset:
            self._producers.add(self._coming.pop()[1])
        if header.is_control:
            # Commit or abort: the transaction is over either way, and the producer's next one may be committed.
            self._producers.discard(header.producer_id)
            return True
        return header.is_transactional and header.producer_id in self._producers
