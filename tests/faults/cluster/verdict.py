"""What a run has shown, held against the invariants A to I; pure functions over a history, and one over files.

A acked and lost, B duplicates, C inconsistent offsets, D order and skips, E failed write visible, G watermarks and
committed offsets that go back: the checkers of the simulation (`penstock.sim.checkers`), over what real clients saw.
F unseen after the cluster was healed, H replicas that differ and I crashes in logs are added here, and T, the longest
time in which a partition took no write.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.sim import checkers
from penstock.sim.checkers import Contents, Violation
from penstock.sim.history import Event, Log, Phase, Poll, Polled, Send
from penstock.storage.scan import scan_batches

from .timed_history import ack_times

Seen = Mapping[Log, set[int]]  # Offsets that a reader was shown.

LETTERS = {
    "acked-lost": "A",
    "shown-lost": "A",
    "duplicate": "B",
    "inconsistent-offset": "C",
    "gap": "D",
    "reordered": "D",
    "nonmonotonic-send": "D",
    "failed-write-visible": "E",
    "phantom": "E",
    "unseen": "F",
    "stale": "G",
    "above-watermark": "G",
    "replicas-differ": "H",
    "crash": "I",
}


@dataclass
class Verdict:
    acked_count: int = 0
    unknown_count: int = 0  # Sends of which nobody told the client what became.
    write_gap_s: float = 0.0  # T.
    violations: list[Violation] = field(default_factory=list)

    def counts(self) -> Counter[str]:
        return Counter(LETTERS[violation.kind] for violation in self.violations)

    def summary(self) -> str:
        counts = self.counts()
        letters = " ".join(f"{letter}={counts[letter]}" for letter in "ABCDEFGHI")
        return f"{self.acked_count:,} acked, {self.unknown_count:,} unknown, {letters}, T={self.write_gap_s:.2f} s"

    def check(self) -> None:
        by_kind = Counter(violation.kind for violation in self.violations)
        shown = [next(v for v in self.violations if v.kind == kind) for kind in by_kind]
        assert not self.violations, f"{self.summary()}\n{dict(by_kind)}\n" + "\n".join(map(str, shown))


def judge(events: Sequence[Event], times: Sequence[float], contents: Contents, seen: Mapping[str, Seen]) -> Verdict:
    """A to G and T, from what clients did, what each kind of reader saw, and all that is in the logs at the end."""
    verdict = Verdict()
    for event in events:
        if isinstance(event.operation, Send):
            verdict.acked_count += event.phase is Phase.OK
            verdict.unknown_count += event.phase is Phase.INFO
    reads = [event for event in events if not is_question(event)]
    for check in checkers.HISTORY_CHECKS:
        if check is not checkers.check_watermarks:
            verdict.violations += check(reads)
    # A reader shows records that were fetched at some time before; only an answer to a question is about now.
    questions = [event for event in events if isinstance(event.operation, Send) or is_question(event)]
    verdict.violations += checkers.check_watermarks(questions)
    verdict.violations += checkers.check_lost(events, contents)
    verdict.violations += checkers.check_contents(reads, contents)
    verdict.violations += check_final(reads, contents)
    for reader, offsets in seen.items():
        verdict.violations += check_unseen(events, reader, offsets)
    verdict.write_gap_s = max((gap for gap, _ in write_gaps(events, times).values()), default=0.0)
    return verdict


def is_question(event: Event) -> bool:
    """About a watermark or a committed offset: a poll that shows no records."""
    return isinstance(event.operation, Poll) and not (isinstance(event.result, Polled) and event.result.records)


def check_final(events: Sequence[Event], contents: Contents) -> Iterator[Violation]:
    """B, D and E of all that is in the logs, as if somebody had read it in one go."""
    whole = [event for event in events if isinstance(event.operation, Send)]
    for number, (log, records) in enumerate(contents.items(), 1):
        if records:
            poll = Poll(log, records[0][0])
            whole.append(Event(Phase.OK, -number, poll, Polled(records[-1][0] + 1, tuple(records))))
    for check in (checkers.check_duplicates, checkers.check_sources, checkers.check_read_order):
        yield from check(whole)


def check_unseen(events: Sequence[Event], reader: str, seen: Seen) -> Iterator[Violation]:
    """F: acked, and never shown to this reader."""
    for event in events:
        if isinstance(event.operation, Send) and event.phase is Phase.OK:
            offset = event.result.base_offset  # type: ignore[union-attr]
            if offset not in seen.get(event.operation.log, ()):
                what = f"{event.operation.values[0]!r} at {offset} was not shown to the {reader}"
                yield Violation("unseen", event.operation.log, what)


def write_gaps(events: Sequence[Event], times: Sequence[float]) -> dict[Log, tuple[float, float]]:
    """T, and when it began, for each partition: the longest time between two acknowledgements."""
    last: dict[Log, float] = {}
    gaps: dict[Log, tuple[float, float]] = {}
    for log, at in ack_times(list(events), list(times)):
        if log in last:
            gaps[log] = max(gaps.get(log, (0.0, 0.0)), (at - last[log], last[log]))
        last[log] = at
    return gaps


Batches = dict[int, str]  # SHA-256 by base offset.


def batches_of(directory: Path) -> Batches:
    """Every batch of a partition's segments, below the first that is not whole: somebody may be writing it."""
    found: Batches = {}
    for segment in sorted(directory.glob("*.log")):
        content = segment.read_bytes()
        end = _whole_bytes(content)
        for batch in scan_batches(lambda at, count, c=content: c[at : at + count], 0, end, 0):
            found[batch.header.base_offset] = hashlib.sha256(batch.view).hexdigest()
    return found


def _whole_bytes(content: bytes) -> int:
    position = 0
    while position + 12 <= len(content):
        end = position + 12 + int.from_bytes(content[position + 8 : position + 12], "big")
        if end > len(content) or end <= position + 12:
            break
        position = end
    return position


def check_replicas(log: Log, replicas: Mapping[int, Batches], high_watermark: int) -> Iterator[Violation]:
    """H: below the high watermark every replica has the same batches, to the byte."""
    below = {
        node: {offset: digest for offset, digest in batches.items() if offset < high_watermark}
        for node, batches in replicas.items()
    }
    first, *others = sorted(below)
    for other in others:
        if below[first] != below[other]:
            offset = min(
                offset
                for offset in {*below[first], *below[other]}
                if below[first].get(offset) != below[other].get(offset)
            )
            yield Violation("replicas-differ", log, f"from offset {offset} on, brokers {first} and {other}")
