"""One broker against a disk that loses unsynced writes and tears the last one: a thousand seeds.

A seed that fails prints `seed=… step=…` and its scenario. Add it to seeds.txt, where it stays after the fix. To run
certain seeds: `PENSTOCK_SIM_SEEDS=17 pytest tests/sim/test_one_broker.py`, or a range, `1-20000`.
"""

import itertools

from seed_runs import NO_JOURNAL, SeedRuns

from penstock.sim.disk import SimDisk
from penstock.sim.inode import Inode
from penstock.sim.one_broker import run
from penstock.sim.scenario import Outage, Scenario

SEEDS = SeedRuns(run, kept="seeds.txt", variable="PENSTOCK_SIM_SEEDS", default="1-1000")


def test_seeds_that_once_failed():
    SEEDS.check_kept()


def test_a_thousand_seeds():
    SEEDS.check_chosen()


def varied_seeds(count: int) -> list[int]:
    """Seeds that together have every way for a broker to end: each runs code of its own."""
    return [
        seed for end in Outage for seed in itertools.islice((s for s in itertools.count(1) if ends_by(s, end)), count)
    ]


def ends_by(seed: int, end: Outage) -> bool:
    return any(life.end is end for life in Scenario.draw(seed).lives)


def test_a_seed_gives_the_same_run_twice():
    SEEDS.check_twice(varied_seeds(2))


def test_a_seed_gives_the_same_run_in_another_process():
    SEEDS.check_elsewhere(varied_seeds(4))


# The simulation is worth something only if it finds what it is there to find.


def test_a_disk_that_does_not_sync_is_found_out(monkeypatch):
    monkeypatch.setattr(Inode, "sync", lambda self, begun: None)
    assert "acked-lost" in SEEDS.problems_of(range(1, 100))


def test_a_disk_that_forgets_names_is_found_out(monkeypatch):
    monkeypatch.setattr(SimDisk, "sync_dir", lambda self, path: None)
    assert "lost" in SEEDS.problems_of(range(1, 100))


def test_an_answer_before_the_sync_is_found_out(monkeypatch):
    """Writes that a sync did not see when it began are not safe when it ends."""
    from penstock.storage.log import Log

    honest = Log.on_flushed

    def hasty(self, flush):
        # Only where it is a promise: a log that is left to the kernel would be found out for its gaps first.
        honest(self, flush._replace(end=self.log_end) if self.config.durability == "fsync" else flush)

    monkeypatch.setattr(Log, "on_flushed", hasty)
    assert "acked-lost" in SEEDS.problems_of(range(1, 300))


def test_a_log_that_does_not_open_is_found_out(monkeypatch):
    """Only a disk without room excuses it, and that is the scenario of few seeds."""

    def fails(self, segment):
        raise OSError("broken")

    monkeypatch.setattr("penstock.storage.recovery._Opening._rewrite", fails)
    monkeypatch.setattr("penstock.sim.machine.JOURNALS", NO_JOURNAL)  # With one such a broker may not start at all.
    assert "kafka_storage_error" in SEEDS.problems_of(range(1, 300))
