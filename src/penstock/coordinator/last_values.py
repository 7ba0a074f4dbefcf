"""What counts of a coordinator's log, read from its start: each key's last value, and what transactions still hold.

Pure. The log is compacted, so nothing that was overwritten may count, and it needs not be decoded: keys and values stay
bytes. Applied one by one, `records` lead to the same state as all those of the log.
"""

from collections.abc import Iterator
from typing import NamedTuple

from penstock.coordinator.open_transactions import OpenTransactions
from penstock.wire.batch import NO_PRODUCER_ID, BatchHeader
from penstock.wire.pairs import Pair

_COMMIT, _ABORT = b"\0\1", b"\0\0"  # The type of a control record, in its key behind the version.


class LoadedRecord(NamedTuple):
    key: bytes
    value: bytes | None
    producer_id: int = NO_PRODUCER_ID  # Whose open transaction it is a part of.


class TransactionEnd(NamedTuple):
    """A marker: what the producer's transaction has written counts, or never will."""

    producer_id: int
    is_commit: bool


def transaction_end(header: BatchHeader, pairs: list[Pair]) -> TransactionEnd | None:
    """What a control batch says; None when it ends no transaction: compaction has emptied it, or it is another kind."""
    kind = pairs[0][0][2:4] if pairs and pairs[0][0] is not None else b""
    return TransactionEnd(header.producer_id, kind == _COMMIT) if kind in (_COMMIT, _ABORT) else None


class LastValues:
    def __init__(self) -> None:
        self._latest: dict[bytes, bytes] = {}
        self._open: OpenTransactions[bytes, bytes] = OpenTransactions()

    def note(self, pairs: list[Pair], header: BatchHeader | None) -> None:
        """The next batch of the log; `header`: of one that is part of a transaction, or ends one."""
        if header is None:
            self._note_plain(pairs)
        elif header.is_control:
            end = transaction_end(header, pairs)
            if end is not None:
                counting, _ = self._open.end(end.producer_id, is_commit=end.is_commit)
                for key, committed in counting:
                    self._latest.pop(key, None)
                    self._latest[key] = committed
        else:
            for written_key, value in pairs:
                if written_key is not None and value is not None:
                    self._open.write(header.producer_id, written_key, value)

    def _note_plain(self, pairs: list[Pair]) -> None:
        latest, transactions = self._latest, self._open if len(self._open) else None
        for key, value in pairs:
            if key is not None:
                latest.pop(key, None)  # To the end, where the log has it.
                if value is not None:
                    latest[key] = value
                if transactions is not None and key in transactions:
                    if value is None:
                        transactions.forget(key)
                    else:
                        transactions.overtake(key)

    def records(self) -> Iterator[LoadedRecord]:
        """To be applied one by one. What an open transaction wrote is behind, or before, what has overtaken it."""
        for producer_id, key, value in self._open.writes(overtaken=True):
            yield LoadedRecord(key, value, producer_id)
        for key, value in self._latest.items():
            yield LoadedRecord(key, value)
        for producer_id, key, value in self._open.writes(overtaken=False):
            yield LoadedRecord(key, value, producer_id)
