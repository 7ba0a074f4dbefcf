"""One partition of a coordinator's topic at work: its state loaded, decisions appended, replies sent when committed.

A command is decided by the pure shard, its records are appended to the partition and applied, and the replies leave
when they are below the high watermark. What a client was told therefore survives a crash, by the same mechanism as
every other record.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

from penstock.base.clock import Clock
from penstock.base.errors import ErrorCode, Refused
from penstock.base.logging import get_logger
from penstock.base.timers import Timer, TimerWheel
from penstock.base.types import Offset
from penstock.coordinator.decision import Decision, Now, Reply
from penstock.coordinator.last_values import LastValues, LoadedRecord, transaction_end
from penstock.coordinator.record_bytes import CorruptRecord
from penstock.coordinator.shard import RecordCodec, Shard, TransactionalShard
from penstock.partition.partition import Marker, Partition
from penstock.storage.disk_read import with_disk
from penstock.storage.fs import Buffer, FileSystem
from penstock.storage.log import Log
from penstock.wire.batch import HEADER_BYTES, NO_PRODUCER_ID, Record
from penstock.wire.pairs import BatchPairs, batches_of_pairs

log = get_logger(__name__)

LOAD_BYTES = 1 << 20  # Read at a time while loading; between two reads the loop serves others.
APPLIED_AT_ONCE = 1000  # Records, while loading; about 10 ms.
RECORD_BYTES_AROUND = 32  # Around key and value, at the most: five lengths and deltas as varints, attributes, headers.

S = TypeVar("S", bound=Shard)


class ShardRunner(Generic[S]):
    def __init__(
        self,
        *,
        partition: Partition,
        shard: S,
        codec: RecordCodec[Any],
        clock: Clock,
        timers: TimerWheel,
        fs: FileSystem,
    ) -> None:
        self.shard = shard
        self.is_loaded = False
        self._codec = codec
        self._partition = partition
        self._leading = partition.leading
        self._clock = clock
        self._timers = timers
        self._fs = fs
        self._timer: Timer | None = None
        self._timer_ms: int | None = None
        self._is_closed = False
        has_transactions = isinstance(shard, TransactionalShard)
        if has_transactions:
            partition.on_marker = self._on_marker

    @property
    def is_leading(self) -> bool:
        """Whether the partition has been led without a break since the runner was made for it."""
        return self._leading is not None and self._partition.leading is self._leading

    @property
    def may_speak(self) -> bool:
        """Whether the broker's lease lets it answer: another may coordinate this partition, and know more."""
        return self._partition.may_lead

    @property
    def partition(self) -> Partition:
        return self._partition

    # Loading

    async def load(self) -> None:
        """Bring the state up to the end of the log; until then every command is refused."""
        last = LastValues()
        offset, count = await self._read(self._partition.log_start, lambda batch: last.note(batch.pairs, batch.header))
        for number, loaded in enumerate(last.records()):
            if number % APPLIED_AT_ONCE == 0:
                await asyncio.sleep(0)
                if self._is_closed:
                    break
            self._apply_loaded(loaded)
        # A transaction may have ended meanwhile. From the last look at the log's end on there is no await.
        await self._read(offset, self._replay)
        if self._is_closed:
            self.shard.unload(ErrorCode.not_coordinator)  # Nobody waits in it, but it may hold a share of a budget.
            return
        self.is_loaded = True
        now = self._now()
        self._carry_out(self.shard.on_loaded(now), now)
        if count:
            log.info("coordinator loaded", partition=self._partition.topic_partition, records=count)

    async def _read(self, offset: Offset, take: Callable[[BatchPairs], None]) -> tuple[Offset, int]:
        """Give everything from `offset` to the log's end to `take`; gives that end, and how many records there were."""
        partition_log, count = self._partition.log, 0
        while offset < partition_log.log_end and not self._is_closed:
            end = partition_log.log_end
            data = await with_disk(self._fs, partial(_read_some, partition_log, offset, end))
            if not data:
                offset = end  # Compaction left nothing up to there.
            for batch in batches_of_pairs(bytes(data), decompressed_bytes_max=self._partition.decompressed_bytes_max):
                if batch.error is not None:
                    log.error(
                        "coordinator state is damaged here; the rest is loaded",
                        partition=self._partition.topic_partition,
                        offset=batch.base_offset,
                        error=batch.error,
                    )
                take(batch)
                count += len(batch.pairs)
                offset = Offset(batch.next_offset)
            await asyncio.sleep(0)
        return offset, count

    def _replay(self, batch: BatchPairs) -> None:
        header = batch.header
        if header is not None and header.is_control:
            end = transaction_end(header, batch.pairs)
            if end is not None:
                self._apply_end(*end)
            return
        producer_id = NO_PRODUCER_ID if header is None else header.producer_id
        for key, value in batch.pairs:
            if key is not None:
                self._apply_loaded(LoadedRecord(key, value, producer_id))

    def _apply_loaded(self, loaded: LoadedRecord) -> None:
        try:
            record = self._codec.decode(loaded.key, loaded.value)
        except CorruptRecord as error:
            log.error("coordinator record cannot be read and is passed over",
                      partition=self._partition.topic_partition, key=loaded.key.hex(), error=error)  # fmt: skip
            return
        if record is not None:
            self._apply(record, loaded.producer_id)

    def _apply(self, record: Any, producer_id: int) -> None:
        shard: object = self.shard
        if producer_id == NO_PRODUCER_ID:
            self.shard.apply(record)
        elif isinstance(shard, TransactionalShard):
            shard.apply_transactional(record, producer_id)

    def _on_marker(self, marker: Marker) -> None:
        if self.is_loaded:  # Else it is read with the rest of the log.
            self._apply_end(marker.producer_id, marker.is_commit)

    def _apply_end(self, producer_id: int, is_commit: bool) -> None:
        shard: object = self.shard
        if isinstance(shard, TransactionalShard):
            shard.apply_end(producer_id, is_commit=is_commit)

    # Commands

    def run(self, decide: Callable[[Now], Decision[Any]]) -> None:
        """Have the shard decide, and carry it out. Refused while it loads."""
        if not self.is_loaded:
            raise Refused(ErrorCode.coordinator_load_in_progress)
        now = self._now()
        self._carry_out(decide(now), now)

    def _carry_out(self, decision: Decision[Any], now: Now) -> None:
        done, producer = 0, decision.producer
        producer_id = NO_PRODUCER_ID if producer is None else producer.producer_id
        for batch in self._batches(decision.records, now):
            try:
                if producer is None:
                    self._partition.append_own(batch)
                else:
                    self._partition.append_own(batch, **producer._asdict())
            except Refused as refused:
                left = replace(decision, records=decision.records[done:])
                decision = self.shard.on_append_failed(left, refused.code, now)
                break
            for record in decision.records[done : done + len(batch)]:
                self._apply(record, producer_id)
            done += len(batch)
        _send(decision.replies_now)
        if decision.replies_on_commit:
            self._send_when_committed(decision)
        self._schedule()

    def _batches(self, decided: Sequence[Any], now: Now) -> Iterator[list[Record]]:
        """The records, in order, in as few batches as may be written.

        What fits one batch is in the log as a whole or not at all. What does not (the offsets of a large group) can be
        torn by a crash: then nobody has heard of it, and the client does it once more.
        """
        bytes_max = self._partition.config.max_message_bytes - HEADER_BYTES
        batch: list[Record] = []
        batch_bytes = 0
        for record in decided:
            key, value = self._codec.encode(record)
            size = RECORD_BYTES_AROUND + len(key) + (len(value) if value is not None else 0)
            if batch and batch_bytes + size > bytes_max:
                yield batch
                batch, batch_bytes = [], 0
            batch.append(Record(0, now.wall_ms, key, value))
            batch_bytes += size
        if batch:
            yield batch

    def _send_when_committed(self, decision: Decision[Any]) -> None:
        def on_committed(code: ErrorCode) -> None:
            _send(decision.replies_on_commit if code is ErrorCode.none else decision.failed(code))

        if self._partition.when_committed(self._partition.log.log_end, on_committed):
            on_committed(ErrorCode.none)

    # Time

    def _now(self) -> Now:
        return Now(int(self._clock.monotonic() * 1000), self._clock.now_ms())

    def _schedule(self) -> None:
        due_ms = self.shard.next_deadline_ms
        if due_ms == self._timer_ms or self._is_closed:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_ms = due_ms
        if due_ms is not None:
            # In the whole milliseconds of `_now`: a timer that fires a fraction of one early finds nothing due.
            delay_ms = max(0, due_ms - self._now().timer_ms)
            self._timer = self._timers.call_later(delay_ms / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = self._timer_ms = None
        self.run(self.shard.on_tick)

    def close(self, code: ErrorCode) -> None:
        """This broker no longer coordinates this partition: tell everyone who waits."""
        self._is_closed = True
        if self._partition.on_marker == self._on_marker:
            self._partition.on_marker = None
        if self._timer is not None:
            self._timer.cancel()
        if self.is_loaded:
            self.is_loaded = False
            _send(self.shard.unload(code).replies_now)


def _read_some(partition_log: Log, offset: Offset, end: Offset) -> Buffer:
    return partition_log.read(offset, LOAD_BYTES, end, at_least_one=True)


def _send(replies: list[Reply]) -> None:
    for token, response in replies:
        token(response)
