"""Which offset each leader epoch began at (KIP-101). Pure: the partition stores what `assign` changed.

Entries increase in both epoch and start offset. An epoch ends where the next one that the log knows begins.
"""

from bisect import bisect_right

from penstock.base.types import NO_EPOCH, NO_OFFSET, LeaderEpoch, Offset

Entry = tuple[LeaderEpoch, Offset]


class LeaderEpochs:
    def __init__(self, entries: list[Entry] | None = None) -> None:
        self.entries: list[Entry] = entries or []

    @property
    def latest(self) -> LeaderEpoch:
        return self.entries[-1][0] if self.entries else NO_EPOCH

    def assign(self, epoch: LeaderEpoch, start: Offset) -> bool:
        """Note that `epoch` begins at `start`; gives whether that was news, to be stored before the first append."""
        if epoch <= self.latest:
            return False
        # An epoch that got no record is replaced by the one that begins at the same place.
        while self.entries and self.entries[-1][1] >= start:
            self.entries.pop()
        self.entries.append((epoch, start))
        return True

    def end_offset_for(self, epoch: LeaderEpoch, log_end: Offset) -> tuple[LeaderEpoch, Offset]:
        """(largest known epoch <= `epoch`, offset after its last record); (-1, -1) when none is known."""
        if epoch == self.latest:
            return epoch, log_end
        number = bisect_right(self.entries, epoch, key=lambda entry: entry[0])
        if number == len(self.entries):
            return NO_EPOCH, NO_OFFSET  # From the future: we cannot know it.
        if number == 0:
            # KIP-279: older than all we know. Its records, if any, ended before the first we know of.
            return epoch, self.entries[0][1]
        return self.entries[number - 1][0], self.entries[number][1]

    def divergence(self, last_epoch: LeaderEpoch, fetch_offset: Offset, log_end: Offset) -> Entry | None:
        """Where a follower whose last record before `fetch_offset` is of `last_epoch` left this log; None: it did not.

        That is the largest epoch up to its own that this log has, and where it ends here. The epoch of the leader who
        is asked has begun at the end of the log or before it, also when it has no record yet.
        """
        if last_epoch > self.latest:
            epoch, end = self.latest, log_end
        else:
            epoch, end = self.end_offset_for(last_epoch, log_end)
        return (epoch, end) if epoch < last_epoch or end < fetch_offset else None

    def truncation(self, leader: Entry, log_end: Offset) -> Offset:
        """Where to cut this log, a follower's, whose leader has answered with that `divergence`; then ask again.

        Never by the high watermark, which a follower learns late (KIP-101). A follower that does not know the epoch
        steps back to the one before it (KIP-279).
        """
        _, end = self.end_offset_for(leader[0], log_end)
        return min(end, leader[1], log_end)

    def truncate_end(self, log_end: Offset) -> bool:
        """Forget epochs that begin at or after `log_end`; gives whether there were any."""
        kept = [entry for entry in self.entries if entry[1] < log_end]
        changed = len(kept) != len(self.entries)
        self.entries = kept
        return changed
