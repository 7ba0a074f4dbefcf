"""One partition of `__consumer_offsets` at work: its state loaded, decisions appended, replies sent when committed.

A command is decided by the pure shard, its records are appended to the partition and applied, and the replies leave
when they are below the high watermark. What a client was told therefore survives a crash, by the same mechanism as
every other record.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence

from penstock.base.clock import Clock
from penstock.base.errors import ErrorCode, Refused
from penstock.base.logging import get_logger
from penstock.base.timers import Timer, TimerWheel
from penstock.base.types import Offset
from penstock.coordinator.group import records
from penstock.coordinator.group.decision import Decision, Now, Reply
from penstock.coordinator.group.group_shard import GroupShard
from penstock.coordinator.group.record_bytes import CorruptRecord
from penstock.coordinator.group.records import GroupRecord
from penstock.partition.partition import Partition
from penstock.storage.disk_read import with_disk
from penstock.storage.fs import FileSystem
from penstock.wire.batch import HEADER_BYTES, Record
from penstock.wire.pairs import batches_of_pairs

log = get_logger(__name__)

LOAD_BYTES = 1 << 20  # Read at a time while loading; between two reads the loop serves others.
APPLIED_AT_ONCE = 1000  # Records, while loading; about 10 ms.
RECORD_BYTES_AROUND = 32  # Around key and value, at the most: five lengths and deltas as varints, attributes, headers.


class ShardRunner:
    def __init__(
        self, *, partition: Partition, shard: GroupShard, clock: Clock, timers: TimerWheel, fs: FileSystem
    ) -> None:
        self.shard = shard
        self.is_loaded = False
        self._partition = partition
        self._leading = partition.leading
        self._clock = clock
        self._timers = timers
        self._fs = fs
        self._timer: Timer | None = None
        self._timer_ms: int | None = None
        self._is_closed = False

    @property
    def is_leading(self) -> bool:
        """Whether the partition has been led without a break since the runner was made for it."""
        return self._leading is not None and self._partition.leading is self._leading

    @property
    def may_speak(self) -> bool:
        """Whether the broker's lease lets it answer for its groups: another may coordinate them, and know more."""
        return self._partition.may_lead

    async def load(self) -> None:
        """Bring the state up to the end of the log; until then every command is refused."""
        latest, count = await self._read_latest()
        for number, (key, value) in enumerate(latest.items()):
            if number % APPLIED_AT_ONCE == 0:
                await asyncio.sleep(0)
            self._load_record(key, value)
        if self._is_closed:
            return
        self.is_loaded = True
        now = self._now()
        self._carry_out(self.shard.on_loaded(now), now)
        if count:
            log.info("coordinator loaded", partition=self._partition.topic_partition, records=count,
                     groups=len(self.shard.groups))  # fmt: skip

    async def _read_latest(self) -> tuple[dict[bytes, bytes], int]:
        """The last value of every key that was not deleted, in the order of the log; and how many records that took.

        The topic is compacted, so nothing else may count: what was overwritten needs not be decoded.
        """
        latest: dict[bytes, bytes] = {}
        offset, count = self._partition.log_start, 0
        while offset < self._partition.log.log_end and not self._is_closed:
            offset, read = await self._read_some(offset, latest)
            count += read
            await asyncio.sleep(0)
        return latest, count

    async def _read_some(self, offset: Offset, latest: dict[bytes, bytes]) -> tuple[Offset, int]:
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
            for key, value in batch.pairs:
                if key is not None:
                    latest.pop(key, None)  # To the end, where the log has it.
                    if value is not None:
                        latest[key] = value
            count += len(batch.pairs)
            offset = Offset(batch.next_offset)
        return offset, count

    def _load_record(self, key: bytes, value: bytes) -> None:
        try:
            decoded = records.decode(key, value)
        except CorruptRecord as error:
            log.error("coordinator record cannot be read and is passed over",
                      partition=self._partition.topic_partition, key=key.hex(), error=error)  # fmt: skip
            return
        if decoded is not None:
            self.shard.apply(decoded)

    # Commands

    def run(self, decide: Callable[[Now], Decision]) -> None:
        """Have the shard decide, and carry it out. Refused while it loads."""
        if not self.is_loaded:
            raise Refused(ErrorCode.coordinator_load_in_progress)
        now = self._now()
        self._carry_out(decide(now), now)

    def on_topics_deleted(self, names: Collection[str]) -> None:
        self.run(lambda now: self.shard.on_topics_deleted(names))

    def _carry_out(self, decision: Decision, now: Now) -> None:
        done = 0
        for batch in self._batches(decision.records, now):
            try:
                self._partition.append_own(batch)
            except Refused as refused:
                left = Decision(decision.records[done:], decision.replies_now, decision.replies_on_commit)
                decision = self.shard.on_append_failed(left, refused.code, now)
                break
            for record in decision.records[done : done + len(batch)]:
                self.shard.apply(record)
            done += len(batch)
        _send(decision.replies_now)
        if decision.replies_on_commit:
            self._send_when_committed(decision)
        self._schedule()

    def _batches(self, decided: Sequence[GroupRecord], now: Now) -> Iterator[list[Record]]:
        """The records, in order, in as few batches as may be written.

        What fits one batch is in the log as a whole or not at all. What does not (the offsets of a large group) can be
        torn by a crash: then nobody has heard of it, and the client does it once more.
        """
        bytes_max = self._partition.config.max_message_bytes - HEADER_BYTES
        batch: list[Record] = []
        batch_bytes = 0
        for record in decided:
            key, value = records.encode(record)
            size = RECORD_BYTES_AROUND + len(key) + (len(value) if value is not None else 0)
            if batch and batch_bytes + size > bytes_max:
                yield batch
                batch, batch_bytes = [], 0
            batch.append(Record(0, now.wall_ms, key, value))
            batch_bytes += size
        if batch:
            yield batch

    def _send_when_committed(self, decision: Decision) -> None:
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
        """This broker no longer coordinates these groups: tell everyone who waits."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self.is_loaded:
            self.is_loaded = False
            _send(self.shard.unload(code).replies_now)


def _send(replies: list[Reply]) -> None:
    for token, response in replies:
        token(response)
