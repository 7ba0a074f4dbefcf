"""One compaction pass over one log: learn the keys of its dirty part, then write its segments anew without old values.

Everything here waits for the disk and touches only files of its own, so it runs beside the event loop, in steps: each
generator yields the cost of what it has just done, and whoever drives it may stop there for good. Putting the new
segments in place is the cleaner's part.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, suppress
from typing import NamedTuple

from penstock.base.topic_config import DAY_MS, TopicConfig
from penstock.base.types import Offset
from penstock.storage.batch_filter import Pass, filtered, keys_of
from penstock.storage.compaction_plan import Closed
from penstock.storage.format import CLEANED_SUFFIX, LOG_SUFFIX, SEGMENT_SUFFIXES, segment_path
from penstock.storage.fs import FileSystem
from penstock.storage.limits import SegmentLimits
from penstock.storage.offset_map import ENTRIES_MAX, OffsetMap
from penstock.storage.scan import BadBatch, FoundBatch, scan_batches, scan_headers
from penstock.storage.segment import Segment
from penstock.storage.txn_cleaning import TxnCleaning
from penstock.storage.txn_index import AbortedTxn
from penstock.wire.batch import NO_PRODUCER_ID, BatchHeader, read_header
from penstock.wire.txn_marker import read_marker

RECORD_COST_BYTES = 1000  # A record takes the time in which as many bytes are copied and checked.
PRODUCER_EXPIRY_MS = DAY_MS  # Kafka's producer.id.expiration.ms: who was silent for longer starts a new sequence.


class CleanedSegment(NamedTuple):
    base_offset: Offset
    size: int


class Compaction:
    def __init__(
        self,
        *,
        fs: FileSystem,
        directory: str,
        segments: Sequence[Closed],
        first_dirty: Offset,
        end: Offset,
        config: TopicConfig,
        now_ms: int,
        decompressed_bytes_max: int,
        entries_max: int = ENTRIES_MAX,
        aborted: Sequence[AbortedTxn] | None = None,
    ) -> None:
        """`aborted`: the transactions with records in the segments that were; None for a log that never had any."""
        self.end = first_dirty  # How far the map reaches; `learn` moves it.
        self._fs = fs
        self._directory = directory
        self._segments = segments
        self._first_dirty = first_dirty
        self._wanted_end = end
        self._config = config
        self._now_ms = now_ms
        self._decompressed_bytes_max = decompressed_bytes_max
        self._latest = OffsetMap(entries_max)
        self._aborted = aborted
        self._cleaning = TxnCleaning(aborted or ())
        # What is known of it after a restart hangs on: the last offset of its last batch, or of the marker behind that
        # if its epoch is newer. With the epoch.
        self._last_of_producer: dict[int, tuple[int, int]] = {}

    def learn(self) -> Generator[int, None, None]:
        """Map the keys of the dirty part, or of as much of it as fits; BadBatch or CorruptBatch where it is unsound."""
        cleaning = TxnCleaning(self._aborted or (), self._first_dirty)
        for segment in self._segments:
            if segment.end_offset <= self._first_dirty:
                yield from self._learn_producers(segment)
        for segment in self._segments:
            if segment.end_offset <= self._first_dirty:
                continue
            for found in self._batches(segment):
                header = found.header
                if header.is_control:
                    cleaning.end(header, read_marker(found.view))
                elif header.last_offset >= self._first_dirty and not cleaning.is_aborted(header):
                    if not self._latest.has_room(header.records_count):
                        return
                    self._latest.put(keys_of(header, memoryview(found.view), self._decompressed_bytes_max))
                self._note_producer(header)
                self.end = max(self.end, Offset(header.next_offset))
                yield _cost(found)
            self.end = max(self.end, segment.end_offset)
        self.end = self._wanted_end

    def _learn_producers(self, segment: Closed) -> Iterator[int]:
        with closing(self._fs.open(self._path(segment))) as file:
            for _, header in scan_headers(file.read, 0, segment.size, segment.base_offset):
                self._note_producer(header)
                yield RECORD_COST_BYTES

    def _note_producer(self, header: BatchHeader) -> None:
        producer_id, epoch = header.producer_id, header.producer_epoch
        if producer_id == NO_PRODUCER_ID or header.max_timestamp <= self._now_ms - PRODUCER_EXPIRY_MS:
            return
        if header.is_control and self._last_of_producer.get(producer_id, (0, -1))[1] == epoch:
            return  # The batch before it says as much, and has the sequence.
        self._last_of_producer[producer_id] = (header.last_offset, epoch)

    def write(self, sources: Sequence[Closed]) -> Generator[int, None, CleanedSegment]:
        """Write a group of segments as one `.cleaned` segment; returns that segment once it is on disk."""
        rules = Pass(
            self._latest, self.end, self._now_ms, self._config.delete_retention_ms, self._decompressed_bytes_max
        )
        self._remove_cleaned(sources[0].base_offset)  # Of a pass that was given up.
        segment = self._new_segment(sources[0].base_offset)
        aborted: list[AbortedTxn] = []
        is_done = False
        try:
            for source in sources:
                for found in self._batches(source):
                    self._copy(found, segment, rules, aborted)
                    yield _cost(found)
            for file in segment.store_indexes(final=True):
                with closing(file):
                    file.sync()
            if self._aborted is not None:
                segment.restore_txn_index(segment.base_offset, aborted)
            segment.file.sync()
            is_done = True
        finally:
            segment.close()
            if not is_done:
                with suppress(OSError):
                    self._remove_cleaned(segment.base_offset)
        return CleanedSegment(segment.base_offset, segment.size)

    def _copy(self, found: FoundBatch, segment: Segment, rules: Pass, aborted: list[AbortedTxn]) -> None:
        header = found.header
        if header.is_control:
            is_hollow, entry = self._cleaning.end(header, read_marker(found.view))
            aborted += () if entry is None else (entry,)
        else:
            is_hollow = self._cleaning.is_aborted(header)
        # The last batch of a pass stays too: the log must not seem to end earlier than it did.
        is_last_of_producer = self._last_of_producer.get(header.producer_id, (-1, 0))[0] == header.last_offset
        keep_empty = is_last_of_producer or header.next_offset == self.end
        batch = filtered(header, memoryview(found.view), rules, keep_empty=keep_empty, is_hollow=is_hollow)
        if batch is not None:
            max_timestamp = read_header(batch).max_timestamp
            segment.append(batch, header.last_offset, max_timestamp, self._config.index_interval_bytes)

    def _new_segment(self, base_offset: Offset) -> Segment:
        segment = Segment(
            fs=self._fs,
            limits=SegmentLimits(files_max=1),
            directory=self._directory,
            base_offset=base_offset,
            created_ms=self._now_ms,
            size=0,
            suffix=CLEANED_SUFFIX,
        )
        segment.start_empty()
        return segment

    def _remove_cleaned(self, base_offset: Offset) -> None:
        for kind in SEGMENT_SUFFIXES:
            path = segment_path(self._directory, base_offset, kind) + CLEANED_SUFFIX
            if self._fs.exists(path):
                self._fs.remove(path)

    def _batches(self, segment: Closed) -> Iterator[FoundBatch]:
        with closing(self._fs.open(self._path(segment))) as file:
            for found in scan_batches(file.read, 0, segment.size, segment.base_offset):
                if found.header.next_offset > segment.end_offset:  # The checksum does not cover the base offset.
                    raise BadBatch(found.position, f"offset {found.header.last_offset} is beyond the segment")
                yield found

    def _path(self, segment: Closed) -> str:
        return segment_path(self._directory, segment.base_offset, LOG_SUFFIX)


def _cost(found: FoundBatch) -> int:
    return found.header.size + found.header.records_count * RECORD_COST_BYTES
