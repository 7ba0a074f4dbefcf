"""A partition's producer state across restarts: snapshots beside the segments, and replay of what came after.

A snapshot is taken at every roll, at a clean stop, and after `SNAPSHOT_INTERVAL_BYTES` of batches, so that a start
after a crash replays little. One that states an offset beyond the end of the log belongs to records that were never
synced: it is removed before anything is appended, or it would come true once other records had grown past it.

The replay also makes anew what the indexes of aborted transactions lack after a crash. So it begins no later than they
do, and a snapshot stays until the recovery point has passed the next one.
"""

from functools import partial

from penstock.base.errors import Refused
from penstock.base.logging import get_logger
from penstock.base.types import Offset
from penstock.partition.producer_snapshot import (
    BadSnapshot,
    decode_snapshot,
    encode_snapshot,
    snapshot_name,
    snapshot_offset_of,
)
from penstock.partition.producer_state import ProducerState
from penstock.storage.disk_read import at_start
from penstock.storage.fs import FileSystem
from penstock.storage.log import Log
from penstock.storage.scan import BadBatch, scan_headers
from penstock.storage.segment import Segment
from penstock.storage.txn_index import AbortedTxn
from penstock.wire.batch import CorruptBatch
from penstock.wire.txn_marker import read_marker

log = get_logger(__name__)

SNAPSHOT_INTERVAL_BYTES = 64 << 20  # Replaying this much takes 40 to 200 ms, depending on the size of the batches.
SNAPSHOTS_KEPT = 2  # The newest, and the one before it in case it is damaged.
SNAPSHOTS_MAX = 32  # While the recovery point does not follow: 2 GiB, more than is written between two of them.


class ProducerFiles:
    def __init__(self, *, fs: FileSystem, partition_log: Log) -> None:
        self._fs = fs
        self._log = partition_log
        self._stored: list[Offset] = []  # Snapshots on disk, oldest first.
        self._bytes_since = 0

    def load(self, now_ms: int) -> ProducerState:
        """The state of all batches in the log."""
        self._stored = self._usable_snapshots()
        state, start = self._newest_snapshot()
        self._replay(state, start, now_ms)
        self._log.aborts_missing_from = None
        state.expire(now_ms)
        return state

    def _usable_snapshots(self) -> list[Offset]:
        names = self._fs.listdir(self._log.directory)
        offsets = [offset for name in names if (offset := snapshot_offset_of(name)) is not None]
        beyond = [offset for offset in offsets if offset > self._log.log_end]
        for offset in beyond:
            self._fs.remove(self._path(offset))
        if beyond:
            self._fs.sync_dir(self._log.directory)
        return [offset for offset in offsets if offset <= self._log.log_end]

    def _newest_snapshot(self) -> tuple[ProducerState, Offset]:
        missing_from = self._log.aborts_missing_from
        for offset in self._stored[::-1]:
            if missing_from is not None and offset > missing_from:
                continue
            try:
                return decode_snapshot(self._fs.read_all(self._path(offset))), offset
            except BadSnapshot as error:
                log.error("producer snapshot is damaged: an older one is used", path=self._path(offset), error=error)
                self._fs.remove(self._path(offset))
                self._stored.remove(offset)
        return ProducerState(), self._log.segments[0].base_offset

    def _replay(self, state: ProducerState, start: Offset, now_ms: int) -> None:
        segments = self._log.segments
        ends = [segment.base_offset for segment in segments[1:]] + [self._log.log_end]
        for segment, end in zip(segments, ends, strict=True):
            if end <= start:
                continue
            written_ms = min(now_ms, segment.created_ms)
            aborted: list[AbortedTxn] = []
            try:
                position = at_start(partial(segment.locate, start)) if start > segment.base_offset else 0
                for at, header in scan_headers(segment.file.read, position, segment.size, segment.base_offset):
                    marker = None
                    if header.is_transactional:
                        self._log.has_transactions = True
                        marker = read_marker(segment.file.read(at, header.size)) if header.is_control else None
                    if marker is not None and not marker.is_commit:
                        ended = state.transactions.aborted(header.producer_id, Offset(header.base_offset))
                        aborted += () if ended is None else (ended,)
                    state.apply(header, header.base_offset, written_ms, marker)
            except (BadBatch, CorruptBatch, Refused) as error:
                # Damage below the recovery point, which recovery has reported if it has looked there.
                log.error("producers behind damage are not known", segment=segment.path(), error=error)
            self._restore_aborted(segment, end, aborted)

    def _restore_aborted(self, segment: Segment, end: Offset, aborted: list[AbortedTxn]) -> None:
        """Make the segment's index whole, if it is not known to be."""
        missing_from = self._log.aborts_missing_from
        if missing_from is not None and missing_from < end and self._log.has_transactions:
            segment.restore_txn_index(missing_from, [entry for entry in aborted if entry.last_offset >= missing_from])
            self._fs.sync_dir(self._log.directory)

    def _path(self, offset: Offset) -> str:
        return f"{self._log.directory}/{snapshot_name(offset)}"

    # Snapshots

    def on_appended(self, state: ProducerState, batch_bytes: int) -> None:
        self._bytes_since += batch_bytes
        if self._bytes_since >= SNAPSHOT_INTERVAL_BYTES:
            self.take_snapshot(state)

    def take_snapshot(self, state: ProducerState) -> None:
        """Store the state of everything appended so far, unless that was done already."""
        offset = self._log.log_end
        if self._stored and offset == self._stored[-1]:
            return
        self._bytes_since = 0
        try:
            self._log.put_side_file(snapshot_name(offset), encode_snapshot(state))
            self._stored.append(offset)
            while len(self._stored) > SNAPSHOTS_KEPT and (
                self._stored[1] <= self._log.recovery_point or len(self._stored) > SNAPSHOTS_MAX
            ):
                self._fs.remove(self._path(self._stored.pop(0)))
        except OSError as error:
            # The state is in memory and in the log: a start then replays more.
            log.warning("producer snapshot could not be stored", partition=self._log.topic_partition, error=error)
