"""The states of a transactional id, numbered and named as Kafka does.

    Empty ──add──► Ongoing ──commit──► PrepareCommit ──markers written──► CompleteCommit ──add──► Ongoing …
                      └─────abort────► PrepareAbort  ──markers written──► CompleteAbort  ──add──► Ongoing …

InitProducerId leads from Empty and both Complete states to Empty, with a new epoch. From Ongoing it aborts.
"""

from enum import IntEnum


class TxnState(IntEnum):
    EMPTY = 0  # No transaction yet. Leaves by: a partition, InitProducerId, expiry; an abort (v5) goes by PrepareAbort.
    ONGOING = 1  # Takes partitions. Leaves by: EndTxn, InitProducerId, timeout. The last two abort, with a new epoch.
    PREPARE_COMMIT = 2  # Decided. Everyone else hears CONCURRENT_TRANSACTIONS. Leaves when all markers are written.
    PREPARE_ABORT = 3  # Likewise.
    COMPLETE_COMMIT = 4  # As Empty; the same EndTxn again is answered as the first one was.
    COMPLETE_ABORT = 5  # Likewise.
    DEAD = 6  # Kafka's, for an id that is about to go. Never stored, and here never reached: apply is one step.
    PREPARE_EPOCH_FENCE = 7  # Kafka's, for an abort whose epoch is not stored yet. Likewise.

    @property
    def title(self) -> str:
        """What DescribeTransactions and ListTransactions call it."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    @property
    def is_completing(self) -> bool:
        return self in (TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is open: the id may be taken over, or expire."""
        return self in (TxnState.EMPTY, TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT)


BY_TITLE = {state.title: state for state in TxnState}
