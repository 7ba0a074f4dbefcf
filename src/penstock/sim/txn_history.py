"""What transactional producers did and what readers of committed records saw; and what that may never be."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from penstock.base.types import TopicPartition

Records = Sequence[tuple[int, bytes]]  # Offset and value.


class Outcome(Enum):
    """What is known of the end of a transaction."""

    COMMITTED = "committed"  # The coordinator has said so.
    ABORTED = "aborted"  # Nobody has asked for anything else, or it was refused for good.
    UNKNOWN = "unknown"  # A commit was asked for, and no answer came.


@dataclass
class Txn:
    producer: str
    number: int
    values: dict[TopicPartition, list[bytes]] = field(default_factory=dict)  # In the order in which they were sent.
    outcome: Outcome = Outcome.ABORTED
    offset: int | None = None  # Of the producer's group, committed in it.

    def __str__(self) -> str:
        return f"transaction {self.number} of {self.producer}, {self.outcome.value}"


@dataclass
class TxnHistory:
    transactions: list[Txn] = field(default_factory=list)
    shown: dict[tuple[TopicPartition, int], bytes] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)  # What readers have seen at once.
    offsets: dict[str, int] = field(default_factory=dict)  # Of the producers' groups, when all is over.

    def on_shown(self, partition: TopicPartition, records: Records) -> None:
        for offset, value in records:
            if self.shown.setdefault((partition, offset), value) != value:
                self.complaints.append(f"{partition} has had two values at {offset}")


def check(history: TxnHistory, final: Mapping[TopicPartition, Records]) -> list[str]:
    """Everything that no history may show: `final` is what a reader of committed records sees when all is over."""
    found = [*history.complaints, *_check_ends(history, final), *_check_shown(history, final)]
    return [*found, *_check_offsets(history, final)]


def _check_ends(history: TxnHistory, final: Mapping[TopicPartition, Records]) -> Iterator[str]:
    places: dict[bytes, list[tuple[TopicPartition, int]]] = {}
    for partition, records in final.items():
        for offset, value in records:
            places.setdefault(value, []).append((partition, offset))
    for txn in history.transactions:
        sent = [(partition, value) for partition, values in txn.values.items() for value in values]
        there = [(partition, value) for partition, value in sent if value in places]
        if txn.outcome is Outcome.COMMITTED and there != sent:
            yield f"lost write: of {txn} there are {len(there)} of {len(sent)} records"
        elif txn.outcome is Outcome.ABORTED and there:
            yield f"aborted read: of {txn} there is {there[0]}"
        elif there not in ([], sent):
            yield f"torn: of {txn} there are {len(there)} of {len(sent)} records"
        for partition, values in txn.values.items():
            found = [places[value] for value in values if value in places]
            if any(len(item) != 1 or item[0][0] != partition for item in found):
                yield f"duplicate, or elsewhere: of {txn} in {partition}: {found}"
            elif [item[0][1] for item in found] != sorted(item[0][1] for item in found):
                yield f"reordered: {txn} in {partition}: {found}"
    known = {value for txn in history.transactions for values in txn.values.values() for value in values}
    for value in places:
        if value not in known:
            yield f"phantom: {value!r} at {places[value]}"


def _check_offsets(history: TxnHistory, final: Mapping[TopicPartition, Records]) -> Iterator[str]:
    """A group has the offset of the last transaction whose records are there, and no other."""
    there = {value for records in final.values() for _, value in records}
    for producer, offset in history.offsets.items():
        counted = [
            txn.offset
            for txn in history.transactions
            if txn.producer == producer
            and txn.offset is not None
            and all(there.issuperset(values) for values in txn.values.values())
        ]
        expected = counted[-1] if counted else -1
        if offset != expected:
            yield f"torn: the group of {producer} is at {offset}, and its records at {expected}"


def _check_shown(history: TxnHistory, final: Mapping[TopicPartition, Records]) -> Iterator[str]:
    there = {(partition, offset): value for partition, records in final.items() for offset, value in records}
    for place, value in history.shown.items():
        if there.get(place) != value:
            yield f"shown and gone: {value!r} at {place}"
