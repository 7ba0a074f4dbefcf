"""Groups under churn on a broker that dies: several hundred seeds, and a thousand on demand.

A seed that fails prints `seed=… step=…` and its scenario. Add it to group_seeds.txt, where it stays after the fix. To
run certain seeds: `PENSTOCK_SIM_GROUP_SEEDS=17 pytest tests/sim/test_group_churn.py`, or a range, `1-5000`.
"""

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.base.errors import ErrorCode
from penstock.base.timers import TimerWheel
from penstock.coordinator.group import group_shard, offset_commit
from penstock.coordinator.group.classic_group import ClassicGroup
from penstock.coordinator.shard_runner import ShardRunner
from penstock.sim.group_churn import run
from penstock.sim.inode import Inode

FAILURES_SHOWN_MAX = 3
COLLECT_EVERY = 50  # Runs leave cycles behind (tasks, transports); a collection costs about as much as a run.


def chosen_seeds() -> range:
    # 200 take about 20 s on one core.
    first, _, last = os.environ.get("PENSTOCK_SIM_GROUP_SEEDS", "1-200").partition("-")
    return range(int(first), int(last or first) + 1)


def kept_seeds() -> list[int]:
    lines = Path(__file__).with_name("group_seeds.txt").read_text().splitlines()
    return [int(line.split("#")[0]) for line in lines if line.split("#")[0].strip()]


def test_seeds_that_once_failed() -> None:
    for seed in kept_seeds():
        report = run(seed)
        assert not report.problems, str(report)


@pytest.mark.timeout(0)
def test_seeds() -> None:
    failed = []
    for number, seed in enumerate(chosen_seeds()):
        report = run(seed)
        if report.problems:
            failed.append(report)
            if len(failed) == FAILURES_SHOWN_MAX:
                break
        if number % COLLECT_EVERY == 0:
            gc.collect()
    assert not failed, "\n\n".join(map(str, failed))


def test_a_seed_gives_the_same_run_in_this_and_in_another_process() -> None:
    """Other hashes of strings, and other addresses: whoever iterates over a set of either gives himself away."""
    seeds = range(1, 9)
    script = """
import sys
moved = [object() for _ in range(int(sys.argv[1]))]
from penstock.sim.group_churn import run
print([run(int(seed)).trace.digest() for seed in sys.argv[2:]])
"""
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script, size, *map(str, seeds)],
            env={**os.environ, "PYTHONHASHSEED": size},
            capture_output=True,
            check=True,
        ).stdout
        for size in ("1", "54321")
    }
    assert outputs == {f"{[run(seed).trace.digest() for seed in seeds]}\n".encode()}


# The simulation is worth something only if it finds what it is there to find.


def problems_of(seeds: range) -> str:
    """The problems of the first seed that has some."""
    for seed in seeds:
        problems = run(seed).problems
        if problems:
            return "\n".join(problems)
    return ""


def test_commits_of_any_generation_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_commit, "check_commit", lambda group, command: ErrorCode.none)
    assert "zombie-commits" in problems_of(range(1, 100))


def test_answers_before_the_commit_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(self: ShardRunner, decision: group_shard.Decision) -> None:
        for token, response in decision.replies_on_commit:
            token(response)

    monkeypatch.setattr(ShardRunner, "_send_when_committed", hasty)
    assert "two-owners" in problems_of(range(1, 100))  # The generation was lost with its record, and given out again.


def test_a_disk_that_does_not_sync_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Inode, "sync", lambda self, begun: None)
    assert problems_of(range(1, 50))


def test_a_group_that_forgets_its_generation_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = ClassicGroup.restore

    def forgetful(self: ClassicGroup, now: group_shard.Now) -> None:
        honest(self, now)
        self.generation_id = 0

    monkeypatch.setattr(ClassicGroup, "restore", forgetful)
    assert "generation-went-back" in problems_of(range(1, 100))


def test_sessions_that_never_end_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_shard, "on_session_deadline", lambda group, member_id, now, out: None)
    assert problems_of(range(1, 50))


def test_late_timers_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = TimerWheel.call_later
    monkeypatch.setattr(TimerWheel, "call_later", lambda self, delay_s, call: honest(self, delay_s + 9, call))
    assert problems_of(range(1, 50))
