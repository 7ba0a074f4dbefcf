"""Fast elections that leave divergent tails: R16. `PENSTOCK_ELECTION_SEEDS=1-10000` runs as many schedules."""

import pytest
from seed_runs import SeedRuns

from penstock.partition.leader_epochs import LeaderEpochs
from penstock.sim.elections import run

SEEDS = SeedRuns(run, kept="election_seeds.txt", variable="PENSTOCK_ELECTION_SEEDS", default="1-40")


def test_r16_schedules_that_once_failed() -> None:
    SEEDS.check_kept()


def test_r16_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules 1 and 2, with whole brokers: a third of the schedules at least must make a follower cut its log."""
    honest, cuts = LeaderEpochs.truncation, []

    def counted(self, diverging, log_end):
        cuts.append(log_end - honest(self, diverging, log_end))
        return honest(self, diverging, log_end)

    monkeypatch.setattr(LeaderEpochs, "truncation", counted)
    count = SEEDS.check_chosen()
    assert sum(cut > 0 for cut in cuts) >= count / 3


def test_a_leader_that_does_not_compare_epochs_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeaderEpochs, "divergence", lambda self, *_: None)
    assert "replicas-differ" in SEEDS.problems_of(range(5, 20))
