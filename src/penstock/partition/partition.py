"""One partition as this broker hosts it: leading, following, or waiting to be told; append, read, who waits for what.

    log_start <= high_watermark <= log_end

A leader's high watermark is what every in-sync replica has (replica_state.py). With `penstock.durability=fsync` to have
is to have synced, so a record that a consumer has seen, or a producer was promised, outlives a power cut everywhere.
With `os` it is to have written. A follower copies the leader's batches as they are and learns the high watermark late.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import NamedTuple
from uuid import UUID

from penstock.base.clock import Clock
from penstock.base.errors import ErrorCode, Refused
from penstock.base.logging import get_logger
from penstock.base.steps import Steps, run_now
from penstock.base.topic_config import TopicConfig
from penstock.base.types import NO_EPOCH, NO_TIMESTAMP, LeaderEpoch, NodeId, Offset, TopicPartition
from penstock.cluster.image import PartitionState
from penstock.partition.batch_check import Prepared, check_batch, prepare, topic_codec
from penstock.partition.epoch_checkpoint import EpochCheckpoint
from penstock.partition.producer_files import ProducerFiles
from penstock.partition.producer_state import ProducerState
from penstock.partition.replica_state import ReplicaState
from penstock.partition.verification_guards import VerificationGuard
from penstock.partition.waiters import Waiters
from penstock.storage.fs import Buffer, FileSystem
from penstock.storage.log import Log
from penstock.storage.log_manager import LogManager
from penstock.storage.log_slice import LogSlice
from penstock.storage.scan import sound_batches
from penstock.storage.txn_index import AbortedTxn
from penstock.wire.batch import (
    HEADER_BYTES,
    NO_PRODUCER_ID,
    TRANSACTIONAL_MASK,
    BatchHeader,
    CorruptBatch,
    Record,
    build_batch,
    read_header,
    stamp,
    stamp_append_time,
)
from penstock.wire.txn_marker import EndTxnMarker, build_marker, read_marker

log = get_logger(__name__)

EPOCH_BUMPED_VERSION = 2  # From this transaction version on a marker's epoch is new (KIP-890).

# Told the error code once it is known whether an append is committed.
Committed = Callable[[ErrorCode], None]


class Appended:
    """Where a batch is. A plain class: compiled, it is made in an eighth of the time that a named tuple takes."""

    __slots__ = ("base_offset", "log_append_time", "next_offset")

    def __init__(self, base_offset: Offset, next_offset: Offset, log_append_time: int) -> None:
        self.base_offset = base_offset
        self.next_offset = next_offset
        self.log_append_time = log_append_time  # NO_TIMESTAMP when the records keep the producer's time.


class Marker(NamedTuple):
    """The end of a producer's transaction, as it was written to the log."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool
    offset: Offset


class Partition:
    def __init__(
        self,
        *,
        topic_partition: TopicPartition,
        topic_id: UUID,
        node_id: NodeId,
        partition_log: Log,
        logs: LogManager,
        fs: FileSystem,
        clock: Clock,
        decompressed_bytes_max: int,
        may_lead: Callable[[], bool] | None = None,
        look_at_isr: "Callable[[Partition], None]" = lambda partition: None,
    ) -> None:
        """`look_at_isr` is called when a follower may have come back in sync.

        `may_lead` says whether the broker's lease lets it act as a leader now; None: nobody can take it away.
        """
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.log = partition_log
        self.leader_epoch = NO_EPOCH  # As the image last had it, whoever leads.
        self.leading: ReplicaState | None = None  # While this broker leads.
        self.is_following = False  # Another broker leads, and we copy from it.
        self.high_watermark = Offset(0)
        self.is_truncating = False  # Then its role cannot change.
        self.on_copies_safe: Callable[[], None] = lambda: None  # The fetcher's: what was copied is on disk, or lost.
        # Of who keeps state for this partition: told of each marker in the step in which the leader appends it.
        self.on_marker: Callable[[Marker], None] | None = None
        self.decompressed_bytes_max = decompressed_bytes_max
        self._node_id = node_id
        self._logs = logs
        self._commit = logs.commit
        self._clock = clock
        self._may_lead = may_lead
        self._look_at_isr = look_at_isr
        self._epoch_start = Offset(0)  # Where the log ended when this broker became the leader.
        self._wanted: PartitionState | None = None  # What the image said while we were truncating.
        self._checkpoint = EpochCheckpoint(fs=fs, partition_log=partition_log)
        self.producers = ProducerState()
        self._producer_files = ProducerFiles(fs=fs, partition_log=partition_log)
        # In order of offset, but for retries that are answered with the offset of their first try: those just wait
        # for the ones before them.
        self._uncommitted: deque[tuple[Offset, Committed]] = deque()
        self.waiters = Waiters(self)

    def open(self, high_watermark: Offset) -> None:
        """Take up a log that has been recovered; its high watermark was once noted to be at least so far."""
        self.log.on_synced = self._on_synced
        self.log.on_failed = self._on_failed
        self.high_watermark = max(self.log.log_start, min(high_watermark, self.log.synced_end))
        self._checkpoint.load()
        self._load_producers()
        # Inside an append that rolls, `producers` is the state of all batches before it, which is what is wanted.
        self.log.on_rolled = self.store_producers

    def _load_producers(self) -> None:
        self.producers = self._producer_files.load(self._clock.now_ms())
        self.producers.transactions.on_high_watermark(self.high_watermark)

    # Roles

    def take_role(self, state: PartitionState) -> None:
        """Lead or follow, as the image says."""
        if self.is_truncating:
            self.resign()
            self._wanted = state
        elif state.leader == self._node_id:
            self._lead(state)
        elif not self.is_following or self.leader_epoch != state.leader_epoch:
            self.resign()
            self.leader_epoch = state.leader_epoch
            self.is_following = True
            # An epoch in which we have led and stored nothing is not part of our history.
            self._checkpoint.forget_empty()
            if not self.is_safe:
                self._commit.request(self.log)

    def _lead(self, state: PartitionState) -> None:
        leading = self.leading
        if leading is not None and leading.leader_epoch == state.leader_epoch:
            leading.high_watermark, leading.log_end = self.high_watermark, self.log.log_end
            leading.on_decided(
                partition_epoch=state.partition_epoch,
                replicas=state.replicas,
                isr=state.isr,
                is_recovering=state.is_recovering,
                now_s=self._clock.monotonic(),
                isr_min=self.isr_min,
            )
            if len(leading.isr) < self.isr_min:
                # Written, but nobody promises it before enough replicas are back; the client is to ask again.
                self.fail_uncommitted(ErrorCode.not_enough_replicas_after_append)
        else:
            self.resign()
            self.leader_epoch = state.leader_epoch
            self._epoch_start = self.log.log_end
            self.leading = ReplicaState(
                node_id=self._node_id,
                leader_epoch=state.leader_epoch,
                partition_epoch=state.partition_epoch,
                replicas=state.replicas,
                isr=state.isr,
                is_recovering=state.is_recovering,
                log_end=self.log.log_end,
                high_watermark=self.high_watermark,
                now_s=self._clock.monotonic(),
            )
            if self._is_durable and self.log.needs_flush:
                self._commit.request(self.log)
        self._on_safe(self.safe_end)

    def resign(self) -> None:
        """Neither lead nor follow until the image says so anew."""
        self._wanted = None
        if self.leading is not None or self.is_following:
            self.leading, self.is_following = None, False
            self._epoch_start = Offset(0)
            self.waiters.on_cut()
            self.fail_uncommitted(ErrorCode.not_leader_or_follower)
            self.waiters.wake_all()

    def take_config(self, config: TopicConfig) -> None:
        """What the topic's settings are from now on."""
        self.log.config = config
        if self._is_durable and not self.is_safe:
            self._commit.request(self.log)  # What has been left to the kernel: a fetcher waits for that.

    @property
    def isr_min(self) -> int:
        """How many replicas have to be in sync; never more than there are."""
        assert self.leading is not None
        return min(self.log.config.min_insync_replicas, self.leading.replica_count)

    def check_in_sync(self) -> None:
        """Refused when too few replicas are in sync to promise anything."""
        leading = self.leading
        if (
            leading is not None
            and len(leading.isr) < self.log.config.min_insync_replicas
            and not leading.is_alone
            and len(leading.isr) < self.isr_min
        ):
            raise Refused(
                ErrorCode.not_enough_replicas, f"{len(leading.isr)} replicas are in sync, {self.isr_min} are needed"
            )

    @property
    def may_lead(self) -> bool:
        """Whether the broker's lease lets it speak for this partition now."""
        return self._may_lead is None or self._may_lead()

    def _check_leading(self) -> None:
        if self.leading is None:
            raise Refused(ErrorCode.not_leader_or_follower, f"{self.topic_partition} is led by another broker")
        if not self.may_lead:
            raise Refused(ErrorCode.not_leader_or_follower, "the broker has not heard from the metadata store")

    @property
    def _is_durable(self) -> bool:
        return self.log.config.durability == "fsync"

    @property
    def safe_end(self) -> Offset:
        """Up to where this replica's own log keeps what it was given."""
        return self.log.synced_end if self._is_durable else self.log.log_end

    @property
    def is_safe(self) -> bool:
        """Whether all that this replica has is safe."""
        return self.safe_end == self.log.log_end

    @property
    def config(self) -> TopicConfig:
        return self.log.config

    @property
    def log_start(self) -> Offset:
        return self.log.log_start

    @property
    def last_stable_offset(self) -> Offset:
        """Up to where all transactions are decided, and committed or aborted for good."""
        unstable = self.producers.transactions.first_unstable
        if unstable is None or unstable >= self.high_watermark:
            return self.high_watermark
        return max(unstable, self.log.log_start)

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

    def append(
        self,
        view: memoryview,
        *,
        produce_version: int,
        prepared: Prepared | None = None,
        is_transactional: bool = False,
        guard: VerificationGuard | None = None,
    ) -> Appended:
        """Store one batch, stamped in place; Refused when it or the disk is not fit for it, or we do not lead.

        Only who sends with a transactional id may send a transactional batch. The first of a transaction needs the
        guard of `begin_verification`.
        """
        if self.leading is None or (self._may_lead is not None and not self._may_lead()):
            try:
                self._check_leading()
            except Refused as refused:
                self.on_refused(view, refused.code)
                raise
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
            if header.attributes & TRANSACTIONAL_MASK:
                if not is_transactional:
                    raise Refused(
                        ErrorCode.transactional_id_authorization_failed, "the request has no transactional id"
                    )
                self._check_transactional(header, guard)
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
            next_offset = self._store(batch, header.last_offset_delta, max_timestamp, header, now_ms)
        except Refused as refused:
            if header.producer_id != NO_PRODUCER_ID:
                self.producers.on_refused(header, refused.code)
            raise
        self._producer_files.on_appended(self.producers, len(batch))
        return Appended(base_offset, next_offset, append_time)

    def on_refused(self, view: memoryview, code: ErrorCode) -> None:
        """A batch was refused and will be sent again, perhaps here: nothing sent after it is to overtake it."""
        if len(view) >= HEADER_BYTES:
            header = read_header(view)
            if header.producer_id != NO_PRODUCER_ID:
                self.producers.on_refused(header, code)

    def append_own(
        self,
        records: Sequence[Record],
        *,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = -1,
        guard: VerificationGuard | None = None,
    ) -> Offset:
        """Store records of the broker itself (their offsets are assigned here) as one batch; gives the next offset.

        With a producer id they are a part of its transaction, and have no sequence; the first needs a guard.
        """
        self._check_leading()
        self.check_in_sync()
        is_transactional = producer_id != NO_PRODUCER_ID
        base_offset = self.log.log_end
        numbered = [record._replace(offset=base_offset + number) for number, record in enumerate(records)]
        batch = build_batch(
            numbered,
            base_offset=base_offset,
            leader_epoch=self.leader_epoch,
            attributes=TRANSACTIONAL_MASK if is_transactional else 0,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
        )
        if len(batch) > self.config.max_message_bytes:
            raise Refused(ErrorCode.message_too_large, f"batch of {len(batch)} bytes")
        header = None
        if is_transactional:
            header = read_header(batch)
            self.producers.check_epoch(header)
            self._check_transactional(header, guard)
        timestamp = max(record.timestamp for record in records)
        next_offset = self._store(batch, len(records) - 1, timestamp, header, self._clock.now_ms())
        if is_transactional:
            self._producer_files.on_appended(self.producers, len(batch))
        return next_offset

    def begin_verification(
        self, producer_id: int, producer_epoch: int, first_sequence: int, *, begins_at_zero: bool
    ) -> VerificationGuard | None:
        """The guard for a transactional batch, once the coordinator has said that its transaction is ongoing.

        None when it is open here: then nobody needs to be asked. `begins_at_zero`: its epoch is of this transaction
        alone.
        """
        self._check_leading()
        if self.producers.has_open_transaction(producer_id, producer_epoch):
            return None
        return self.producers.guards.begin(producer_id, producer_epoch, first_sequence, begins_at_zero=begins_at_zero)

    def _check_transactional(self, header: BatchHeader, guard: VerificationGuard | None) -> None:
        """Refused unless the batch belongs to an open transaction, or may begin one."""
        producers = self.producers
        if not producers.has_open_transaction(header.producer_id, header.producer_epoch):
            producers.guards.check(header, guard, is_producer_known=header.producer_id in producers.producers)
        if not self.log.has_transactions:
            self.log.begin_transactions()

    def append_marker(
        self,
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        is_commit: bool,
        transaction_version: int,
    ) -> Offset:
        """End a producer's transaction; gives the offset up to which the log must be committed for that to hold.

        Refused with INVALID_PRODUCER_EPOCH or TRANSACTION_COORDINATOR_FENCED when another has taken over, and as any
        append when it cannot be stored now.
        """
        self._check_leading()
        self.check_in_sync()
        is_epoch_new = transaction_version >= EPOCH_BUMPED_VERSION
        if not self.producers.check_marker(producer_id, producer_epoch, coordinator_epoch, is_epoch_new=is_epoch_new):
            return self.log.log_end
        marker, now_ms, offset = EndTxnMarker(is_commit, coordinator_epoch), self._clock.now_ms(), self.log.log_end
        batch = build_marker(
            marker,
            base_offset=offset,
            leader_epoch=self.leader_epoch,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            timestamp=now_ms,
        )
        aborted = None if is_commit else self.producers.transactions.aborted(producer_id, offset)
        next_offset = self._store(batch, 0, now_ms, read_header(batch), now_ms, marker, aborted)
        self._producer_files.on_appended(self.producers, len(batch))
        if self.on_marker is not None:
            self.on_marker(Marker(producer_id, producer_epoch, coordinator_epoch, is_commit, offset))
        return next_offset

    def _store(
        self,
        batch: bytearray | memoryview,
        last_offset_delta: int,
        max_timestamp: int,
        header: BatchHeader | None = None,
        now_ms: int = 0,
        marker: EndTxnMarker | None = None,
        aborted: AbortedTxn | None = None,
    ) -> Offset:
        """Write a stamped batch and see to its commit; gives the next offset."""
        partition_log, leading = self.log, self.leading
        assert leading is not None, f"{self.topic_partition} is not led here"
        base_offset = partition_log.log_end
        if not self._checkpoint.goes_on(self.leader_epoch):
            self._checkpoint.begin(self.leader_epoch, base_offset)
        partition_log.append(batch, base_offset + last_offset_delta, max_timestamp, aborted)
        log_end = leading.log_end = partition_log.log_end
        if header is not None and header.producer_id != NO_PRODUCER_ID:
            # Before the high watermark moves: readers of committed data stop where a transaction begins.
            self.producers.apply(header, base_offset, now_ms, marker)
        self.waiters.on_appended(log_end, len(batch))
        if partition_log.config.durability == "fsync":
            self._commit.request(partition_log)
        elif len(leading.isr) > 1:
            leading.safe_end = log_end  # That commits nothing: a follower has to have it first, and will ask.
        else:
            self._on_safe(log_end)
        return log_end

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
        if self._is_durable:
            self._on_safe(self.log.synced_end)

    def _on_failed(self) -> None:
        self.fail_uncommitted(ErrorCode.kafka_storage_error)
        self.on_copies_safe()

    def _on_safe(self, safe_end: Offset) -> None:
        """Our own log is safe up to there: a leader sees what that commits, a follower's fetcher what it may fetch."""
        leading = self.leading
        if leading is None:
            self.on_copies_safe()
        elif leading.is_alone:
            leading.safe_end = safe_end
            self._commit_up_to(safe_end)
        else:
            leading.on_safe(safe_end, isr_min=self.isr_min)
            self._commit_up_to(leading.high_watermark)

    def commit_again(self) -> None:
        """Commit what could not be committed while the broker's lease had run out."""
        if self.leading is not None:
            self._on_safe(self.safe_end)

    def _commit_up_to(self, offset: Offset) -> None:
        # Who may not lead any more says nothing: another may have been elected, and not have these records.
        if self._may_lead is None or self._may_lead():
            self._advance(offset)

    def _advance(self, offset: Offset) -> None:
        assert self.log.log_start <= offset <= self.log.log_end or offset <= self.high_watermark, (
            f"{self.topic_partition}: {offset=} {self.log.log_start=} {self.log.log_end=}"
        )
        if offset <= self.high_watermark:
            return
        self.high_watermark = offset
        transactions = self.producers.transactions
        if transactions.first_unstable is not None:
            transactions.on_high_watermark(offset)
        uncommitted = self._uncommitted
        while uncommitted and uncommitted[0][0] <= offset:
            uncommitted.popleft()[1](ErrorCode.none)
        self.waiters.on_committed(offset)

    def fail_uncommitted(self, code: ErrorCode) -> None:
        """Tell everyone who waits for a commit that it will not come."""
        while self._uncommitted:
            self._uncommitted.popleft()[1](code)

    def store_producers(self) -> None:
        """Take a snapshot of the producers, if anything was appended since the last one."""
        self._producer_files.take_snapshot(self.producers)

    # Reading

    def read(
        self, start: Offset, bytes_max: int, *, at_least_one: bool, only_stable: bool = False
    ) -> Buffer | LogSlice:
        """Committed batches from the one with `start` on; empty at the end. NotCached: see `Segment.read`.

        `only_stable`: none of a transaction that is undecided, nor what is behind it.
        """
        if self.leading is None and not self.is_following:
            self._check_leading()
        if self.high_watermark < self._epoch_start:
            self.check_settled()
        if not self.log.log_start <= start <= self.high_watermark:
            if not self.log.log_start <= start <= self.log.log_end:
                raise Refused(
                    ErrorCode.offset_out_of_range,
                    f"offset {start} is not in [{self.log.log_start}, {self.high_watermark}]",
                )
            return b""
        if start == self.high_watermark:
            return b""
        end = self.last_stable_offset if only_stable else self.high_watermark
        found = self.log.slice(start, bytes_max, end)
        return found if found is not None else self.log.read(start, bytes_max, end, at_least_one=at_least_one)

    def aborted(self, start: Offset, end: Offset) -> list[AbortedTxn]:
        """The aborted transactions with records in [start, end): readers of committed data skip those."""
        return self.log.aborted(start, end)

    def check_settled(self) -> None:
        """Refused while a new leader does not know whether all that it has was committed (KIP-207).

        The leader before it may have told its clients of a higher watermark than it knows of. So may the one after it,
        when the broker's lease has run out.
        """
        if self.leading is not None:
            self._check_leading()
        if self.high_watermark < self._epoch_start:
            raise Refused(
                ErrorCode.offset_not_available, f"the high watermark is not known from {self._epoch_start} on"
            )

    # Followers of ours

    def on_follower_fetch(
        self, node_id: NodeId, broker_epoch: int, offset: Offset, last_epoch: LeaderEpoch
    ) -> tuple[LeaderEpoch, Offset] | None:
        """A follower has everything below `offset`, the last record of `last_epoch`.

        Gives the epoch and its end here after which the follower's log is another than ours; None when it is the same.
        Refused when it does not follow us, or has too little to go on with.
        """
        self._check_leading()
        leading = self.leading
        assert leading is not None
        if not leading.is_follower(node_id):
            raise Refused(ErrorCode.unknown_topic_or_partition, f"broker {node_id} has no replica")
        if last_epoch != NO_EPOCH:
            diverging = self._checkpoint.epochs.divergence(last_epoch, offset, self.log.log_end)
            if diverging is not None:
                return diverging
        if not self.log.log_start <= offset <= self.log.log_end:
            raise Refused(
                ErrorCode.offset_out_of_range, f"offset {offset} is not in [{self.log.log_start}, {self.log.log_end}]"
            )
        leading.on_fetch(node_id, broker_epoch, offset, self._clock.monotonic(), isr_min=self.isr_min)
        if node_id not in leading.isr:
            self._look_at_isr(self)
        if leading.high_watermark > self.high_watermark:
            self._commit_up_to(leading.high_watermark)
        return None

    def read_all(self, start: Offset, bytes_max: int, *, at_least_one: bool) -> Buffer:
        """Batches from `start` on, committed or not, for a follower. NotCached: see `Segment.read`."""
        return self.log.read(start, bytes_max, self.log.log_end, at_least_one=at_least_one)

    # Following

    @property
    def copied_end(self) -> tuple[Offset, LeaderEpoch]:
        """From where to copy on, and the epoch of the record before that. All below it is safe with us."""
        return self.safe_end, self._checkpoint.epochs.latest

    def copy(self, records: memoryview) -> None:
        """Append a leader's batches as they are; CorruptBatch or Refused when they or the disk are not fit for it."""
        try:
            self._copy(records)
        finally:
            # Also of those in front of one that is refused: whoever fetches on waits until they are safe.
            if self._is_durable and not self.is_safe:
                self._commit.request(self.log)

    def _copy(self, records: memoryview) -> None:
        """Batches in a row are written at once: to write one costs as much as all else that is done for it."""
        now_ms = self._clock.now_ms()
        row: list[BatchHeader] = []
        row_start = position = 0
        try:
            for header in sound_batches(records, self.log.log_end):
                end = position + header.size
                if self._is_one_of_a_row(header):
                    row.append(header)
                else:
                    self._copy_row(records[row_start:position], row, now_ms)
                    row, row_start = [], end
                    self._copy_one(records[position:end], header, now_ms)
                position = end
        except CorruptBatch:
            self._copy_row(records[row_start:position], row, now_ms)  # Those in front of it are sound.
            raise
        self._copy_row(records[row_start:position], row, now_ms)

    def _is_one_of_a_row(self, header: BatchHeader) -> bool:
        """Whether nothing but its records changes with the batch."""
        return self._checkpoint.goes_on(LeaderEpoch(header.partition_leader_epoch)) and (
            not header.attributes & TRANSACTIONAL_MASK or (self.log.has_transactions and not header.is_control)
        )

    def _copy_row(self, batches: memoryview, headers: list[BatchHeader], now_ms: int) -> None:
        if self.log.takes_at_once(headers):
            self.log.append_all(batches, headers)
            for header in headers:
                self._on_copied(header, now_ms)
            self._producer_files.on_appended(self.producers, len(batches))
            return
        position = 0
        for header in headers:
            self._copy_one(batches[position : position + header.size], header, now_ms)
            position += header.size

    def _copy_one(self, batch: memoryview, header: BatchHeader, now_ms: int) -> None:
        epoch = LeaderEpoch(header.partition_leader_epoch)
        if not self._checkpoint.goes_on(epoch):
            self._checkpoint.begin(epoch, Offset(header.base_offset))
        marker = aborted = None
        if header.attributes & TRANSACTIONAL_MASK:
            if not self.log.has_transactions:
                self.log.begin_transactions()
            if header.is_control:
                marker = read_marker(batch)
            if marker is not None and not marker.is_commit:
                aborted = self.producers.transactions.aborted(header.producer_id, Offset(header.base_offset))
        self.log.append(batch, header.last_offset, header.max_timestamp, aborted)
        self._on_copied(header, now_ms, marker)
        self._producer_files.on_appended(self.producers, len(batch))

    def _on_copied(self, header: BatchHeader, now_ms: int, marker: EndTxnMarker | None = None) -> None:
        self.waiters.on_appended(Offset(header.next_offset), header.size)
        if header.producer_id != NO_PRODUCER_ID:
            self.producers.apply(header, header.base_offset, now_ms, marker)

    def on_leader_offsets(self, high_watermark: Offset, log_start: Offset) -> None:
        """What the leader told of its log: what is committed, and what it no longer has."""
        self._advance(min(high_watermark, self.log.log_end))
        if log_start > self.log.log_start:
            self.log.advance_start(min(log_start, self.high_watermark))

    async def truncate(self, diverging: tuple[LeaderEpoch, Offset]) -> None:
        """Cut off what the leader does not have, as far as its answer tells; then it is to be asked again."""
        offset = self._checkpoint.epochs.truncation(diverging, self.log.log_end)
        await self._shorten(lambda: self._logs.truncate(self.log, offset))

    async def start_over(self, log_start: Offset) -> None:
        """Drop everything and begin at `log_start`, where the leader's log begins: ours ends before that."""
        await self._shorten(lambda: self._logs.start_over(self.log, log_start))

    def base_to_begin_at(self, records: memoryview) -> Offset | None:
        """Where this log has to begin for a leader's batch: the leader's log starts inside of that, and ours is empty.

        None: it goes on where it ends.
        """
        if self.log.active.size or len(records) < HEADER_BYTES:
            return None
        header = read_header(records)
        if self.log.size or not header.base_offset < self.log.log_end <= header.last_offset:
            return None
        with suppress(CorruptBatch):  # `copy` tells what is wrong with it.
            next(sound_batches(records, Offset(0)))
            return Offset(header.base_offset)
        return None

    async def begin_at(self, base: Offset) -> None:
        """Have the log, which is empty, begin earlier, at the first offset of a batch; then that can be copied."""

        async def move_back() -> None:
            await self._logs.truncate(self.log, base)
            self.high_watermark = min(self.high_watermark, base)  # No record was committed in between that was here.

        await self._shorten(move_back)

    async def _shorten(self, shorten: Callable[[], Awaitable[None]]) -> None:
        assert self.leading is None, f"{self.topic_partition} is led here and cut"
        self.is_truncating = True
        self.waiters.on_cut()
        end = self.log.log_end
        try:
            try:
                await shorten()
            except BaseException:  # A stop, say, in the last sync.
                if self.log.failure is not None:
                    self.producers = ProducerState()
                elif self.log.log_end != end:
                    self._on_shortened()
                raise
            self._on_shortened()
        finally:
            self.is_truncating = False
            if self._is_durable and not self.is_safe:
                self._commit.request(self.log)  # It could not be cut, and is no longer known to be synced.
            wanted, self._wanted = self._wanted, None
            if wanted is not None:
                self.take_role(wanted)

    def _on_shortened(self) -> None:
        """Know no more of what the log has lost: a producer that sends it again is not to hear that it is there."""
        if self.high_watermark > self.log.log_end:
            log.warning(
                "committed records were cut off: the leader was elected without them",
                partition=self.topic_partition,
                first=self.log.log_end,
                end=self.high_watermark,
            )
        self.high_watermark = max(self.log.log_start, min(self.high_watermark, self.log.log_end))
        self._checkpoint.on_cut()
        try:
            self._load_producers()
        except OSError as error:
            self.producers = ProducerState()
            self.log.fail(f"its producers cannot be known: {error}")
            raise
        self._checkpoint.store()

    # Offsets

    def end_offset_for(self, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
        """See `LeaderEpochs.end_offset_for`; the current epoch ends at the log's end."""
        if epoch == self.leader_epoch:
            return epoch, self.log.log_end
        return self._checkpoint.epochs.end_offset_for(epoch, self.log.log_end)

    def epoch_at(self, offset: Offset) -> LeaderEpoch:
        """The leader epoch of the record at `offset`, or of the next one to come."""
        for epoch, start in reversed(self._checkpoint.epochs.entries):
            if start <= offset:
                return epoch
        return self.leader_epoch

    def delete_records(self, before: Offset) -> Offset:
        """Make everything below `before` unreadable (-1: below the high watermark); gives the new start."""
        self._check_leading()
        target = self.high_watermark if before == -1 else before
        if not 0 <= target <= self.high_watermark:
            raise Refused(ErrorCode.offset_out_of_range, f"the high watermark is {self.high_watermark}")
        self.log.advance_start(target)
        return self.log.log_start
