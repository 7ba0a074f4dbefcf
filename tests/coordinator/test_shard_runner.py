"""Carrying out what the shard decides: in order, in batches that fit."""

from types import SimpleNamespace
from typing import Any

from penstock.coordinator.group import records
from penstock.coordinator.group.decision import Decision
from penstock.coordinator.group.records import GroupDeleted, OffsetDeleted
from penstock.coordinator.shard_runner import RECORDS_PER_BATCH_MAX, ShardRunner
from penstock.wire.batch import Record


class Log:
    """A partition that only remembers."""

    def __init__(self) -> None:
        self.batches: list[list[Record]] = []

    def append_own(self, batch: list[Record]) -> None:
        self.batches.append(batch)


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
    parts: dict[str, Any] = {"partition": None, "shard": shard, "clock": clock, "timers": wheel, "fs": None}
    runner = ShardRunner(**parts)
    runner.is_loaded = True
    runner.run(lambda now: Decision())
    assert wheel.delays == [0.001]


def test_a_large_decision_is_cut_into_batches_and_keeps_its_order() -> None:
    log, applied = Log(), []
    shard = SimpleNamespace(apply=applied.append, next_deadline_ms=None)
    clock = SimpleNamespace(monotonic=lambda: 1.0, now_ms=lambda: 1000)
    parts: dict[str, Any] = {"partition": log, "shard": shard, "clock": clock, "timers": None, "fs": None}
    runner = ShardRunner(**parts)
    runner.is_loaded = True
    decided = [OffsetDeleted(group_id="g", topic="t", partition=n) for n in range(RECORDS_PER_BATCH_MAX * 2)]
    decided.append(GroupDeleted(group_id="g"))
    runner.run(lambda now: Decision(records=list(decided)))
    assert applied == decided
    assert [len(batch) for batch in log.batches] == [RECORDS_PER_BATCH_MAX, RECORDS_PER_BATCH_MAX, 1]
    written = [records.decode(record.key, record.value) for batch in log.batches for record in batch]
    assert written == decided
