"""Power cuts at every single operation, on a disk that loses what was not synced."""

import asyncio
import contextlib
from uuid import UUID

import pytest

from penstock.base.topic_config import TopicConfig
from penstock.base.types import Offset
from penstock.sim.process import Killed
from penstock.storage.log_manager import LogManager

from .support import TOPIC_ID, TP, Machine, append, latest_values, manager, patient, read_all, values_of


@pytest.fixture(params=[0, 4096], ids=["alone", "journal"], autouse=True)
def journal_bytes(request, monkeypatch):
    """Everything here holds for logs that are synced by themselves, and for those that share a journal."""
    monkeypatch.setitem(OPTIONS, "penstock_journal_bytes", request.param)


OPTIONS: dict[str, int] = {}


def started(machine: Machine) -> LogManager:
    logs = manager(machine.fs, "data", machine.clock, **OPTIONS)
    logs.start()
    return logs


async def commit(logs, log):
    if not getattr(logs, "is_serving", False):
        logs.is_serving = True
        logs.end_replay(())  # All logs of this life have been opened.
    logs.commit.request(log)
    await logs.commit.finish(log)


def cut_at_every_operation(life, check, *, seeds, operations_max=2000):
    """Run `life` with the power cut at its first operation, then at its second, and so on to its end."""
    for seed in seeds:
        for at in range(1, operations_max):
            machine = Machine(seed)
            machine.disk.cut_power_at = at
            known = {}
            try:
                machine.run(life(machine, known))
                finished = True
            except Killed:
                finished = False
            machine.cut_power()
            try:
                machine.run(check(machine, known))
            except BaseException as error:
                error.add_note(f"seed={seed} operation={at}")
                raise
            if finished:
                break
        else:
            pytest.fail("the life never ran to its end")


# What was synced is kept


ROLLING = TopicConfig(segment_bytes=1024, index_interval_bytes=100)


async def write_roll_and_retain(machine, known):
    """Notes every batch before it is written, and how many are promised."""
    known["written"], known["promised"], known["start"] = [], 0, 0
    logs = started(machine)
    log = logs.open(TP, TOPIC_ID, ROLLING)
    for number in range(12):
        known["written"].append(b"%02d" % number + b"x" * 200)
        append(log, known["written"][-1:])
        if number % 3 == 2:
            await commit(logs, log)
            assert log.failure is None
            known["promised"] = log.synced_end
        if number in (4, 8):
            await logs.checkpoint()
        if number == 9:
            known["start"] = 4
            log.advance_start(Offset(4))
            await logs.apply_retention()
    await logs.stop()


async def find_what_was_promised(machine, known):
    logs = started(machine)
    log = logs.open(TP, TOPIC_ID, ROLLING)
    assert log.failure is None, log.failure
    values = values_of(read_all(log))
    assert log.log_end >= known.get("promised", 0)
    assert log.log_start <= known.get("start", 0)
    assert values == known.get("written", [])[log.log_start : log.log_end]
    append(log, [b"after the crash"])
    await commit(logs, log)
    assert log.synced_end == log.log_end
    end = log.log_end
    await logs.stop()
    machine.cut_power()
    logs = started(machine)
    log = logs.open(TP, TOPIC_ID, ROLLING)
    assert (log.failure, log.log_end) == (None, end)
    assert values_of(read_all(log))[-1] == b"after the crash"


def test_every_promised_record_survives_a_power_cut_at_any_operation():
    cut_at_every_operation(write_roll_and_retain, find_what_was_promised, seeds=range(3))


# Syncs that fail


async def write_until_a_sync_fails(machine, known):
    logs = started(machine)
    log = logs.open(TP, TOPIC_ID, ROLLING)
    for number in range(12):
        if log.failure is not None:
            break
        append(log, [b"%02d" % number + b"x" * 200])
        if number % 2:
            await commit(logs, log)
            known["promised"] = log.synced_end
        if number % 4 == 3:
            with contextlib.suppress(OSError):  # As in the loop: the old checkpoint stands.
                await logs.checkpoint()
    await logs.stop()
    known["has_failed"] = logs.offline is not None


async def read_what_is_shown(machine, known):
    logs = started(machine)
    log = logs.open(TP, TOPIC_ID, ROLLING)
    assert log.synced_end >= known["promised"]
    known["shown"] = values_of(read_all(log))[: log.synced_end]


async def find_what_was_shown(machine, known):
    logs = started(machine)
    log = logs.open(TP, TOPIC_ID, ROLLING)
    assert log.failure is None, log.failure
    assert values_of(read_all(log))[: len(known["shown"])] == known["shown"]


def test_what_a_start_after_a_failed_sync_shows_is_really_on_disk():
    """fsyncgate: the kernel calls the lost pages clean, they still read well, and no later sync writes them."""
    failures = 0
    for seed in range(5):
        for number in range(1, 40):
            machine = Machine(seed)
            machine.disk.fail_syncs = {number}
            known = {"promised": 0}
            machine.run(write_until_a_sync_fails(machine, known))
            failures += known["has_failed"]
            machine.disk.fail_syncs = set()
            machine.run(read_what_is_shown(machine, known))  # The broker restarts, the machine does not.
            machine.cut_power()
            machine.run(find_what_was_shown(machine, known))
    assert failures > 50


# Compaction


COMPACT = TopicConfig(
    cleanup_policy=("compact",), segment_bytes=1024, index_interval_bytes=100, min_cleanable_dirty_ratio=0.0,
    file_delete_delay_ms=0,
)  # fmt: skip


async def write_and_compact(machine, known):
    known["values"] = {}
    logs = started(machine)
    log = logs.open(TP, TOPIC_ID, COMPACT)
    for turn in range(2):
        values = {}
        for number in range(16):
            key = b"key-%d" % (number * (turn + 1) % 5)
            values[key] = b"%d-%d" % (turn, number) + b"." * 100
            append(log, [values[key]], keys=[key])
        await commit(logs, log)
        known["values"].update(values)
        known["log_end"] = log.log_end
        await logs.cleaner.clean_all()
        await asyncio.sleep(0.1)  # The sources are removed.
    known["is_compacted"] = True
    await logs.stop()


async def find_the_last_value_of_each_key(machine, known):
    logs = started(machine)
    log = logs.open(TP, TOPIC_ID, COMPACT)
    assert log.failure is None, log.failure
    assert log.log_end >= known.get("log_end", 0)
    found = latest_values(log)
    if log.log_end == known.get("log_end"):
        assert found == known["values"]
    else:
        assert known.get("values", {}).keys() <= found.keys()
    for offset in range(log.log_end):  # No offset leads into a segment that is not in use any more.
        patient(lambda at=offset: log.read(Offset(at), 100, log.log_end, at_least_one=True))
    await commit(logs, log)
    await logs.cleaner.clean_all()
    assert latest_values(log) == found
    await logs.stop()


def test_a_power_cut_at_any_operation_of_a_compaction_loses_no_key():
    cut_at_every_operation(write_and_compact, find_the_last_value_of_each_key, seeds=range(1))


# Topics that come and go


async def delete_and_make_anew(machine, known):
    known["promised"] = []
    logs = started(machine)
    log = logs.open(TP, TOPIC_ID, ROLLING)
    for number in range(6):
        append(log, [b"old %d" % number + b"x" * 200])
    await commit(logs, log)
    log.advance_start(Offset(3))
    await logs.checkpoint()
    logs.delete(TP)
    known["topic_id"] = UUID(int=99)
    log = logs.open(TP, known["topic_id"], ROLLING)
    for number in range(4):
        append(log, [b"new %d" % number])
        await commit(logs, log)
        known["promised"].append(b"new %d" % number)
    await logs.stop()


async def find_only_the_new_topic(machine, known):
    if "topic_id" not in known:
        return
    logs = started(machine)
    log = logs.open(TP, known["topic_id"], ROLLING)
    assert log.failure is None, log.failure
    values = values_of(read_all(log))
    assert log.log_start == 0
    assert not any(value.startswith(b"old") for value in values)
    assert values[: len(known["promised"])] == known["promised"]
    await logs.stop()


def test_a_power_cut_around_a_deletion_shows_no_old_record_and_loses_no_new_one():
    cut_at_every_operation(delete_and_make_anew, find_only_the_new_topic, seeds=range(3))
