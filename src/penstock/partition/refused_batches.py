"""First batches that came before their partition did.

A client may hear of a new topic before the broker that leads it. What it sends is refused, and sent again; but what it
has sent behind that may arrive when the partition is there, and nothing is to overtake a producer's first batch.
"""

from uuid import UUID

from penstock.base.errors import ErrorCode
from penstock.wire.batch import HEADER_BYTES, NO_PRODUCER_ID, BatchHeader, read_header

# A few hundred bytes each. Who sends to topics that never come must not take more, and makes others forgotten at worst.
PARTITIONS_MAX = 1000
PRODUCERS_MAX = 100

Place = tuple[str | UUID, int]


class RefusedBatches:
    def __init__(self) -> None:
        # By producer, with what it was told. Oldest first.
        self._places: dict[Place, dict[int, tuple[BatchHeader, ErrorCode]]] = {}

    def add(self, topic: str | UUID, partition: int, records: memoryview, code: ErrorCode) -> None:
        if len(records) < HEADER_BYTES:
            return
        header = read_header(records)
        if header.producer_id == NO_PRODUCER_ID:
            return
        producers = self._places.setdefault((topic, partition), {})
        if len(producers) < PRODUCERS_MAX:
            producers.setdefault(header.producer_id, (header, code))
        if len(self._places) > PARTITIONS_MAX:
            del self._places[next(iter(self._places))]

    def take(self, topic: str, topic_id: UUID, partition: int) -> list[tuple[BatchHeader, ErrorCode]]:
        """Those of a partition that is here now; they are then forgotten."""
        if not self._places:
            return []
        places: list[Place] = [(topic, partition), (topic_id, partition)]
        return [refused for place in places for refused in self._places.pop(place, {}).values()]
