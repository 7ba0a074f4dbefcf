"""Runs of a simulation over many seeds: those that once failed, those that are asked for, and bugs it must find."""

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from penstock.sim.inode import SECTOR_BYTES
from penstock.sim.report import Report

FAILURES_SHOWN_MAX = 3
NO_JOURNAL = ((0, SECTOR_BYTES),)  # For `machine.JOURNALS`.
COLLECT_EVERY = 50  # Runs leave cycles behind (tasks, transports); a collection costs about as much as a run.


class SeedRuns:
    def __init__(self, run: Callable[[int], Report], *, kept: str, variable: str, default: str) -> None:
        """`kept` is a file with a seed a line; `variable` in the environment asks for other seeds than `default`."""
        self._run = run
        self._kept = Path(__file__).with_name(kept)
        self._variable = variable
        self._default = default

    def check_kept(self) -> None:
        lines = (line.split("#")[0].strip() for line in self._kept.read_text().splitlines())
        for seed in map(int, filter(None, lines)):
            report = self._run(seed)
            assert not report.problems, str(report)

    def check_chosen(self) -> int:
        """Gives how many there were."""
        first, _, last = os.environ.get(self._variable, self._default).partition("-")
        failed: list[Report] = []
        for number, seed in enumerate(range(int(first), int(last or first) + 1)):
            report = self._run(seed)
            if report.problems:
                failed.append(report)
                if len(failed) == FAILURES_SHOWN_MAX:
                    break
            if number % COLLECT_EVERY == 0:
                gc.collect()
        assert not failed, "\n\n".join(map(str, failed))
        return number + 1

    def check_twice(self, seeds: Iterable[int]) -> None:
        for seed in seeds:
            first, second = self._run(seed), self._run(seed)
            assert (first.trace.digest(), first.steps) == (second.trace.digest(), second.steps), f"seed={seed}"

    def check_elsewhere(self, seeds: Iterable[int]) -> None:
        """In another process: other hashes of strings, other addresses. Whoever iterates over a set is found out."""
        chosen = list(seeds)
        script = f"""
import sys
moved = [object() for _ in range(int(sys.argv[1]))]
from {self._run.__module__} import run
print([run(int(seed)).trace.digest() for seed in sys.argv[2:]])
"""
        outputs = {
            subprocess.run(
                [sys.executable, "-c", script, size, *map(str, chosen)],
                env={**os.environ, "PYTHONHASHSEED": size},
                capture_output=True,
                check=True,
            ).stdout
            for size in ("1", "54321")
        }
        assert outputs == {f"{[self._run(seed).trace.digest() for seed in chosen]}\n".encode()}

    def problems_of(self, seeds: Iterable[int]) -> str:
        """The problems of the first seed that has some."""
        for seed in seeds:
            problems = self._run(seed).problems
            if problems:
                return "\n".join(problems)
        return ""
