"""What has been decided about the micro-batches of one sink. Pure: notes in and out of a consumer group's offset.

A group's committed offset is a small, durable value with a key, which a transaction can change: just what a decision
needs. The offset counts the decisions; its metadata names the query, the batch and its tasks.
"""

import json
from collections.abc import Iterable
from typing import NamedTuple

# An attempt of a task: the number of the partition of the rows that it wrote, and that of the attempt.
Attempt = tuple[int, int]

SLOTS = 32


class Decision(NamedTuple):
    """This batch of this query counts: the transactions of these attempts are to be committed."""

    number: int  # One more than the last.
    query_id: str
    batch_id: int
    slot: int
    tasks_count: int  # Attempt 0 of each but for those in `later`.
    later: tuple[Attempt, ...]

    def metadata(self) -> str:
        """Short: a broker takes 4 KB by default."""
        return json.dumps(
            {
                "query": self.query_id,
                "batch": self.batch_id,
                "slot": self.slot,
                "tasks": self.tasks_count,
                "later": self.later,
            }
        )

    def covers(self, query_id: str, batch_id: int) -> bool:
        """Whether the batch, or a later one, is decided: then it must not be written again."""
        return self.query_id == query_id and batch_id <= self.batch_id

    def transactional_ids(self, sink_id: str) -> set[str]:
        attempts = dict.fromkeys(range(self.tasks_count), 0) | dict(self.later)
        return {transactional_id(sink_id, self.slot, task, attempt) for task, attempt in attempts.items()}


def decide(last: Decision | None, query_id: str, batch_id: int, slot: int, attempts: Iterable[Attempt]) -> Decision:
    chosen = sorted(attempts)
    return Decision(
        number=last.number + 1 if last else 0,
        query_id=query_id,
        batch_id=batch_id,
        slot=slot,
        tasks_count=max(task for task, _ in chosen) + 1,
        later=tuple((task, attempt) for task, attempt in chosen if attempt),
    )


def last_decision(notes: Iterable[tuple[int, str]]) -> Decision | None:
    """The newest of a group's offsets: a batch notes its decision beside a partition that it has written to."""
    newest = max(notes, default=None)
    if newest is None:
        return None
    number, text = newest
    found = json.loads(text)
    later = tuple((task, attempt) for task, attempt in found["later"])
    return Decision(number, found["query"], found["batch"], found["slot"], found["tasks"], later)


def next_slot(gate_epoch: int, last: Decision | None) -> int:
    """Which of the sink's ids the tasks of a batch have: not those of the batch before, nor of the last decided one.

    So an open transaction with an id of the decided batch is that batch's, and a task that a dead driver has left
    behind would have to wait for SLOTS batches before it can take an id that is in use again.
    """
    slot = gate_epoch % (SLOTS - 1)
    return slot if last is None or slot != last.slot else SLOTS - 1


def transactional_id(sink_id: str, slot: int, task: int, attempt: int) -> str:
    return f"{prefix(sink_id)}{slot}:{task}:{attempt}"


def prefix(sink_id: str) -> str:
    """Of all transactional ids of the sink, and of no other's: a sink's id has no colon."""
    return f"penstock-spark:{sink_id}:"


def gate_id(sink_id: str) -> str:
    """The transactional id of the driver: under it decisions are made, by one driver at a time."""
    return f"penstock-spark-gate:{sink_id}"


def group_id(sink_id: str) -> str:
    return f"penstock-spark-{sink_id}"
