"""One partition of a coordinator's topic at work: its state loaded, decisions appended, replies sent when committed.

A command is decided by the pure shard, its records are appended to the partition and applied, and the replies leave
when they are below the high watermark. What a client was told therefore survives a crash, by the same mechanism as
every other record.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

from penstock.base.clock import Clock
from penstock.base.errors import ErrorCode, Refused
from penstock.base.logging import get_logger
from penstock.base.timers import Timer, TimerWheel
from penstock.base.types import Offset
from penstock.coordinator.decision import Decision, Now, Reply
from penstock.coordinator.record_bytes import CorruptRecord
from penstock.coordinator.shard import RecordCodec, Shard, TransactionalRecords, TransactionalShard, TransactionEnd
from penstock.partition.partition import Partition
from penstock.storage.disk_read import with_disk
from penstock.storage.fs import FileSystem
from penstock.wire.batch import HEADER_BYTES, BatchHeader, Record
from penstock.wire.pairs import BatchPairs, Pair, batches_of_pairs

log = get_logger(__name__)

LOAD_BYTES = 1 << 20  # Read at a time while loading; between two reads the loop serves others.
APPLIED_AT_ONCE = 1000  # Records, while loading; about 10 ms.
RECORD_BYTES_AROUND = 32  # Around key and value, at the most: five lengths and deltas as varints, attributes, headers.
COMMIT_KEY_TYPE = 1  # Of a marker's key: version i16 | type i16. 0 aborts.

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
        self._latest: dict[bytes, bytes | None] = {}  # While loading: what was read, and is to be applied.
        self._applied: set[bytes] | None = None  # While loading: keys that were applied before the end was reached.

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
        offset, count = self._partition.log_start, 0
        while not self._is_closed:
            if offset < self._partition.log.log_end:
                offset, read = await self._load_some(offset)
                count += read
            elif self._latest:
                await self._apply_latest()
            else:
                break  # From here on there is no await: the end of a transaction may be appended at any time.
            await asyncio.sleep(0)
        self._applied = None
        if self._is_closed:
            return
        self.is_loaded = True
        now = self._now()
        self._carry_out(self.shard.on_loaded(now), now)
        if count:
            log.info("coordinator loaded", partition=self._partition.topic_partition, records=count)

    async def _load_some(self, offset: Offset) -> tuple[Offset, int]:
        """Read on; gives from where to go on, and how many records there were.

        The topic is compacted, so only the last value of each key may count: what was overwritten is not decoded. What
        is part of a transaction counts by when that ended, so it is handed on in the order of the log, behind all that
        came before it.
        """
        partition_log = self._partition.log
        data = await with_disk(
            self._fs, lambda: partition_log.read(offset, LOAD_BYTES, partition_log.log_end, at_least_one=True)
        )
        if not data:
            return partition_log.log_end, 0  # Compaction left nothing up to the end.
        count = 0
        for batch in batches_of_pairs(bytes(data), decompressed_bytes_max=self._partition.decompressed_bytes_max):
            if batch.error is not None:
                log.error(
                    "coordinator state is damaged here; the rest is loaded",
                    partition=self._partition.topic_partition,
                    offset=batch.base_offset,
                    error=batch.error,
                )
            elif batch.header is None:
                self._note_latest(batch.pairs)
            else:
                if self._applied is None:
                    self._applied = set()
                self._applied.update(self._latest)
                await self._apply_latest()
                self._load_transactional(batch, batch.header)
            count += len(batch.pairs)
            offset = Offset(batch.next_offset)
        return offset, count

    def _note_latest(self, pairs: Sequence[Pair]) -> None:
        latest, applied = self._latest, self._applied
        for key, value in pairs:
            if key is not None:
                latest.pop(key, None)  # To the end, where the log has it.
                if value is not None or (applied is not None and key in applied):
                    latest[key] = value

    async def _apply_latest(self) -> None:
        latest, self._latest = self._latest, {}
        for number, (key, value) in enumerate(latest.items()):
            if number % APPLIED_AT_ONCE == 0:
                await asyncio.sleep(0)
            record = self._decode(key, value)
            if record is not None:
                self.shard.apply(record)

    def _load_transactional(self, batch: BatchPairs, header: BatchHeader) -> None:
        shard: object = self.shard
        if not isinstance(shard, TransactionalShard):
            log.error("a transaction wrote to a coordinator that has no part in any; it is passed over",
                      partition=self._partition.topic_partition, offset=batch.base_offset)  # fmt: skip
        elif header.is_control:
            key = batch.pairs[0][0] if batch.pairs else None  # None: compaction has emptied it.
            if key is not None:
                is_commit = int.from_bytes(key[2:4], "big") == COMMIT_KEY_TYPE
                shard.apply_end(TransactionEnd(header.producer_id, header.producer_epoch, is_commit))
        else:
            decoded = [self._decode(key, value) for key, value in batch.pairs if key is not None]
            records = [record for record in decoded if record is not None]
            shard.apply_transactional(
                TransactionalRecords(header.producer_id, header.producer_epoch, batch.base_offset, records)
            )
            assert self._applied is not None
            self._applied.update(key for key, _ in batch.pairs if key is not None)

    def _decode(self, key: bytes, value: bytes | None) -> Any:
        try:
            return self._codec.decode(key, value)
        except CorruptRecord as error:
            log.error("coordinator record cannot be read and is passed over",
                      partition=self._partition.topic_partition, key=key.hex(), error=error)  # fmt: skip
            return None

    # Commands

    def run(self, decide: Callable[[Now], Decision[Any]]) -> None:
        """Have the shard decide, and carry it out. Refused while it loads."""
        if not self.is_loaded:
            raise Refused(ErrorCode.coordinator_load_in_progress)
        now = self._now()
        self._carry_out(decide(now), now)

    def _carry_out(self, decision: Decision[Any], now: Now) -> None:
        done = 0
        for batch in self._batches(decision.records, now):
            try:
                self._partition.append_own(batch)
            except Refused as refused:
                left = replace(decision, records=decision.records[done:])
                decision = self.shard.on_append_failed(left, refused.code, now)
                break
            for record in decision.records[done : done + len(batch)]:
                self.shard.apply(record)
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
        if self._timer is not None:
            self._timer.cancel()
        if self.is_loaded:
            self.is_loaded = False
            _send(self.shard.unload(code).replies_now)


def _send(replies: list[Reply]) -> None:
    for token, response in replies:
        token(response)
