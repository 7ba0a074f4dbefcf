"""What no history may show. Each checker is a pure function from events to violations; none means it holds.

The names of the anomalies follow Jepsen's Kafka tests (`jepsen.tests.kafka`). The letters: A acked and lost,
B duplicates, C inconsistent offsets, D order and skips, E failed write visible, G watermarks that go back.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from penstock.sim.history import Event, Log, Phase, Poll, Polled, Send, Sent

Contents = Mapping[Log, Sequence[tuple[int, bytes]]]  # Offset and value of every record at the end of the run.


class Violation(NamedTuple):
    kind: str
    log: Log
    detail: str

    def __str__(self) -> str:
        return f"{self.kind} in {self.log.partition}: {self.detail}"


def check_all(events: Sequence[Event], contents: Contents, checks: "Sequence[Check] | None" = None) -> list[Violation]:
    """Every violation in the history and in what was found at the end."""
    found = [violation for check in (checks or HISTORY_CHECKS) for violation in check(events)]
    found += check_lost(events, contents)
    found += check_contents(events, contents)
    return found


def check_lost(events: Iterable[Event], contents: Contents) -> Iterator[Violation]:
    """A: an acknowledged record is not at its offset at the end. Logs that are not in `contents` owe nothing."""
    final = {log: dict(records) for log, records in contents.items()}
    for log, offset, value in _acked(events):
        if log in final and final[log].get(offset) != value:
            there = _name(final[log].get(offset))
            yield Violation("acked-lost", log, f"{_name(value)} was acked at {offset}; there is {there}")


def check_contents(events: Iterable[Event], contents: Contents) -> Iterator[Violation]:
    """C and D at the end of the run: nothing that was shown has changed or gone, and there is no gap."""
    for log, records in contents.items():
        yield from _check_run(log, records, start=records[0][0] if records else 0)
    final = {log: dict(records) for log, records in contents.items()}
    for log, offset, value in _shown(events):
        if log in final and final[log].get(offset) != value:
            there = _name(final[log].get(offset))
            yield Violation("shown-lost", log, f"{_name(value)} was read at {offset}; there is {there}")


def check_offsets(events: Iterable[Event]) -> Iterator[Violation]:
    """C: two values at one offset, among all that was acknowledged or read."""
    events = list(events)
    values: dict[tuple[Log, int], bytes] = {}
    for log, offset, value in (*_acked(events), *_shown(events)):
        other = values.setdefault((log, offset), value)
        if other != value:
            yield Violation("inconsistent-offset", log, f"offset {offset} has been {_name(other)} and {_name(value)}")


def check_duplicates(events: Iterable[Event]) -> Iterator[Violation]:
    """B: one value at two offsets. Values are unique and never sent twice, so this is the broker's doing."""
    events = list(events)
    offsets: dict[tuple[Log, bytes], int] = {}
    for log, offset, value in (*_acked(events), *_shown(events)):
        other = offsets.setdefault((log, value), offset)
        if other != offset:
            yield Violation("duplicate", log, f"{_name(value)} is at {other} and at {offset}")


def check_sources(events: Iterable[Event]) -> Iterator[Violation]:
    """E: a refused value was read; or a value that nobody sent, or nobody sent there."""
    events = list(events)
    sent: dict[bytes, Log] = {}
    refused: set[bytes] = set()
    for event in events:
        if isinstance(event.operation, Send):
            if event.phase is Phase.INVOKE:
                sent.update(dict.fromkeys(event.operation.values, event.operation.log))
            elif event.phase is Phase.FAIL:
                refused.update(event.operation.values)
    for log, offset, value in _shown(events):
        if value in refused:
            yield Violation("failed-write-visible", log, f"{_name(value)} was refused and is at {offset}")
        elif value not in sent:
            yield Violation("phantom", log, f"{_name(value)} at {offset} was never sent")
        elif sent[value].partition != log.partition:
            yield Violation("phantom", log, f"{_name(value)} at {offset} was sent to {sent[value].partition}")


def check_send_order(events: Iterable[Event]) -> Iterator[Violation]:
    """D: a send got an offset below one that was acknowledged before it began, or below an earlier one on its link."""
    ends: dict[Log, int] = {}  # First offset after all that is acknowledged so far.
    floors: dict[int, int] = {}  # Per send: what `ends` was when it began.
    links: dict[tuple[Log, int], int] = {}  # First offset after the last acknowledged send on the link.
    for phase, number, send, result in events:
        if not isinstance(send, Send):
            continue
        if phase is Phase.INVOKE:
            floors[number] = ends.get(send.log, 0)
        elif isinstance(result, Sent):
            floor = floors[number]
            if send.link >= 0:
                floor = max(floor, links.get((send.log, send.link), 0))
            if result.base_offset < floor:
                yield Violation(
                    "nonmonotonic-send", send.log, f"{_name(send.values[0])} got {result.base_offset} < {floor}"
                )
            end = result.base_offset + len(send.values)
            ends[send.log] = max(ends.get(send.log, 0), end)
            links[send.log, send.link] = end


def check_read_order(events: Iterable[Event]) -> Iterator[Violation]:
    """D: values that one link sent in one order were read in another."""
    events = list(events)
    places: dict[bytes, tuple[int, int]] = {}  # Link, and place among all that was sent.
    for event in events:
        if event.phase is Phase.INVOKE and isinstance(event.operation, Send):
            for value in event.operation.values:
                places[value] = (event.operation.link, len(places))
    records: dict[Log, dict[int, bytes]] = {}
    for log, offset, value in _shown(events):
        records.setdefault(log, {})[offset] = value
    for log, values in records.items():
        last: dict[int, int] = {}
        for offset, value in sorted(values.items()):
            link, place = places.get(value, (0, 0))
            if place < last.get(link, 0):
                yield Violation("reordered", log, f"{_name(value)} at {offset} was sent before what is in front of it")
            last[link] = place


def check_polls(events: Iterable[Event]) -> Iterator[Violation]:
    """D inside one poll: records start where asked and follow each other without a gap, below the high watermark."""
    for event in events:
        if isinstance(event.operation, Poll) and isinstance(event.result, Polled):
            log, records = event.operation.log, event.result.records
            yield from _check_run(log, records, event.operation.start)
            if records and records[-1][0] >= event.result.high_watermark:
                detail = f"offset {records[-1][0]} was shown at watermark {event.result.high_watermark}"
                yield Violation("above-watermark", log, detail)


def check_watermarks(events: Iterable[Event]) -> Iterator[Violation]:
    """G: a poll saw a watermark below one seen, or below an offset acknowledged, before the poll began."""
    ends: dict[Log, int] = {}
    floors: dict[int, int] = {}
    for phase, number, operation, result in events:
        log = operation.log
        if phase is Phase.INVOKE:
            floors[number] = ends.get(log, 0)
        elif isinstance(operation, Send) and isinstance(result, Sent):
            ends[log] = max(ends.get(log, 0), result.base_offset + len(operation.values))
        elif isinstance(result, Polled):
            if result.high_watermark < floors[number]:
                yield Violation("stale", log, f"watermark {result.high_watermark} after {floors[number]}")
            ends[log] = max(ends.get(log, 0), result.high_watermark)


Check = Callable[[Sequence[Event]], Iterator[Violation]]

HISTORY_CHECKS: tuple[Check, ...] = (
    check_offsets,
    check_duplicates,
    check_sources,
    check_send_order,
    check_read_order,
    check_polls,
    check_watermarks,
)


def _acked(events: Iterable[Event]) -> Iterator[tuple[Log, int, bytes]]:
    for event in events:
        if isinstance(event.operation, Send) and isinstance(event.result, Sent):
            for offset, value in enumerate(event.operation.values, event.result.base_offset):
                yield event.operation.log, offset, value


def _shown(events: Iterable[Event]) -> Iterator[tuple[Log, int, bytes]]:
    for event in events:
        if isinstance(event.result, Polled):
            for offset, value in event.result.records:
                yield event.operation.log, offset, value


def _check_run(log: Log, records: Sequence[tuple[int, bytes]], start: int) -> Iterator[Violation]:
    for expected, (offset, value) in enumerate(records, start):
        if offset != expected:
            yield Violation("gap", log, f"{_name(value)} is at {offset}, expected {expected}")
            return


def _name(value: bytes | None) -> str:
    """Enough of a value to find it in the trace: workloads pad theirs with dots."""
    return "nothing" if value is None else repr(value.rstrip(b".")[:40])
