"""A process under measurement, with its children: what they have used of the machine so far."""

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
STOP_S_MAX = 30


_SET_TIMER_SLACK, _GET_TIMER_SLACK = 29, 30  # PR_SET_TIMERSLACK, PR_GET_TIMERSLACK


@contextlib.contextmanager
def prompt_timers() -> Iterator[None]:
    """This thread, and who is started here, are woken when they asked for it, not up to 50 µs later.

    Linux does that to save power. For who sends at a rate: what it oversleeps counts as the broker's latency.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is None:  # No Linux, whose timers these are.
        yield
        return
    slack_ns = prctl(_GET_TIMER_SLACK, 0, 0, 0, 0)
    prctl(_SET_TIMER_SLACK, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_SET_TIMER_SLACK, slack_ns, 0, 0, 0)


class ProcessTree:
    """A process that runs, and all below it."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    @property
    def cpu_s(self) -> float:
        """Processor time of all threads, in user and kernel, and of the children that have ended."""
        return sum(self._cpu_ticks(pid) for pid in self.pids()) / CLOCK_TICKS

    def pids(self) -> list[int]:
        pids = [self._pid]
        for pid in pids:
            for children in Path("/proc", str(pid), "task").glob("*/children"):
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # A thread that has just ended.
                    pids += map(int, children.read_text().split())
        return pids

    def _cpu_ticks(self, pid: int) -> int:
        fields = _read(pid, "stat").rpartition(")")[2].split()
        return sum(map(int, fields[11:15]))


class MeasuredProcess:
    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self.log = log
        with log.open("wb") as output:  # A file: a pipe that nobody reads would fill up and stop the process.
            self._process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **(env or {})}
            )
        self._tree = ProcessTree(self._process.pid)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def cpu_s(self) -> float:
        return self._tree.cpu_s

    @property
    def resident_mb(self) -> float:
        return self._status_mb("VmRSS:")

    @property
    def peak_mb(self) -> float:
        return self._status_mb("VmHWM:")

    def stop(self) -> None:
        tree = self._tree.pids()
        self._process.terminate()
        try:
            self._process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            for pid in tree:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait()

    def _status_mb(self, name: str) -> float:
        if not self.is_running:
            raise RuntimeError(f"{self.log.read_text()[-2000:]}\nthe process is gone")
        lines = [line for pid in self._tree.pids() for line in _read(pid, "status").splitlines()]
        return sum(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


class HasCpuTime(Protocol):
    @property
    def cpu_s(self) -> float: ...


class CpuLaps:
    """The processor time of a process, or of several, in laps."""

    def __init__(self, process: HasCpuTime) -> None:
        self._process = process
        self._begun_s = process.cpu_s

    def lap_s(self) -> float:
        """What it has used since the last lap."""
        begun_s, self._begun_s = self._begun_s, self._process.cpu_s
        return self._begun_s - begun_s


def _read(pid: int, name: str) -> str:
    """What the kernel says of a process; zeros of one that has just ended."""
    try:
        return Path("/proc", str(pid), name).read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ") " + "0 " * 15
