"""The broker under test: a Penstock process of our own, or one that already runs somewhere."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from .ports import HOST, free_port, wait_until_closed, wait_until_open

START_S_MAX = 30
STOP_S_MAX = 30


class Broker(Protocol):
    bootstrap: str
    data: Path | None  # None: not on this machine, or nobody told us where.

    def check_alive(self) -> None: ...
    def stop(self) -> None: ...


class ExternalBroker:
    """A broker that runs already, at PENSTOCK_COMPAT_BOOTSTRAP=host:port.

    PENSTOCK_COMPAT_DATA is its log directory, for DumpLogSegments. Kafka pads the indexes of its newest segments until
    it stops, so PENSTOCK_COMPAT_PID says which process to stop before they are read.
    """

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        data, pid = os.environ.get("PENSTOCK_COMPAT_DATA"), os.environ.get("PENSTOCK_COMPAT_PID")
        self.data = Path(data) if data and pid else None
        self._pid = int(pid) if pid else None

    def check_alive(self) -> None:
        pass

    def stop(self) -> None:
        if self._pid is not None:
            os.kill(self._pid, signal.SIGTERM)
            self._pid = None
            port = int(self.bootstrap.rsplit(":", 1)[1])
            assert wait_until_closed(port, STOP_S_MAX), f"{self.bootstrap} still answers"


class PenstockProcess:
    def __init__(self, directory: Path, config: Mapping[str, str] | None = None) -> None:
        self.data = directory / "data"
        self._config_path = directory / "server.properties"
        self._config_path.write_text("".join(f"{key}={value}\n" for key, value in (config or {}).items()))
        self._stderr_path = directory / "stderr"
        self.port = free_port()
        self.bootstrap = f"{HOST}:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def start(self) -> None:
        command = [sys.executable, "-m", "penstock.cli.main", "serve"]
        command += ["--listen", self.bootstrap, "--data", str(self.data)]
        command += ["--config", str(self._config_path)]
        self._stopped = False
        with self._stderr_path.open("ab") as stderr:
            # uvloop and typer look at nothing here; a fixed width keeps rich from folding what it logs.
            env = {**os.environ, "COLUMNS": "200"}
            self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr, env=env)
        if not wait_until_open(self.port, lambda: self._exit_code() is None, START_S_MAX):
            self.kill()
            raise RuntimeError(f"Penstock did not start to listen on {self.bootstrap}:\n{self.stderr()}")

    def check_alive(self) -> None:
        """A dead broker fails the next test at once, instead of every client's timeout."""
        if not self._stopped and self._exit_code() is not None:
            raise RuntimeError(f"Penstock died with exit code {self._exit_code()}:\n{self.stderr()}")

    def stop(self) -> None:
        """As an operator would: SIGTERM, exit code 0, and nothing on stderr that a developer forgot to handle."""
        if self._stopped:
            return
        self._stopped = True
        process = self._process
        assert process is not None
        process.send_signal(signal.SIGTERM)
        try:
            exit_code = process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"Penstock did not stop within {STOP_S_MAX} s of SIGTERM:\n{self.stderr()}") from None
        assert exit_code == 0, f"Penstock stopped with exit code {exit_code}:\n{self.stderr()}"
        assert "Traceback" not in self.stderr(), f"Penstock printed a traceback:\n{self.stderr(bytes_max=20_000)}"

    def kill(self) -> None:
        self._stopped = True
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def stderr(self, bytes_max: int = 4_000) -> str:
        text = self._stderr_path.read_text(errors="replace")
        return text if len(text) <= bytes_max else f"...{text[-bytes_max:]}"

    def _exit_code(self) -> int | None:
        return self._process.poll() if self._process is not None else None
