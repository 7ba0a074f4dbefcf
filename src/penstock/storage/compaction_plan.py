"""What compaction is to do: which logs are dirty enough, how far they may be cleaned, which segments become one.

In: segments as plain numbers, a topic's settings, the time. Out: offsets and groups. Pure; `cleaner.py` drives it.

    log_start          first_dirty              end              active segment
        |--- clean ---------|------ dirty ------|--- too new ---|-----------------|
                                                ^ at the start of a segment

Below `first_dirty` every key is there once, if it was not written again since.
"""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.base.topic_config import TopicConfig
from penstock.base.types import NO_TIMESTAMP, Offset
from penstock.storage.format import RELATIVE_OFFSET_MAX


class Closed(NamedTuple):
    """A segment that takes no more records."""

    base_offset: Offset
    end_offset: Offset  # Base offset of the next segment.
    size: int
    first_timestamp: int  # Of its first batch.
    max_timestamp: int


class Dirty(NamedTuple):
    """How much of a log compaction could do now."""

    first_dirty: Offset
    end: Offset  # What is from here on stays as it is.
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool  # Some record has waited for longer than max.compaction.lag.ms.

    @property
    def ratio(self) -> float:
        return self.dirty_bytes / (self.clean_bytes + self.dirty_bytes) if self.dirty_bytes else 0.0

    def is_due(self, config: TopicConfig) -> bool:
        return self.dirty_bytes > 0 and (self.is_overdue or self.ratio > config.min_cleanable_dirty_ratio)


def dirty_part(
    segments: Sequence[Closed],
    config: TopicConfig,
    *,
    cleaned_to: Offset | None,
    log_start: Offset,
    limit: Offset,
    now_ms: int,
) -> Dirty:
    """What is dirty of a log's closed segments, below `limit` (the last stable offset)."""
    log_end = segments[-1].end_offset if segments else log_start
    first_dirty = log_start if cleaned_to is None or not log_start <= cleaned_to <= log_end else cleaned_to
    clean_bytes = dirty_bytes = 0
    end = first_dirty
    is_overdue = False
    for segment in segments:
        if segment.end_offset <= first_dirty:
            clean_bytes += segment.size
            continue
        too_new = config.min_compaction_lag_ms and segment.max_timestamp > now_ms - config.min_compaction_lag_ms
        if segment.end_offset > limit or too_new:
            break
        dirty_bytes += segment.size
        end = segment.end_offset
        if NO_TIMESTAMP < segment.first_timestamp < now_ms - config.max_compaction_lag_ms:
            is_overdue = True
    return Dirty(first_dirty, end, clean_bytes, dirty_bytes, is_overdue)


def groups_of(segments: Sequence[Closed], config: TopicConfig) -> list[list[Closed]]:
    """Neighbours that become one segment: small ones merge until `segment.bytes` is full."""
    groups: list[list[Closed]] = []
    group_bytes = 0
    for segment in segments:
        if groups and group_bytes + segment.size <= config.segment_bytes and _fits(groups[-1][0], segment):
            groups[-1].append(segment)
            group_bytes += segment.size
        else:
            groups.append([segment])
            group_bytes = segment.size
    return groups


def _fits(first: Closed, segment: Closed) -> bool:
    """Whether an index that counts from `first` can name every offset of `segment`; one without records always fits."""
    return segment.size == 0 or segment.end_offset - 1 - first.base_offset <= RELATIVE_OFFSET_MAX
