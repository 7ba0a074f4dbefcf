"""Which segments may go: by age, by size, and those below the log's start. Pure; the log manager drives it."""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.base.topic_config import TopicConfig
from penstock.base.types import NO_TIMESTAMP, Offset

CLOCK_JUMP_MS = 3_600_000  # A wall clock that moved this much more than the monotonic one is not believed at once.


class SegmentAge(NamedTuple):
    base_offset: Offset
    end_offset: Offset  # First offset of the next segment; the log's end for the active one.
    size: int
    max_timestamp: int
    modified_ms: int


def expired_count(
    segments: Sequence[SegmentAge], config: TopicConfig, *, now_ms: int, log_start: Offset, high_watermark: Offset
) -> int:
    """How many of the oldest segments to delete. The last, active one only goes when all its records are too old."""
    excess = sum(segment.size for segment in segments) - config.retention_bytes
    count = 0
    for segment in segments:
        is_active = segment is segments[-1]
        if segment.end_offset > high_watermark or (is_active and segment.size == 0):
            break
        below_start = segment.end_offset <= log_start and not is_active
        too_old = config.is_deleted and _is_too_old(segment, config.retention_ms, now_ms)
        too_much = config.is_deleted and config.retention_bytes >= 0 and excess >= segment.size and not is_active
        if not (below_start or too_old or too_much):
            break
        excess -= segment.size
        count += 1
    return count


def _is_too_old(segment: SegmentAge, retention_ms: int, now_ms: int) -> bool:
    if retention_ms < 0:
        return False
    newest = segment.max_timestamp if segment.max_timestamp > NO_TIMESTAMP else segment.modified_ms
    return newest + retention_ms < now_ms


class JumpGuard:
    """Notices a wall clock that jumped between two passes; the pass after a jump is skipped (rule 21)."""

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None

    def has_jumped(self, now_ms: int, monotonic: float) -> bool:
        last, self._last = self._last, (now_ms, monotonic)
        if last is None:
            return False
        elapsed_ms = (monotonic - last[1]) * 1000
        return abs(now_ms - last[0] - elapsed_ms) > CLOCK_JUMP_MS
