"""What must be true of the replicas of a partition, and of who acknowledged what: checks for clusters.

H: replicas agree below the high watermark, byte for byte. Zombies: nobody acknowledges as the leader of an epoch a
request that began after a later epoch had acknowledged something.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from penstock.sim.checkers import (
    HISTORY_CHECKS,
    Check,
    Violation,
    check_watermarks,
)
from penstock.sim.disk import SimDisk
from penstock.sim.history import Event, Log, Phase, Poll, Polled, Send, Sent
from penstock.wire.batch import read_header


class StoredBatch(NamedTuple):
    base_offset: int
    next_offset: int
    leader_epoch: int
    data: bytes


def batches_on(disk: SimDisk, directory: str) -> list[StoredBatch]:
    """What a partition's directory holds, read without the broker's code for logs."""
    found: list[StoredBatch] = []
    for path in sorted(path for path in disk.children(directory) if path.endswith(".log")):
        content = bytes(disk.file(path).content)
        position = 0
        while position < len(content):
            header = read_header(content, position)
            data = content[position : position + header.size]
            found.append(StoredBatch(header.base_offset, header.next_offset, header.partition_leader_epoch, data))
            position += header.size
    return found


def check_replicas(log: Log, high_watermark: int, replicas: Mapping[str, Sequence[StoredBatch]]) -> Iterator[Violation]:
    """H: every replica has the same batches below the high watermark."""
    committed = {
        name: [batch for batch in batches if batch.base_offset < high_watermark] for name, batches in replicas.items()
    }
    first, *others = committed
    for other in others:
        if committed[first] != committed[other]:
            number = next(
                (n for n, (a, b) in enumerate(zip(committed[first], committed[other], strict=False)) if a != b),
                min(len(committed[first]), len(committed[other])),
            )
            ours, theirs = (_brief(committed[name][number : number + 1]) for name in (first, other))
            yield Violation("replicas-differ", log, f"{first} has {ours}, {other} has {theirs}, below {high_watermark}")


def check_zombies(events: Iterable[Event], epochs: Mapping[Log, Mapping[int, int]]) -> Iterator[Violation]:
    """`epochs` are those of the offsets at the end. Idempotent producers may hear of a batch that an older one took."""
    latest: dict[Log, int] = {}  # The highest epoch that has acknowledged something.
    floors: dict[int, int] = {}  # Per send: what `latest` was when it began.
    for phase, number, send, result in events:
        if not isinstance(send, Send) or send.link < 0:
            continue
        if phase is Phase.INVOKE:
            floors[number] = latest.get(send.log, -1)
        elif isinstance(result, Sent):
            epoch = epochs.get(send.log, {}).get(result.base_offset, -1)
            if 0 <= epoch < floors[number]:
                detail = f"broker {result.broker} acked offset {result.base_offset} in epoch {epoch} < {floors[number]}"
                yield Violation("zombie-ack", send.log, detail)
            latest[send.log] = max(latest.get(send.log, -1), epoch)


def check_reader_watermarks(events: Sequence[Event]) -> Iterator[Violation]:
    """G: what one reader saw of the watermark goes back."""
    seen: dict[tuple[Log, int], int] = {}
    for event in events:
        if isinstance(event.operation, Poll) and isinstance(event.result, Polled):
            key = (event.operation.log, event.operation.reader)
            if event.result.high_watermark < seen.get(key, 0):
                yield Violation("watermark-back", key[0], f"{event.result.high_watermark} after {seen[key]}")
            seen[key] = event.result.high_watermark


# Who asks a leader that has been replaced and does not know it yet sees less than others, for a while.
CLUSTER_CHECKS: tuple[Check, ...] = (
    *(check for check in HISTORY_CHECKS if check is not check_watermarks),
    check_reader_watermarks,
)


def _brief(batches: Sequence[StoredBatch]) -> str:
    return ", ".join(f"[{b.base_offset}, {b.next_offset}) of epoch {b.leader_epoch}" for b in batches) or "nothing"
