"""A broker as its own process: started, killed, stopped, and looked at from outside."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from .raw_client import HOST, free_port, wait_for_answer

START_S_MAX = 30
STOP_S_MAX = 30


class Start(NamedTuple):
    """Seconds from exec to the first answer, and how many of them a processor was wanted but others had it."""

    seconds: float
    queued_s: float

    @property
    def own_s(self) -> float:
        """What the start would have taken on a machine of its own: what a test on a shared one can hold us to."""
        return self.seconds - self.queued_s


class BrokerProcess:
    def __init__(
        self, directory: Path, *, data: Path | None = None, config: str = "", wrapper: Sequence[str] = ()
    ) -> None:
        """`wrapper` is put before the command and must exec it or stand for it (nsenter, strace)."""
        self.port = free_port()
        self.bootstrap = f"{HOST}:{self.port}"
        self.data = data or directory / "data"
        self.wrapper = list(wrapper)
        self._stderr_path = directory / "broker.stderr"
        self._config_path = directory / "broker.properties"
        self._config_path.write_text(config)
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0  # Where stderr of the running process begins.

    def start(self) -> Start:
        """Start, and wait for the first answer."""
        command = [sys.executable, "-m", "penstock.cli.main", "serve", "--listen", self.bootstrap]
        command += ["--data", str(self.data), "--config", str(self._config_path)]
        with self._stderr_path.open("ab") as stderr:
            self._log_start = stderr.tell()
            begin = time.monotonic()
            self._process = subprocess.Popen(self.wrapper + command, stdout=subprocess.DEVNULL, stderr=stderr)
        if not wait_for_answer(self.port, self.is_running, START_S_MAX):
            self.kill()
            raise AssertionError(f"the broker did not answer within {START_S_MAX} s:\n{self.stderr()}")
        return Start(time.monotonic() - begin, self._queued_s())

    @property
    def pid(self) -> int:
        """Of the broker itself, also when strace runs it."""
        assert self._process is not None
        if "strace" not in self.wrapper:
            return self._process.pid
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return int(children[0]) if children else self._process.pid

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> float:
        """SIGTERM; gives the seconds until exit. Any other exit code than 0, and any traceback, is a failure."""
        assert self._process is not None
        begin = time.monotonic()
        os.kill(self.pid, signal.SIGTERM)
        try:
            code = self._process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"no exit within {STOP_S_MAX} s of SIGTERM:\n{self.stderr()}") from None
        assert code == 0, f"exit code {code}:\n{self.stderr()}"
        self.check_log()
        return time.monotonic() - begin

    def kill(self) -> None:
        """SIGKILL: no handler runs, nothing is flushed."""
        if self._process is not None and self._process.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self._process.wait()

    # Looking

    def stderr(self) -> str:
        """What the process of the last start has logged."""
        with self._stderr_path.open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode(errors="replace")

    def check_log(self) -> None:
        """A traceback in the log is a failure that nobody has thought of."""
        assert "Traceback" not in self.stderr(), self.stderr()

    def rss_bytes(self) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmRSS")

    def _queued_s(self) -> float:
        schedstat = Path(f"/proc/{self.pid}/schedstat")  # Of the main thread, which does all the work of a start.
        return int(schedstat.read_text().split()[1]) / 1e9 if schedstat.exists() else 0.0

    def cpu_s(self) -> float:
        """Processor time used so far, by all threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def running(broker: BrokerProcess) -> Iterator[BrokerProcess]:
    """Start the broker if it is not running; whatever happens, it is gone at the end."""
    try:
        if not broker.is_running():
            broker.start()
        yield broker
    finally:
        broker.kill()
