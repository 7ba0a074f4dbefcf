"""What the members of a run's groups were told, and what was delivered to them: the input of the group checkers.

Every operation has two places in the run's order, where it began and where it ended. One that ended before another
began happened before it, whatever the network did.
"""

from typing import NamedTuple

from penstock.base.errors import ErrorCode
from penstock.base.types import TopicPartition
from penstock.sim.trace import Trace

NEVER = 1 << 62  # Where an operation ended whose answer was lost: its effect may come at any time, or not at all.


class Span(NamedTuple):
    begun: int
    ended: int


class Joined(NamedTuple):
    span: Span
    group: str
    generation: int


class Synced(NamedTuple):
    """A member was told its part of a generation."""

    span: Span
    group: str
    owner: str  # The seat: the instance id of a static member, the member id of another.
    member_id: str
    generation: int
    partitions: frozenset[TopicPartition]


class Beat(NamedTuple):
    """A heartbeat that was taken."""

    span: Span
    group: str
    member_id: str
    generation: int


class Committed(NamedTuple):
    span: Span
    group: str
    owner: str
    member_id: str
    generation: int
    offsets: tuple[tuple[TopicPartition, int], ...]
    code: ErrorCode | None  # None: the answer was lost.
    is_out: bool  # The coordinator must have let go of the member: it left, or was silent for too long.

    @property
    def is_static(self) -> bool:
        return self.owner != self.member_id


class Looked(NamedTuple):
    """The committed offsets as a member read them; -1: none."""

    span: Span
    group: str
    offsets: tuple[tuple[TopicPartition, int], ...]


class Delivered(NamedTuple):
    group: str
    partition: TopicPartition
    records: tuple[tuple[int, bytes], ...]


class Acked(NamedTuple):
    """Records that a producer was promised."""

    partition: TopicPartition
    base_offset: int
    values: tuple[bytes, ...]


GroupEvent = Joined | Synced | Beat | Committed | Looked | Delivered | Acked


class GroupHistory:
    def __init__(self, trace: Trace | None = None) -> None:
        self.events: list[GroupEvent] = []
        self._place = 0
        self._trace = trace

    def place(self) -> int:
        """The next place in the run's order."""
        self._place += 1
        return self._place

    def span(self, begun: int) -> Span:
        return Span(begun, self.place())

    def add(self, event: GroupEvent) -> None:
        self.events.append(event)
        if self._trace is not None:
            self._trace.add(type(event).__name__, *(sorted(f) if isinstance(f, frozenset) else f for f in event))
