"""How a transaction ends in the partitions that it wrote to: a marker in each. server/txn_markers.py writes them."""

from collections.abc import Collection
from typing import NamedTuple, Protocol

from penstock.base.types import TopicPartition


class TxnMarker(NamedTuple):
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int  # The leader epoch of the coordinator's partition: of two, the later one is right.
    is_commit: bool
    transaction_version: int


class MarkerWriter(Protocol):
    async def write(self, marker: TxnMarker, partitions: Collection[TopicPartition]) -> None:
        """Comes back when every partition has the marker, or is gone; not before, however long that takes."""
