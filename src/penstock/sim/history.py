"""What the clients of a run did and saw: the input of the checkers."""

from enum import Enum
from typing import NamedTuple

from penstock.base.types import TopicPartition
from penstock.sim.trace import Trace


class Phase(Enum):
    INVOKE = "invoke"  # Begun. May take effect from here on.
    OK = "ok"  # Done, and the client knows.
    FAIL = "fail"  # Refused: must never have an effect.
    INFO = "info"  # Nobody told the client: may have taken effect, or not, or may yet.


class Log(NamedTuple):
    """One partition, as long as it may not lose anything it has shown or acknowledged.

    `life` stays 0 for a durable topic. A topic that leaves syncing to the operating system starts a new life at every
    power cut and every failed sync: what the old life acknowledged may be gone.
    """

    partition: TopicPartition
    life: int


class Send(NamedTuple):
    log: Log
    # The connection: requests on one link are served in order. Negative for an idempotent producer, which sends again
    # what is not acknowledged: its records are in order, its acknowledgements need not be.
    link: int
    values: tuple[bytes, ...]  # Unique in the whole run.


class Poll(NamedTuple):
    log: Log
    start: int
    reader: int = 0  # Who of those that follow leaders by themselves; 0: all see the same broker.


class Sent(NamedTuple):
    base_offset: int
    broker: int = -1  # Who said so.


class Polled(NamedTuple):
    high_watermark: int
    records: tuple[tuple[int, bytes], ...]  # Offset and value.


Operation = Send | Poll
Result = Sent | Polled | str | None


class Event(NamedTuple):
    phase: Phase
    number: int  # Of the operation: one INVOKE, then at most one other phase.
    operation: Operation
    result: Result = None


class History:
    def __init__(self, trace: Trace | None = None) -> None:
        self.events: list[Event] = []
        self._trace = trace
        self._invoked = 0

    def invoke(self, operation: Operation) -> int:
        self._invoked += 1
        self._add(Event(Phase.INVOKE, self._invoked, operation))
        return self._invoked

    def ok(self, number: int, operation: Operation, result: Sent | Polled) -> None:
        self._add(Event(Phase.OK, number, operation, result))

    def fail(self, number: int, operation: Operation, reason: str) -> None:
        self._add(Event(Phase.FAIL, number, operation, reason))

    def info(self, number: int, operation: Operation, reason: str) -> None:
        self._add(Event(Phase.INFO, number, operation, reason))

    def _add(self, event: Event) -> None:
        self.events.append(event)
        if self._trace is not None:
            self._trace.add(event.phase.value, *event[1:])
