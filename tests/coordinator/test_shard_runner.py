"""Carrying out what the shard decides: in order, in batches that fit."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.base.errors import ErrorCode, Refused
from penstock.base.types import Offset
from penstock.coordinator.group import records
from penstock.coordinator.group.decision import Decision, Reply
from penstock.coordinator.group.group_shard import GroupShard
from penstock.coordinator.group.records import GroupDeleted, GroupMetadata, GroupRecord, OffsetCommitted, OffsetDeleted
from penstock.coordinator.group.replies import DeletedGroup, DeleteGroupsReply
from penstock.coordinator.shard_runner import ShardRunner
from penstock.wire.batch import CONTROL_MASK, TRANSACTIONAL_MASK, Record, build_batch

MAX_MESSAGE_BYTES = 1_048_588


class Log:
    """A partition that only remembers, up to some number of batches."""

    def __init__(self, batches_max: int = 1000) -> None:
        self.batches: list[list[Record]] = []
        self.config = SimpleNamespace(max_message_bytes=MAX_MESSAGE_BYTES)
        self.log = SimpleNamespace(log_end=0)
        self.leading = object()
        self._batches_max = batches_max
        self._waiting: list[Callable[[ErrorCode], None]] = []

    def append_own(self, batch: list[Record]) -> None:
        if len(self.batches) == self._batches_max:
            raise Refused(ErrorCode.kafka_storage_error)
        self.batches.append(batch)

    def when_committed(self, next_offset: int, callback: Callable[[ErrorCode], None]) -> bool:
        self._waiting.append(callback)
        return False

    def commit(self, code: ErrorCode) -> None:
        for callback in self._waiting:
            callback(code)


class Wheel:
    """Timers that only remember their delays."""

    def __init__(self) -> None:
        self.delays: list[float] = []

    def call_later(self, delay_s: float, callback: object) -> SimpleNamespace:
        self.delays.append(delay_s)
        return SimpleNamespace(cancel=lambda: None)


def test_a_deadline_is_not_set_for_an_instant_at_which_it_is_not_due() -> None:
    """4.015 s are 4014.99… ms as a float: a timer for the rest of that millisecond would fire over and over."""
    wheel = Wheel()
    shard = SimpleNamespace(next_deadline_ms=4015)
    clock = SimpleNamespace(monotonic=lambda: 4.015, now_ms=lambda: 1000)
    parts: dict[str, Any] = {
        "partition": Log(),
        "shard": shard,
        "codec": records,
        "clock": clock,
        "timers": wheel,
        "fs": None,
    }
    runner = ShardRunner(**parts)
    runner.is_loaded = True
    runner.run(lambda now: Decision())
    assert wheel.delays == [0.001]


def runner_on(log: Log, shard: object) -> ShardRunner[Any]:
    clock = SimpleNamespace(monotonic=lambda: 1.0, now_ms=lambda: 1_700_000_000_000)
    parts: dict[str, Any] = {
        "partition": log,
        "shard": shard,
        "codec": records,
        "clock": clock,
        "timers": None,
        "fs": None,
    }
    runner = ShardRunner(**parts)
    runner.is_loaded = True
    return runner


def deletion_of(count: int) -> list[GroupRecord]:
    offsets = [OffsetDeleted(group_id="g", topic="t" * 200, partition=n) for n in range(count)]
    return [*offsets, GroupDeleted(group_id="g")]


def test_what_fits_one_batch_is_one_batch() -> None:
    log, applied = Log(), []
    decided = deletion_of(4_000)
    runner_on(log, SimpleNamespace(apply=applied.append, next_deadline_ms=None)).run(lambda now: Decision(decided))
    assert [len(batch) for batch in log.batches] == [4_001]
    assert applied == decided


@pytest.mark.parametrize("is_answered", [True, False])
def test_a_large_decision_is_cut_into_batches_and_keeps_its_order(is_answered: bool) -> None:
    log, applied, told = Log(), [], []
    decided = deletion_of(20_000)
    replies = [Reply(told.append, DeleteGroupsReply(groups=()))] if is_answered else []
    shard = SimpleNamespace(apply=applied.append, next_deadline_ms=None)
    runner_on(log, shard).run(lambda now: Decision(decided, [], replies))
    assert applied == decided
    sizes = [len(build_batch(batch, base_offset=0)) for batch in log.batches]
    assert len(sizes) == 5
    assert 0.9 * MAX_MESSAGE_BYTES < min(sizes[:-1]) <= max(sizes) <= MAX_MESSAGE_BYTES
    written = [records.decode(record.key, record.value) for batch in log.batches for record in batch]
    assert written == decided
    assert told == []
    log.commit(ErrorCode.none)
    assert told == [reply.response for reply in replies]


def test_a_large_decision_that_fails_half_way_is_answered_as_failed() -> None:
    log, applied, told = Log(batches_max=2), [], []
    decided = deletion_of(20_000)
    reply = DeleteGroupsReply(groups=(DeletedGroup("g", ErrorCode.none),))
    shard = GroupShard(new_unique_id=str)
    shard.apply = applied.append  # type: ignore[method-assign]
    runner_on(log, shard).run(lambda now: Decision(decided, [], [Reply(told.append, reply)]))
    assert applied == decided[: sum(map(len, log.batches))]
    assert len(log.batches) == 2
    assert [answer.groups for answer in told] == [(DeletedGroup("g", ErrorCode.not_coordinator),)]


# Loading


def committed(partition: int, offset: int) -> OffsetCommitted:
    return OffsetCommitted(group_id="g", topic="t", partition=partition, offset=Offset(offset), commit_timestamp_ms=1)


def loaded(*batches: list[GroupRecord | Record]) -> tuple[GroupShard, list[GroupRecord]]:
    """A shard after it was loaded from these batches, and what was applied to it."""
    data, end = b"", 0
    for batch in batches:
        raw = [item if isinstance(item, Record) else Record(0, 1, *records.encode(item)) for item in batch]
        numbered = [record._replace(offset=end + number) for number, record in enumerate(raw)]
        data += build_batch(numbered, base_offset=end)
        end += len(batch)
    log = Log()
    log.log = SimpleNamespace(log_end=end, read=lambda offset, *_, **__: data)
    log.log_start = 0
    log.decompressed_bytes_max = 1 << 20
    log.topic_partition = "__consumer_offsets-0"
    shard, applied = GroupShard(new_unique_id=str), []
    honest = shard.apply
    shard.apply = lambda record: (applied.append(record), honest(record))  # type: ignore[method-assign]
    runner = runner_on(log, shard)
    runner.is_loaded = False
    asyncio.run(runner.load())
    assert runner.is_loaded
    return shard, applied


def test_only_the_last_of_each_key_is_applied_in_the_order_of_the_log() -> None:
    first = [committed(0, 1), committed(1, 1), committed(2, 1)]
    second = [committed(0, 2), OffsetDeleted(group_id="g", topic="t", partition=2)]
    shard, applied = loaded(first, second, [committed(3, 1)])
    assert applied == [committed(1, 1), committed(0, 2), committed(3, 1)]
    assert {number: found.offset for number, found in shard.offsets.of_group("g")["t"].items()} == {0: 2, 1: 1, 3: 1}


def test_a_deleted_group_is_not_there_and_one_that_came_back_is() -> None:
    metadata = GroupMetadata(group_id="g", protocol_type="consumer", generation_id=3)
    assert (
        loaded([metadata, committed(0, 1)], deletion_of(0), [OffsetDeleted(group_id="g", topic="t", partition=0)])[
            0
        ].groups
        == {}
    )
    shard, _ = loaded([metadata], deletion_of(0), [metadata])
    assert shard.groups["g"].generation_id == 3


def test_what_cannot_be_read_is_passed_over() -> None:
    key, _ = records.encode(committed(0, 1))
    shard, applied = loaded([Record(0, 1, key, b"\0"), Record(0, 1, None, b"x"), committed(1, 1)])
    assert applied == [committed(1, 1)]
    assert list(shard.groups) == ["g"]


class Witness:
    """A shard that remembers what was applied to it, and knows of transactions."""

    next_deadline_ms = None

    def __init__(self) -> None:
        self.applied: list[object] = []
        self.apply = self.applied.append

    def apply_transactional(self, record: object, producer_id: int) -> None:
        self.applied.append((producer_id, record))

    def apply_end(self, producer_id: int, *, is_commit: bool) -> None:
        self.applied.append((producer_id, is_commit))

    def on_loaded(self, now: object) -> Decision:
        return Decision()


def witnessed(*batches: bytes | bytearray, end: int) -> list[object]:
    """What was applied while these batches were loaded."""
    log, shard = Log(), Witness()
    data = b"".join(batches)
    log.log = SimpleNamespace(log_end=end, read=lambda offset, *_, **__: data)
    log.log_start = 0
    log.decompressed_bytes_max = 1 << 20
    log.topic_partition = "__consumer_offsets-0"
    runner = runner_on(log, shard)
    runner.is_loaded = False
    asyncio.run(runner.load())
    return shard.applied


def batch_of(base_offset: int, *items: GroupRecord, attributes: int = 0, producer_id: int = -1) -> bytearray:
    numbered = [Record(base_offset + number, 1, *records.encode(item)) for number, item in enumerate(items)]
    return build_batch(
        numbered, base_offset=base_offset, attributes=attributes, producer_id=producer_id, producer_epoch=3
    )


def marker(base_offset: int, producer_id: int, is_commit: bool) -> bytearray:
    record = Record(base_offset, 1, bytes((0, 0, 0, is_commit)), bytes(6))
    attributes = TRANSACTIONAL_MASK | CONTROL_MASK
    return build_batch(
        [record], base_offset=base_offset, attributes=attributes, producer_id=producer_id, producer_epoch=4
    )


def test_of_a_transaction_what_was_committed_counts_and_what_is_open_stays_apart() -> None:
    applied = witnessed(
        batch_of(0, committed(0, 1), committed(0, 2)),
        batch_of(2, committed(1, 5), attributes=TRANSACTIONAL_MASK, producer_id=7),
        batch_of(3, committed(2, 5), attributes=TRANSACTIONAL_MASK, producer_id=8),
        batch_of(4, committed(3, 5), committed(4, 5), attributes=TRANSACTIONAL_MASK, producer_id=9),
        batch_of(6, OffsetDeleted(group_id="g", topic="t", partition=9), committed(3, 6)),
        marker(8, 7, is_commit=True),
        marker(9, 8, is_commit=False),
        marker(10, 99, is_commit=False),
        end=11,
    )
    assert applied == [(9, committed(3, 5)), committed(0, 2), committed(3, 6), committed(1, 5), (9, committed(4, 5))]


def test_a_control_batch_that_is_no_marker_ends_nothing() -> None:
    other = Record(1, 1, bytes((0, 0, 0, 3)), bytes(6))
    attributes = TRANSACTIONAL_MASK | CONTROL_MASK
    applied = witnessed(
        batch_of(0, committed(1, 5), attributes=TRANSACTIONAL_MASK, producer_id=7),
        build_batch([other], base_offset=1, attributes=attributes, producer_id=7, producer_epoch=4),
        build_batch([], base_offset=2, attributes=attributes, producer_id=7, producer_epoch=4, last_offset=2),
        end=3,
    )
    assert applied == [(7, committed(1, 5))]


def test_a_transaction_can_end_while_the_last_records_are_applied() -> None:
    """Whoever appends does not wait for the loader: what came in between belongs to the log, too."""
    log, shard = Log(), Witness()
    batches = {0: (batch_of(0, committed(0, 1)), 1), 1: (marker(1, 7, is_commit=True), 2)}
    partition_log = SimpleNamespace(log_end=1, read=lambda offset, *_, **__: bytes(batches[offset][0]))
    log.log, log.log_start, log.decompressed_bytes_max = partition_log, 0, 1 << 20

    def apply(record: object) -> None:
        shard.applied.append(record)
        partition_log.log_end = 2

    shard.apply = apply  # type: ignore[assignment]
    runner = runner_on(log, shard)
    runner.is_loaded = False
    log.topic_partition = "__consumer_offsets-0"
    asyncio.run(runner.load())
    assert shard.applied == [committed(0, 1), (7, True)]
