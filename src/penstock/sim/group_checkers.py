"""What no history of groups may show. Each checker is a pure function from events to violations.

A generation is *out* from the moment at which somebody was told his part of a later one: from then on nobody speaks for
it. Before that moment members of the old one may still commit what they have done.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from penstock.base.errors import ErrorCode
from penstock.base.types import TopicPartition
from penstock.sim.group_history import (
    Acked,
    Beat,
    Committed,
    Delivered,
    GroupEvent,
    Joined,
    Looked,
    Span,
    Synced,
)

# The coordinator is not to be had just now: says nothing about the member, nor whether the request has had its effect.
PASSING = frozenset(
    {
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
    }
)
COMMIT_CODES = PASSING | {
    ErrorCode.none,
    ErrorCode.illegal_generation,
    ErrorCode.unknown_member_id,
    ErrorCode.fenced_instance_id,
    ErrorCode.rebalance_in_progress,
}

STATIC_ZOMBIE_CODES = frozenset(
    {ErrorCode.illegal_generation, ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id}
)


class GroupViolation(NamedTuple):
    kind: str
    group: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind} in group {self.group}: {self.detail}"


def check_groups(events: Sequence[GroupEvent]) -> list[GroupViolation]:
    return [violation for check in CHECKS for violation in check(events)]


def check_owners(events: Sequence[GroupEvent]) -> Iterator[GroupViolation]:
    """A partition has one owner in a generation, and a seat one part."""
    owners: dict[tuple[str, int, TopicPartition], str] = {}
    parts: dict[tuple[str, int, str], frozenset[TopicPartition]] = {}
    for event in events:
        if not isinstance(event, Synced):
            continue
        part = parts.setdefault((event.group, event.generation, event.owner), event.partitions)
        if part != event.partitions:
            detail = f"{event.owner} was told {sorted(part)} and {sorted(event.partitions)} in {event.generation}"
            yield GroupViolation("two-parts", event.group, detail)
        for partition in sorted(event.partitions):
            owner = owners.setdefault((event.group, event.generation, partition), event.owner)
            if owner != event.owner:
                detail = f"{partition} belongs to {owner} and {event.owner} in generation {event.generation}"
                yield GroupViolation("two-owners", event.group, detail)


def check_generations(events: Sequence[GroupEvent]) -> Iterator[GroupViolation]:
    """Nobody is told a generation that is out, or heard in one."""
    out = _Floors((event.group, event.span, event.generation) for event in events if isinstance(event, Synced))
    for event in events:
        if not isinstance(event, Joined | Synced | Beat):
            continue
        floor = out.before(event.group, event.span)
        if event.generation < floor:
            what = type(event).__name__.lower()
            yield GroupViolation("generation-went-back", event.group, f"{what} {event.generation} after {floor}")


def check_zombies(events: Sequence[GroupEvent]) -> Iterator[GroupViolation]:
    """A commit of a generation that is out, or of a member that is out, is refused, with the code that says why."""
    out = _Floors((event.group, event.span, event.generation) for event in events if isinstance(event, Synced))
    for event in events:
        if not isinstance(event, Committed) or event.code is None:
            continue
        floor = out.before(event.group, event.span)
        who = f"{event.member_id} of generation {event.generation}, {floor} being the last"
        if event.code not in COMMIT_CODES:
            yield GroupViolation("unexpected-code", event.group, f"{event.code.name} for {who}")
        if event.code in PASSING:
            continue
        if not event.is_out and event.generation >= floor:
            continue
        # A dynamic member that is out is nobody. A static one may keep its seat, have lost it, or have lost it to
        # another process.
        if event.code not in (STATIC_ZOMBIE_CODES if event.is_static else {ErrorCode.unknown_member_id}):
            yield GroupViolation("zombie-commits", event.group, f"{event.code.name} for {who}")


def check_committed(events: Sequence[GroupEvent]) -> Iterator[GroupViolation]:
    """What was committed is there, or something later; never what nobody committed."""
    floors = _Floors(
        ((event.group, partition), event.span, offset)
        for event in events
        if isinstance(event, Committed) and event.code is ErrorCode.none
        for partition, offset in event.offsets
    )
    tried = {
        (event.group, partition, offset)
        for event in events
        if isinstance(event, Committed) and (event.code in (None, ErrorCode.none) or event.code in PASSING)
        for partition, offset in event.offsets
    }
    for event in events:
        if isinstance(event, Committed | Looked):
            if isinstance(event, Committed) and event.code is not ErrorCode.none:
                continue
            for partition, offset in event.offsets:
                floor = floors.before((event.group, partition), event.span)
                if offset < floor:
                    what = type(event).__name__.lower()
                    yield GroupViolation("offset-went-back", event.group, f"{partition}: {what} {offset} after {floor}")
                if offset >= 0 and (event.group, partition, offset) not in tried:
                    yield GroupViolation("phantom-offset", event.group, f"{partition}: {offset} was never committed")


def check_delivery(events: Sequence[GroupEvent]) -> Iterator[GroupViolation]:
    """At the end every group has got every record that was acknowledged, as it was sent."""
    delivered: dict[str, dict[tuple[TopicPartition, int], bytes]] = {}
    for event in events:
        if isinstance(event, Synced):
            delivered.setdefault(event.group, {})
        elif isinstance(event, Delivered):
            seen = delivered.setdefault(event.group, {})
            for offset, value in event.records:
                if seen.setdefault((event.partition, offset), value) != value:
                    yield GroupViolation("changed-record", event.group, f"{event.partition} at {offset}")
    for event in events:
        if isinstance(event, Acked):
            for offset, value in enumerate(event.values, event.base_offset):
                for group, seen in delivered.items():
                    if seen.get((event.partition, offset)) != value:
                        yield GroupViolation("not-delivered", group, f"{value!r} at {event.partition} {offset}")


CHECKS: tuple[Callable[[Sequence[GroupEvent]], Iterator[GroupViolation]], ...] = (
    check_owners,
    check_generations,
    check_zombies,
    check_committed,
    check_delivery,
)


class _Floors:
    """The largest value of all operations on a key that ended before another began."""

    def __init__(self, operations: Iterable[tuple[object, Span, int]]) -> None:
        self._ends: dict[object, list[int]] = {}
        self._highest: dict[object, list[int]] = {}  # Up to each of the ends.
        for key, span, value in sorted(operations, key=lambda operation: operation[1].ended):
            highest = self._highest.setdefault(key, [])
            highest.append(max(value, highest[-1] if highest else value))
            self._ends.setdefault(key, []).append(span.ended)

    def before(self, key: object, span: Span) -> int:
        """-1 when there is none."""
        count = bisect_left(self._ends.get(key, ()), span.begun)
        return self._highest[key][count - 1] if count else -1
