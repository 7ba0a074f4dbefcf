"""Transactions whose first batch waits for the coordinator's word that they are ongoing (KIP-890).

Without it a batch that comes late, behind the marker of its transaction, would begin one that nobody ever ends, and
hold back readers for ever. A guard stands for one such question. The answer is worth something only to who still has
the guard that is in place: a marker, or the first batch of the transaction, takes it away, and whoever asked before
that asks again. Pure.
"""

from dataclasses import dataclass

from penstock.base.errors import ErrorCode, Refused
from penstock.wire.batch import BatchHeader

GUARDS_MAX = 10_000  # As many as a partition remembers producers. Who loses its guard is refused, and asks again.
NO_SEQUENCE = -1


@dataclass(slots=True, eq=False)
class VerificationGuard:
    epoch: int
    lowest_sequence: int  # Asked for in this epoch: what was sent after a batch that is refused must not overtake it.
    begins_at_zero: bool  # The epoch is new with every transaction, so nothing that is not here can come before it.


class VerificationGuards:
    __slots__ = ("_guards",)

    def __init__(self) -> None:
        self._guards: dict[int, VerificationGuard] = {}

    def begin(self, producer_id: int, epoch: int, sequence: int, *, begins_at_zero: bool) -> VerificationGuard:
        """The guard that the producer's next transactional batch needs."""
        guard = self._guards.get(producer_id)
        if guard is None:
            if len(self._guards) >= GUARDS_MAX:
                del self._guards[next(iter(self._guards))]
            guard = self._guards[producer_id] = VerificationGuard(epoch, sequence, begins_at_zero)
        elif epoch > guard.epoch:
            guard.epoch, guard.lowest_sequence = epoch, sequence
        elif epoch == guard.epoch:
            guard.lowest_sequence = min(guard.lowest_sequence, sequence)
        return guard

    def check(self, header: BatchHeader, guard: VerificationGuard | None, *, is_producer_known: bool) -> None:
        """Refused unless the batch may begin a transaction with this guard."""
        if guard is None or self._guards.get(header.producer_id) is not guard:
            raise Refused(
                ErrorCode.invalid_txn_state, f"no transaction of producer {header.producer_id} is known to be ongoing"
            )
        first = header.base_sequence
        if first > guard.lowest_sequence or (first > 0 and guard.begins_at_zero and not is_producer_known):
            raise Refused(
                ErrorCode.out_of_order_sequence_number,
                f"producer {header.producer_id}: sequence {first} where {guard.lowest_sequence} is due",
            )

    def on_first_batch(self, producer_id: int) -> None:
        self._guards.pop(producer_id, None)

    def on_marker(self, producer_id: int, epoch: int) -> None:
        """Of a producer whose epoch is new with every transaction, the marker has the epoch of the next one.

        Who asks for that one already, while the markers of the last are still being written, is not meant.
        """
        guard = self._guards.get(producer_id)
        if guard is not None and not (guard.begins_at_zero and guard.epoch >= epoch):
            del self._guards[producer_id]
