"""Groups under churn on a broker that dies: several hundred seeds, and a thousand on demand.

A seed that fails prints `seed=… step=…` and its scenario. Add it to group_seeds.txt, where it stays after the fix. To
run certain seeds: `PENSTOCK_SIM_GROUP_SEEDS=17 pytest tests/sim/test_group_churn.py`, or a range, `1-5000`.
"""

from typing import Any

import pytest
from seed_runs import SeedRuns

from penstock.base.errors import ErrorCode
from penstock.base.timers import TimerWheel
from penstock.coordinator.group import group_shard, offset_commit
from penstock.coordinator.group.classic_group import ClassicGroup
from penstock.coordinator.shard_runner import ShardRunner
from penstock.sim.group_churn import run
from penstock.sim.inode import Inode

# 200 take about 20 s on one core.
SEEDS = SeedRuns(run, kept="group_seeds.txt", variable="PENSTOCK_SIM_GROUP_SEEDS", default="1-200")


def test_seeds_that_once_failed() -> None:
    SEEDS.check_kept()


@pytest.mark.timeout(0)
def test_seeds() -> None:
    SEEDS.check_chosen()


def test_a_seed_gives_the_same_run_in_this_and_in_another_process() -> None:
    SEEDS.check_elsewhere(range(1, 9))


# The simulation is worth something only if it finds what it is there to find.


def test_commits_of_any_generation_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_commit, "check_commit", lambda group, command: ErrorCode.none)
    assert "zombie-commits" in SEEDS.problems_of(range(1, 100))


def test_answers_before_the_commit_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(self: ShardRunner[Any], decision: group_shard.Decision) -> None:
        for token, response in decision.replies_on_commit:
            token(response)

    monkeypatch.setattr(ShardRunner, "_send_when_committed", hasty)
    # The generation was lost with its record, and given out again.
    assert "two-owners" in SEEDS.problems_of(range(1, 100))


def test_a_disk_that_does_not_sync_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Inode, "sync", lambda self, begun: None)
    assert SEEDS.problems_of(range(1, 50))


def test_a_group_that_forgets_its_generation_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = ClassicGroup.restore

    def forgetful(self: ClassicGroup, now: group_shard.Now) -> None:
        honest(self, now)
        self.generation_id = 0

    monkeypatch.setattr(ClassicGroup, "restore", forgetful)
    assert "generation-went-back" in SEEDS.problems_of(range(1, 100))


def test_sessions_that_never_end_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_shard, "on_session_deadline", lambda group, member_id, now, out: None)
    assert SEEDS.problems_of(range(1, 50))


def test_late_timers_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = TimerWheel.call_later
    monkeypatch.setattr(TimerWheel, "call_later", lambda self, delay_s, call: honest(self, delay_s + 9, call))
    assert SEEDS.problems_of(range(1, 50))
