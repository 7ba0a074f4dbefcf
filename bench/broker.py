"""A broker process of its own, and what it has used of the machine."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

START_S_MAX = 20
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class BrokerProcess:
    def __init__(self, directory: Path) -> None:
        self._data = tempfile.TemporaryDirectory(dir=directory)
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "penstock.cli.main", "serve"]
        options = ["--listen", f"127.0.0.1:{self.port}", "--data", self._data.name]
        start = time.perf_counter()
        self._process = subprocess.Popen(command + options, stdout=subprocess.DEVNULL)
        while time.perf_counter() - start < START_S_MAX:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.01)
        self.start_s = time.perf_counter() - start
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._data.cleanup()

    @property
    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS

    @property
    def resident_mb(self) -> float:
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise RuntimeError("the broker is gone")
