"""Idempotent producers, deleted records, compaction and deleted topics on a broker that dies, seed by seed.

A seed that fails prints `seed=… step=…` and its scenario. Add it to story_seeds.txt, where it stays after the fix. To
run certain seeds: `PENSTOCK_SIM_STORY_SEEDS=17 pytest tests/sim/test_stories.py`, or a range, `1-5000`.
"""

import pytest
from seed_runs import SeedRuns

from penstock.base.types import Offset
from penstock.partition.producer_files import ProducerFiles
from penstock.partition.producer_state import ProducerState
from penstock.sim.stories import run
from penstock.storage import log_manager
from penstock.storage.offset_checkpoints import OffsetCheckpoints
from penstock.storage.offset_map import OffsetMap

# 100 take about 12 s on one core.
SEEDS = SeedRuns(run, kept="story_seeds.txt", variable="PENSTOCK_SIM_STORY_SEEDS", default="1-100")


def test_seeds_that_once_failed() -> None:
    SEEDS.check_kept()


@pytest.mark.timeout(0)
def test_seeds() -> None:
    SEEDS.check_chosen()


def test_a_seed_gives_the_same_run_twice() -> None:
    SEEDS.check_twice(range(1, 6))


# The simulation is worth something only if it finds what it is there to find.


def test_a_broker_that_forgets_its_producers_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProducerFiles, "load", lambda self, now_ms: ProducerState())
    assert "idempotent producers" in SEEDS.problems_of(range(1, 50))


def test_a_log_start_that_is_not_stored_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OffsetCheckpoints, "log_start", lambda self, topic_partition: Offset(0))
    assert "records that are deleted" in SEEDS.problems_of(range(1, 50))


def test_a_compaction_that_takes_too_much_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OffsetMap, "is_latest", lambda self, key, offset: False)
    assert "the newest values were" in SEEDS.problems_of(range(1, 50))


def test_a_directory_of_a_deleted_topic_that_is_used_again_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_manager, "read_topic_id", lambda fs, directory: None)
    # One in two hundred has a crash between the deletion and its rename, and is the last to be made.
    assert "topics that are deleted" in SEEDS.problems_of(range(400, 1000))
