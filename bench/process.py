"""A process under measurement: what it has used of the machine so far."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
STOP_S_MAX = 30


class MeasuredProcess:
    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self.log = log
        with log.open("wb") as output:  # A file: a pipe that nobody reads would fill up and stop the process.
            self._process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **(env or {})}
            )

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def cpu_s(self) -> float:
        """Processor time of all its threads, in user and kernel."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS

    @property
    def resident_mb(self) -> float:
        return self._status_mb("VmRSS:")

    @property
    def peak_mb(self) -> float:
        return self._status_mb("VmHWM:")

    def _status_mb(self, name: str) -> float:
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) / 1024
        raise RuntimeError(f"{self.log.read_text()[-2000:]}\nthe process is gone")

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
