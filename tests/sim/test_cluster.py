"""A cluster against crashes, cut links, pauses and a metadata store that comes and goes: three hundred seeds.

A seed that fails prints `seed=… step=…` and its scenario. Add it to cluster_seeds.txt, where it stays after the fix. To
run certain seeds: `PENSTOCK_CLUSTER_SEEDS=17 pytest tests/sim/test_cluster.py`, or a range, `1-20000`.
"""

from seed_runs import NO_JOURNAL, SeedRuns

from penstock.cluster.image import PartitionState
from penstock.partition.leader_epochs import LeaderEpochs
from penstock.partition.partition import Partition
from penstock.partition.replica_state import ReplicaState
from penstock.sim.cluster import run
from penstock.sim.cluster_scenario import FAULT_WEIGHTS, ClusterScenario

SEEDS = SeedRuns(run, kept="cluster_seeds.txt", variable="PENSTOCK_CLUSTER_SEEDS", default="1-300")


def test_seeds_that_once_failed():
    SEEDS.check_kept()


def test_three_hundred_seeds():
    SEEDS.check_chosen()


def varied_seeds() -> list[int]:
    """Seeds that together have every fault."""
    chosen: list[int] = []
    missing = set(FAULT_WEIGHTS)
    seed = 0
    while missing:
        seed += 1
        faults = {mishap.fault for mishap in ClusterScenario.draw(seed).mishaps}
        if faults & missing:
            missing -= faults
            chosen.append(seed)
    return chosen


def test_a_seed_gives_the_same_run_twice():
    SEEDS.check_twice(varied_seeds())


def test_a_seed_gives_the_same_run_in_another_process():
    SEEDS.check_elsewhere(varied_seeds())


# The simulation is worth something only if it finds what it is there to find.


def test_a_log_that_is_cut_by_its_high_watermark_is_found_out(monkeypatch):
    """What is committed need not be known to be (KIP-101)."""
    honest = Partition.open

    def cut_and_open(self, high_watermark):
        self.log.truncate(max(self.log.log_start, min(high_watermark, self.log.log_end)))
        honest(self, high_watermark)

    monkeypatch.setattr(Partition, "open", cut_and_open)
    assert SEEDS.problems_of(range(30, 150))


def test_a_follower_that_has_not_synced_is_found_out(monkeypatch):
    honest = Partition.safe_end.fget
    hasty = property(lambda self: self.log.log_end if self.leading is None else honest(self))
    monkeypatch.setattr(Partition, "safe_end", hasty)
    assert "acked with too few copies" in SEEDS.problems_of(range(1, 50))


def test_a_leader_that_does_not_compare_epochs_is_found_out(monkeypatch):
    monkeypatch.setattr(LeaderEpochs, "divergence", lambda self, *_: None)
    assert "replicas-differ" in SEEDS.problems_of(range(1, 100))


def test_an_isr_that_is_not_maximal_is_found_out(monkeypatch):
    """While a change is under way, those that leave still count (KIP-497)."""
    hasty = property(lambda self: self.isr if self.pending is None else self.pending)
    monkeypatch.setattr(ReplicaState, "maximal_isr", hasty)
    assert "acked with too few copies" in SEEDS.problems_of(range(50, 200))


def test_a_watermark_that_moves_with_too_few_in_sync_is_found_out(monkeypatch):
    honest = ReplicaState.advance
    monkeypatch.setattr(ReplicaState, "advance", lambda self, *, isr_min: honest(self, isr_min=0))
    assert "shown with too few copies" in SEEDS.problems_of(range(1, 150))


def test_a_new_leader_that_shows_an_old_watermark_is_found_out(monkeypatch):
    monkeypatch.setattr(Partition, "check_settled", lambda self: None)
    assert "watermark-back" in SEEDS.problems_of(range(30, 200))


def test_followers_that_forget_producers_are_found_out(monkeypatch):
    honest = Partition.copy

    def forgetful(self, records):
        with monkeypatch.context() as patch:
            patch.setattr(self.producers, "apply", lambda *_: None)
            honest(self, records)

    monkeypatch.setattr(Partition, "copy", forgetful)
    assert "duplicate" in SEEDS.problems_of(range(1, 100))


def test_a_leader_that_goes_on_in_its_old_epoch_is_found_out(monkeypatch):
    monkeypatch.setattr(PartitionState, "is_led_by", lambda self, broker: self.leader == broker.node_id)
    # One seed in thousands shows it, and this one without a journal.
    monkeypatch.setattr("penstock.sim.machine.JOURNALS", NO_JOURNAL)
    assert "replicas-differ" in SEEDS.problems_of([1777])
