"""What a lake holds. Pure: a snapshot and what was written give the next snapshot.

A lake is a folder of Parquet files, `topic=orders/day=2026-11-16/NAME.parquet`, and of snapshots that name those of
them that count. A batch of an archive counts from the snapshot on that has its files, all at once, together with the
offset of each partition up to which the topic is in the lake: so who has read one snapshot knows exactly where to go on
in the topic. Offsets have gaps (compaction, transactions), so the rows alone do not tell.
"""

import datetime
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from penstock.spark import plan
from penstock.spark.plan import Offsets, TopicPartition

FILE_BYTES = 128 << 20  # Of rows as they are in memory, where a merge has all of a file; on disk they take less.
SMALLEST_BYTES = 1 << 20  # Files below count as of the same size.
GROWTH = 8  # So many files of about the same size become one: a row is written log8(128), about three times more.
QUERIES_MAX = 100  # Whose last batch is noted. There is one for each checkpoint that an archive ever had.
DAY_MS = 86_400_000

_EPOCH = datetime.date(1970, 1, 1)


class Overlap(Exception):
    """Records that are in the lake already."""


class Span(NamedTuple):
    """Which offsets of a partition a file has, though not all between them."""

    partition: int
    first: int
    last: int


class LakeFile(NamedTuple):
    topic: str
    day: str
    name: str
    rows: int
    bytes: int  # As in FILE_BYTES.
    spans: tuple[Span, ...]  # The offsets of a partition ascend within a file.

    @property
    def path(self) -> str:
        """Below the lake's folder."""
        return f"{folder(self.topic, self.day)}/{self.name}"


class Retired(NamedTuple):
    """A file that a merge has replaced. Readers of earlier snapshots may still want it for a while."""

    path: str
    at_ms: int


@dataclass(frozen=True)
class Snapshot:
    version: int = 0
    files: tuple[LakeFile, ...] = ()
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)  # The first offset that is not in the lake.
    batches: Mapping[str, int] = field(default_factory=dict)  # By query: the last that counts.
    retired: tuple[Retired, ...] = ()

    def covers(self, query_id: str, batch_id: int) -> bool:
        return batch_id <= self.batches.get(query_id, -1)

    def of(self, topics: Collection[str]) -> "Snapshot":
        """As if there were no other topics."""
        files = tuple(each for each in self.files if each.topic in topics)
        return replace(self, files=files, ends={key: end for key, end in self.ends.items() if key[0] in topics})

    def topics(self) -> list[str]:
        return sorted({topic for topic, _ in self.ends})

    def starts(self) -> dict[TopicPartition, int]:
        """The first offset that is in the lake, of each partition that it has records of."""
        found: dict[TopicPartition, int] = {}
        for each in self.files:
            for span in each.spans:
                key = each.topic, span.partition
                found[key] = min(found.get(key, span.first), span.first)
        return found

    def files_with(self, topic: str, partition: int, start: int, end: int) -> Iterator[LakeFile]:
        """Those that may have records of [start, end)."""
        for each in self.files:
            if each.topic == topic and any(
                span.partition == partition and span.first < end and span.last >= start for span in each.spans
            ):
                yield each


def folder(topic: str, day: str) -> str:
    """A topic's name has no character that a file system, or Spark's reader of such folders, would mind."""
    return f"topic={topic}/day={day}"


def day_of(number: int) -> str:
    """Of the days since 1970: as Spark writes a date in a folder's name."""
    return (_EPOCH + datetime.timedelta(days=number)).isoformat()


def add_batch(
    lake: Snapshot, query_id: str, batch_id: int, files: Collection[LakeFile], read_up_to: Offsets
) -> Snapshot:
    """The lake with a micro-batch more; the same if it has it already.

    `read_up_to`: where the batch ended, as far as that is known. Overlap when a record is there already.
    """
    if lake.covers(query_id, batch_id):
        return lake
    ends = dict(lake.ends)
    for each in files:
        for span in each.spans:
            key = each.topic, span.partition
            if span.first < lake.ends.get(key, 0):
                raise Overlap(
                    f"the lake has {each.topic}-{span.partition} up to offset {lake.ends[key]} already, and here comes"
                    f" {span.first}: the topic was made anew, or a second archive writes here. Give it another lake."
                )
            ends[key] = max(ends.get(key, 0), span.last + 1)
    for key, end in read_up_to.items():
        ends[key] = max(ends.get(key, 0), end)
    noted = {query: batch for query, batch in lake.batches.items() if query != query_id} | {query_id: batch_id}
    newest = dict(list(noted.items())[-QUERIES_MAX:])
    return replace(lake, version=lake.version + 1, files=(*lake.files, *files), ends=ends, batches=newest)


def merges(lake: Snapshot) -> list[list[LakeFile]]:
    """Which files should become one, each of these groups: GROWTH of about the same size, of a topic and day."""
    alike: dict[tuple[str, str, int], list[LakeFile]] = defaultdict(list)
    for each in lake.files:
        if each.bytes < FILE_BYTES // 2:
            alike[each.topic, each.day, _tier(each.bytes)].append(each)
    found = []
    for files in alike.values():
        for group in _packed(sorted(files, key=lambda each: each.spans)):
            if len(group) >= GROWTH:
                found.append(group)
    return found


def newest(lake: Snapshot, files: Collection[LakeFile]) -> LakeFile:
    """The one of them that was added last."""
    return next(each for each in reversed(lake.files) if each in files)


def _tier(size: int) -> int:
    tier = 0
    while size >= SMALLEST_BYTES:
        size //= GROWTH
        tier += 1
    return tier


def _packed(files: Iterable[LakeFile]) -> Iterator[list[LakeFile]]:
    """Groups of at most FILE_BYTES."""
    group: list[LakeFile] = []
    size = 0
    for each in files:
        if group and size + each.bytes > FILE_BYTES:
            yield group
            group, size = [], 0
        group.append(each)
        size += each.bytes
    if group:
        yield group


def replace_files(lake: Snapshot, old: Collection[LakeFile], new: LakeFile, now_ms: int) -> Snapshot:
    """The lake with `new` for `old`; the same if it does not have all of them any more."""
    if not set(old) <= set(lake.files):
        return lake
    files = (*(each for each in lake.files if each not in old), new)
    retired = (*lake.retired, *(Retired(each.path, now_ms) for each in old))
    return replace(lake, version=lake.version + 1, files=files, retired=retired)


def forget_retired(lake: Snapshot, before_ms: int) -> Snapshot:
    """Without the notes of files that were replaced before that: they may be deleted."""
    left = tuple(each for each in lake.retired if each.at_ms >= before_ms)
    return lake if len(left) == len(lake.retired) else replace(lake, version=lake.version + 1, retired=left)


def to_json(lake: Snapshot) -> str:
    return json.dumps(
        {
            "version": lake.version,
            "ends": plan.to_json(lake.ends),
            "batches": lake.batches,
            "files": [
                {
                    "topic": each.topic,
                    "day": each.day,
                    "name": each.name,
                    "rows": each.rows,
                    "bytes": each.bytes,
                    "offsets": {str(span.partition): [span.first, span.last] for span in each.spans},
                }
                for each in lake.files
            ],
            "retired": lake.retired,
        }
    )


def from_json(text: str) -> Snapshot:
    found = json.loads(text)
    return Snapshot(
        version=found["version"],
        files=tuple(
            LakeFile(
                each["topic"],
                each["day"],
                each["name"],
                each["rows"],
                each["bytes"],
                tuple(Span(int(partition), *bounds) for partition, bounds in each["offsets"].items()),
            )
            for each in found["files"]
        ),
        ends=plan.from_json(found["ends"]),
        batches=found["batches"],
        retired=tuple(Retired(*each) for each in found["retired"]),
    )
