"""The aborted transactions whose markers lie in one segment, in file format (format.py): what readers are to skip.

Entries are in order of their markers. `last_stable_offset` is the one that held when the marker was written, and never
goes down: a reader that is served up to there needs no entry behind it.
"""

from collections.abc import Iterator
from typing import NamedTuple

from penstock.storage.format import TXN_ENTRY
from penstock.storage.index import BadIndex, last_where

Buffer = bytes | bytearray | memoryview

_VERSION = 0


class AbortedTxn(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int  # Of the marker.
    last_stable_offset: int


class TxnIndex:
    def __init__(self, entries: Buffer = b"") -> None:
        self.data = bytearray(entries)

    def __len__(self) -> int:
        return len(self.data) // TXN_ENTRY.size

    def __iter__(self) -> Iterator[AbortedTxn]:
        for _, *fields in TXN_ENTRY.iter_unpack(memoryview(self.data)[: len(self) * TXN_ENTRY.size]):
            yield AbortedTxn(*fields)

    @property
    def first_offset_min(self) -> int | None:
        """Before what offset none of these transactions has a record; None when there is none."""
        return min((entry.first_offset for entry in self), default=None)

    def append(self, aborted: AbortedTxn) -> bytes:
        """Add an entry; gives its bytes."""
        entry = TXN_ENTRY.pack(_VERSION, *aborted)
        self.data += entry
        return entry

    def truncate(self, end: int) -> None:
        """Keep only transactions whose marker lies below `end`, and no half entry behind them."""
        kept = next((number for number, entry in enumerate(list(self)) if entry.last_offset >= end), len(self))
        del self.data[kept * TXN_ENTRY.size :]

    def overlapping(self, start: int, end: int) -> tuple[list[AbortedTxn], bool]:
        """The transactions with records in [start, end), and whether there can be no others in later segments."""
        found = []
        ended_before = last_where(len(self), lambda number: self._last_offset(number) < start) + 1
        # No object for each of those that are looked at in vain: while one transaction stays open, thousands may end.
        rest = memoryview(self.data)[ended_before * TXN_ENTRY.size :]
        for _, producer_id, first_offset, last_offset, last_stable_offset in TXN_ENTRY.iter_unpack(rest):
            if first_offset < end:
                found.append(AbortedTxn(producer_id, first_offset, last_offset, last_stable_offset))
            if last_stable_offset >= end:
                return found, True
        return found, False

    def _last_offset(self, number: int) -> int:
        last_offset: int = TXN_ENTRY.unpack_from(self.data, number * TXN_ENTRY.size)[3]
        return last_offset

    def check(self, start: int, end: int) -> None:
        """Raise BadIndex unless these can be transactions with markers in [start, end)."""
        if len(self.data) % TXN_ENTRY.size:
            raise BadIndex("transaction index ends in half an entry")
        previous = start - 1
        for version, producer_id, first_offset, last_offset, last_stable_offset in TXN_ENTRY.iter_unpack(self.data):
            if version != _VERSION or producer_id < 0:
                raise BadIndex(f"transaction index has an entry of version {version}, producer {producer_id}")
            if not (previous < last_offset < end and 0 <= first_offset < last_offset):
                raise BadIndex(f"transaction index has [{first_offset}, {last_offset}] behind {previous}")
            if not 0 <= last_stable_offset <= last_offset + 1:
                raise BadIndex(f"transaction index has last stable offset {last_stable_offset} at {last_offset}")
            previous = last_offset
