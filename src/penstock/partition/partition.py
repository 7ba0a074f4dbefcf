"""One partition that this broker leads: append, read, and who waits for what.

    log_start <= high_watermark <= log_end

With `penstock.durability=fsync` the high watermark is what has been synced, so a record that a consumer has seen, or a
producer was promised, outlives a power cut. With `os` it is what has been written.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple
from uuid import UUID

from penstock.base.clock import Clock
from penstock.base.errors import ErrorCode, Refused
from penstock.base.logging import get_logger
from penstock.base.steps import Steps, run_now
from penstock.base.topic_config import TopicConfig
from penstock.base.types import NO_EPOCH, NO_TIMESTAMP, LeaderEpoch, Offset, TopicPartition
from penstock.partition.batch_check import Prepared, check_batch, prepare, topic_codec
from penstock.partition.leader_epochs import LeaderEpochs
from penstock.partition.producer_files import ProducerFiles
from penstock.partition.producer_state import ProducerState
from penstock.storage.checkpoint import encode_lines, read_epochs
from penstock.storage.format import LEADER_EPOCH_CHECKPOINT
from penstock.storage.fs import Buffer, FileSystem
from penstock.storage.group_commit import GroupCommit
from penstock.storage.log import Log
from penstock.wire.batch import NO_PRODUCER_ID, Record, build_batch, read_header, stamp, stamp_append_time

log = get_logger(__name__)

# Told the error code once it is known whether an append is committed.
Committed = Callable[[ErrorCode], None]
# Told how many bytes have become readable; a waiter counts them against its `min_bytes`.
Readable = Callable[[int], None]


class Appended(NamedTuple):
    base_offset: Offset
    next_offset: Offset
    log_append_time: int  # NO_TIMESTAMP when the records keep the producer's time.


class Partition:
    def __init__(
        self,
        *,
        topic_partition: TopicPartition,
        topic_id: UUID,
        partition_log: Log,
        commit: GroupCommit,
        fs: FileSystem,
        clock: Clock,
        leader_epoch: LeaderEpoch,
        decompressed_bytes_max: int,
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.log = partition_log
        self.leader_epoch = leader_epoch
        self.high_watermark = Offset(0)
        self.decompressed_bytes_max = decompressed_bytes_max
        self._commit = commit
        self._fs = fs
        self._clock = clock
        self._epochs = LeaderEpochs()
        self.producers = ProducerState()
        self._producer_files = ProducerFiles(fs=fs, partition_log=partition_log)
        # In order of offset, but for retries that are answered with the offset of their first try: those just wait
        # for the ones before them.
        self._uncommitted: deque[tuple[Offset, Committed]] = deque()
        self._waiting: dict[Readable, None] = {}  # A dict for its order: the first to wait is the first to be told.
        self._uncommitted_bytes: deque[tuple[Offset, int]] = deque()  # Next offset and size of each such batch.
        self._readable_bytes = 0  # Committed since the waiters were last told.
        self._wake_up: asyncio.Handle | None = None

    def open(self) -> None:
        """Take up leadership of a log that has been recovered."""
        self.log.on_synced = self._on_synced
        self.log.on_failed = lambda: self.fail_uncommitted(ErrorCode.kafka_storage_error)
        self.high_watermark = self.log.synced_end
        entries = read_epochs(self._fs, f"{self.log.directory}/{LEADER_EPOCH_CHECKPOINT}")
        self._epochs = LeaderEpochs(self._epochs_from_log() if entries is None else entries)
        self._epochs.truncate_end(self.log.log_end)
        self.producers = self._producer_files.load(self._clock.now_ms())
        # Inside an append that rolls, `producers` is the state of all batches before it, which is what is wanted.
        self.log.on_rolled = self.store_producers

    def _epochs_from_log(self) -> list[tuple[LeaderEpoch, Offset]]:
        """The epochs as the batches themselves tell them; for a checkpoint that is missing or damaged."""
        epochs = LeaderEpochs()
        for segment in self.log.segments:
            position = 0
            while position < segment.size:
                header = read_header(segment.file.read(position, 61))
                epochs.assign(LeaderEpoch(header.partition_leader_epoch), Offset(header.base_offset))
                position += header.size
        return epochs.entries

    @property
    def config(self) -> TopicConfig:
        return self.log.config

    @property
    def log_start(self) -> Offset:
        return self.log.log_start

    @property
    def last_stable_offset(self) -> Offset:
        """First offset that an open transaction holds back; there are no transactions yet."""
        return self.high_watermark

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Refused unless the client's idea of the leader epoch is ours (KIP-320); -1 is no idea."""
        if current_leader_epoch in (NO_EPOCH, self.leader_epoch):
            return
        if current_leader_epoch < self.leader_epoch:
            raise Refused(ErrorCode.fenced_leader_epoch, f"leader epoch is {self.leader_epoch}")
        raise Refused(ErrorCode.unknown_leader_epoch, f"leader epoch is {self.leader_epoch}")

    # Appending

    def prepare(self, view: memoryview, *, produce_version: int) -> Steps[Prepared]:
        """What `append` would take long for with this batch, in steps; Refused as there."""
        return prepare(
            view,
            self.config,
            produce_version=produce_version,
            now_ms=self._clock.now_ms(),
            decompressed_bytes_max=self.decompressed_bytes_max,
        )

    def append(self, view: memoryview, *, produce_version: int, prepared: Prepared | None = None) -> Appended:
        """Store one batch, stamped in place; Refused when it or the disk is not fit for it."""
        partition_log, config = self.log, self.log.config
        now_ms = self._clock.now_ms()
        header = check_batch(
            view,
            config,
            produce_version=produce_version,
            now_ms=now_ms,
            decompressed_bytes_max=self.decompressed_bytes_max,
            are_records_checked=prepared is not None,
        )
        if header.producer_id != NO_PRODUCER_ID:
            stored = self.producers.check(header)
            if stored is not None:
                # A retry of what is in the log already: the first answer again, once it is committed.
                append_time = NO_TIMESTAMP if config.message_timestamp_type == "CreateTime" else stored.timestamp
                return Appended(Offset(stored.base_offset), Offset(stored.last_offset + 1), append_time)
        batch: bytearray | memoryview = view
        if config.compression_type != "producer" and topic_codec(config, header) != header.codec:
            # Not prepared: it is short. Or the setting has just been changed, and this batch is late.
            known = prepared or run_now(self.prepare(view, produce_version=produce_version))
            if known.recompressed is not None:
                batch, header = known.recompressed, read_header(known.recompressed)
        max_timestamp, append_time = header.max_timestamp, NO_TIMESTAMP
        if config.message_timestamp_type != "CreateTime":
            stamp_append_time(batch, 0, header, now_ms)
            max_timestamp = append_time = now_ms
        base_offset = partition_log.log_end
        stamp(batch, 0, base_offset, self.leader_epoch)
        try:
            next_offset = self._store(batch, header.last_offset_delta, max_timestamp)
        except Refused:
            if header.producer_id != NO_PRODUCER_ID:
                self.producers.on_refused(header)
            raise
        if header.producer_id != NO_PRODUCER_ID:
            self.producers.apply(header, base_offset, now_ms)
        self._producer_files.on_appended(self.producers, len(batch))
        return Appended(base_offset, next_offset, append_time)

    def append_own(self, records: Sequence[Record]) -> Offset:
        """Store records of the broker itself (their offsets are assigned here) as one batch; gives the next offset."""
        base_offset = self.log.log_end
        numbered = [record._replace(offset=base_offset + number) for number, record in enumerate(records)]
        batch = build_batch(numbered, base_offset=base_offset, leader_epoch=self.leader_epoch)
        if len(batch) > self.config.max_message_bytes:
            raise Refused(ErrorCode.message_too_large, f"batch of {len(batch)} bytes")
        return self._store(batch, len(records) - 1, max(record.timestamp for record in records))

    def _store(self, batch: bytearray | memoryview, last_offset_delta: int, max_timestamp: int) -> Offset:
        """Write a stamped batch and see to its commit; gives the next offset."""
        partition_log = self.log
        if self.leader_epoch != self._epochs.latest:
            self._begin_epoch()
        last_offset = partition_log.log_end + last_offset_delta
        partition_log.append(batch, last_offset, max_timestamp)
        if partition_log.config.durability == "fsync":
            self._uncommitted_bytes.append((partition_log.log_end, len(batch)))
            self._commit.request(partition_log)
        else:
            self._readable_bytes += len(batch)
            self._advance(partition_log.log_end)
        return partition_log.log_end

    def _begin_epoch(self) -> None:
        if self._epochs.assign(self.leader_epoch, self.log.log_end):
            entries = (f"{epoch} {start}" for epoch, start in self._epochs.entries)
            try:
                self.log.put_side_file(LEADER_EPOCH_CHECKPOINT, encode_lines(entries))
            except OSError as error:
                self._epochs.entries.pop()
                raise Refused(ErrorCode.kafka_storage_error, str(error)) from error

    def when_committed(self, next_offset: Offset, callback: Committed) -> bool:
        """Whether everything below `next_offset` is committed; if not yet, `callback` will be told."""
        if self.high_watermark >= next_offset:
            return True
        if self.log.failure is None:
            self._uncommitted.append((next_offset, callback))
        else:  # Nobody will sync it any more.
            asyncio.get_running_loop().call_soon(callback, ErrorCode.kafka_storage_error)
        return False

    def _on_synced(self) -> None:
        self._advance(self.log.synced_end)

    def _advance(self, offset: Offset) -> None:
        assert self.log.log_start <= offset <= self.log.log_end or offset <= self.high_watermark, (
            f"{self.topic_partition}: {offset=} {self.log.log_start=} {self.log.log_end=}"
        )
        if offset <= self.high_watermark:
            return
        self.high_watermark = offset
        batches = self._uncommitted_bytes
        while batches and batches[0][0] <= offset:
            self._readable_bytes += batches.popleft()[1]
        uncommitted = self._uncommitted
        while uncommitted and uncommitted[0][0] <= offset:
            uncommitted.popleft()[1](ErrorCode.none)
        if self._waiting and self._wake_up is None:
            # Once per turn of the loop: a burst of appends wakes a waiter once.
            self._wake_up = asyncio.get_running_loop().call_soon(self._tell_waiting)

    def fail_uncommitted(self, code: ErrorCode) -> None:
        """Tell everyone who waits for a commit that it will not come."""
        while self._uncommitted:
            self._uncommitted.popleft()[1](code)

    def store_producers(self) -> None:
        """Take a snapshot of the producers, if anything was appended since the last one."""
        self._producer_files.take_snapshot(self.producers)

    # Reading

    def read(self, start: Offset, bytes_max: int, *, at_least_one: bool) -> Buffer:
        """Committed batches from the one with `start` on; empty at the end. NotCached: see `Segment.read`."""
        if not self.log.log_start <= start <= self.high_watermark:
            if not self.log.log_start <= start <= self.log.log_end:
                raise Refused(
                    ErrorCode.offset_out_of_range,
                    f"offset {start} is not in [{self.log.log_start}, {self.high_watermark}]",
                )
            return b""
        if start == self.high_watermark:
            return b""
        return self.log.read(start, bytes_max, self.high_watermark, at_least_one=at_least_one)

    def wait(self, callback: Readable) -> None:
        """Tell `callback` whenever bytes have become readable, until `stop_waiting`."""
        if not self._waiting:
            self._readable_bytes = 0
        self._waiting[callback] = None

    def stop_waiting(self, callback: Readable) -> None:
        self._waiting.pop(callback, None)

    def _tell_waiting(self) -> None:
        self._wake_up = None
        count, self._readable_bytes = self._readable_bytes, 0
        for callback in list(self._waiting):
            callback(count)

    def wake_waiting(self) -> None:
        """Make every waiter look again at once: the partition is leaving or has failed."""
        for callback in list(self._waiting):
            callback(2**31)

    # Offsets

    def end_offset_for(self, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
        """See `LeaderEpochs.end_offset_for`; the current epoch ends at the log's end."""
        if epoch == self.leader_epoch:
            return epoch, self.log.log_end
        return self._epochs.end_offset_for(epoch, self.log.log_end)

    def epoch_at(self, offset: Offset) -> LeaderEpoch:
        """The leader epoch of the record at `offset`, or of the next one to come."""
        for epoch, start in reversed(self._epochs.entries):
            if start <= offset:
                return epoch
        return self.leader_epoch

    def delete_records(self, before: Offset) -> Offset:
        """Make everything below `before` unreadable (-1: below the high watermark); gives the new start."""
        target = self.high_watermark if before == -1 else before
        if not 0 <= target <= self.high_watermark:
            raise Refused(ErrorCode.offset_out_of_range, f"the high watermark is {self.high_watermark}")
        self.log.advance_start(target)
        return self.log.log_start
