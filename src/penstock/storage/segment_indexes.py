"""Both indexes of one segment, as they grow batch by batch. Pure: files and damage are the segment's business."""

from penstock.base.types import NO_TIMESTAMP, Offset
from penstock.storage.index import BadIndex, OffsetIndex, TimeIndex


class SegmentIndexes:
    def __init__(self, base_offset: Offset, offsets: OffsetIndex | None = None, times: TimeIndex | None = None) -> None:
        self.offsets = offsets or OffsetIndex()
        self.times = times or TimeIndex()
        self._base_offset = base_offset
        self._unindexed_bytes = 0
        self.max_timestamp = NO_TIMESTAMP  # Of all batches noted, and those that the time index was made of.
        self.max_timestamp_offset = base_offset  # The last offset of the first batch that has it.
        self._take_newest_from_times()

    def note(self, position: int, size: int, last_offset: int, max_timestamp: int, interval_bytes: int) -> None:
        """A batch lies at `position`: an entry for it once enough bytes have gone by, as Kafka does it."""
        if max_timestamp > self.max_timestamp:
            self.max_timestamp, self.max_timestamp_offset = max_timestamp, Offset(last_offset)
        if self._unindexed_bytes > interval_bytes:
            self.offsets.append(last_offset - self._base_offset, position)
            self._note_newest()
            self._unindexed_bytes = 0
        self._unindexed_bytes += size

    def finish(self) -> None:
        """Make the time index end with the segment's largest timestamp: it is what retention reads."""
        if self.max_timestamp > NO_TIMESTAMP:
            self._note_newest()

    def _note_newest(self) -> None:
        self.times.maybe_append(self.max_timestamp, self.max_timestamp_offset - self._base_offset)

    def truncate(self, position: int, next_offset: int) -> None:
        """Forget all batches from `position` on, where the one with `next_offset` starts."""
        self.offsets.truncate(position)
        self.times.truncate(next_offset - self._base_offset)
        self._unindexed_bytes = 0
        self._take_newest_from_times()

    def _take_newest_from_times(self) -> None:
        last = self.times.last()
        if last is None:
            self.max_timestamp, self.max_timestamp_offset = NO_TIMESTAMP, self._base_offset
        else:
            self.max_timestamp, self.max_timestamp_offset = last[0], Offset(self._base_offset + last[1])

    def check(self, log_bytes: int) -> None:
        """Raise BadIndex when no segment of `log_bytes` can have these indexes."""
        self.offsets.check(log_bytes)
        self.times.check()
        if log_bytes == 0 and (self.offsets or self.times):
            raise BadIndex("indexes of an empty log have entries")
