"""Idempotent producers, deleted records, compaction and deleted topics on a broker that dies, seed by seed.

A seed that fails prints `seed=… step=…` and its scenario. Add it to story_seeds.txt, where it stays after the fix. To
run certain seeds: `PENSTOCK_SIM_STORY_SEEDS=17 pytest tests/sim/test_stories.py`, or a range, `1-5000`.
"""

import gc
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from penstock.base.types import Offset
from penstock.partition.producer_files import ProducerFiles
from penstock.partition.producer_state import ProducerState
from penstock.sim.stories import run
from penstock.storage import log_manager
from penstock.storage.offset_checkpoints import OffsetCheckpoints
from penstock.storage.offset_map import OffsetMap

FAILURES_SHOWN_MAX = 3
COLLECT_EVERY = 50  # Runs leave cycles behind (tasks, transports); a collection costs about as much as a run.


def chosen_seeds() -> range:
    # 100 take about 12 s on one core.
    first, _, last = os.environ.get("PENSTOCK_SIM_STORY_SEEDS", "1-100").partition("-")
    return range(int(first), int(last or first) + 1)


def kept_seeds() -> list[int]:
    lines = Path(__file__).with_name("story_seeds.txt").read_text().splitlines()
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


def test_a_seed_gives_the_same_run_twice() -> None:
    for seed in range(1, 6):
        first, second = run(seed), run(seed)
        assert (first.trace.digest(), first.steps) == (second.trace.digest(), second.steps), f"seed={seed}"


# The simulation is worth something only if it finds what it is there to find.


def problems_of(seeds: Iterable[int]) -> str:
    """The problems of the first seed that has some."""
    for seed in seeds:
        problems = run(seed).problems
        if problems:
            return "\n".join(problems)
    return ""


def test_a_broker_that_forgets_its_producers_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProducerFiles, "load", lambda self, now_ms: ProducerState())
    assert "idempotent producers" in problems_of(range(1, 50))


def test_a_log_start_that_is_not_stored_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OffsetCheckpoints, "log_start", lambda self, topic_partition: Offset(0))
    assert "records that are deleted" in problems_of(range(1, 50))


def test_a_compaction_that_takes_too_much_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OffsetMap, "is_latest", lambda self, key, offset: False)
    assert "the newest values were" in problems_of(range(1, 50))


def test_a_directory_of_a_deleted_topic_that_is_used_again_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_manager, "read_topic_id", lambda fs, directory: None)
    assert "topics that are deleted" in problems_of(range(1, 300))
