"""What DescribeTransactions and ListTransactions tell."""

from collections.abc import Callable, Collection
from typing import NamedTuple

from penstock.coordinator.txn.metadata import TransactionMetadata
from penstock.coordinator.txn.states import TxnState

ANY_DURATION = -1


class TxnFilter(NamedTuple):
    """Each that is empty, or None, lets all pass."""

    states: Collection[TxnState] | None = None  # Not even one that is known: nothing passes.
    producer_ids: Collection[int] = ()
    duration_ms: int = ANY_DURATION  # Only transactions that began longer ago.
    matches_id: Callable[[str], bool] | None = None

    def passes(self, found: TransactionMetadata, now_ms: int) -> bool:
        return (
            (self.states is None or found.state in self.states)
            and (not self.producer_ids or found.producer_id in self.producer_ids)
            and (self.duration_ms < 0 or now_ms - found.start_ms > self.duration_ms)
            and (self.matches_id is None or self.matches_id(found.transactional_id))
        )
