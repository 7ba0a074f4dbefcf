"""A broker as its own process: started, stopped, killed, and looked at from outside.

For tests whose subject is the process or its machine. Those that only need a broker have `penstock_broker`, from our
own pytest plugin: it runs in the process of the tests, and starts in a tenth of the time.
"""

import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from ports import HOST, free_port

START_S_MAX = 120
STOP_S_MAX = 60

_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)


class BrokerProcess:
    def __init__(
        self,
        directory: Path,
        *,
        data: Path | None = None,
        config: Mapping[str, str] | None = None,
        wrapper: Sequence[str] = (),
        arguments: Sequence[str] = (),
        host: str = HOST,
    ) -> None:
        """`config` has Kafka's keys, `arguments` are further options of `penstock serve`.

        `wrapper` is put before the command and must exec it or stand for it. `host` is what it listens on.
        """
        self.directory = directory
        self.data = data or directory / "data"
        self.port = free_port()  # Its own for life: clients find it again after a restart.
        self.host = host
        self.bootstrap = f"{host}:{self.port}"
        self.wrapper = list(wrapper)
        self.arguments = list(arguments)
        self._config_path = directory / "server.properties"
        self._config_path.write_text("".join(f"{key}={value}\n" for key, value in (config or {}).items()))
        self._stdout_path, self._stderr_path = directory / "stdout", directory / "stderr"
        self._process: subprocess.Popen[bytes] | None = None  # None: not started, or ended by us.
        self._log_start = 0  # Where stderr of the last start begins.

    def start(self) -> float:
        """The seconds from exec to the first answer."""
        begin = time.monotonic()
        self.begin_start()
        self.wait_until_answering()
        return time.monotonic() - begin

    def begin_start(self) -> None:
        """Exec; `wait_until_answering` says when it serves."""
        command = [*self.wrapper, sys.executable, "-m", "penstock.cli.main", "serve", "--listen", self.bootstrap]
        command += ["--data", str(self.data), "--config", str(self._config_path), *self.arguments]
        # Files: a pipe that nobody reads would fill up and stop the broker.
        with self._stdout_path.open("wb") as stdout, self._stderr_path.open("ab") as stderr:
            self._log_start = stderr.tell()
            self._process = subprocess.Popen(command, stdout=stdout, stderr=stderr)

    def wait_until_answering(self) -> None:
        begin = time.monotonic()
        while not _answers(self.host, self.port):
            if not self.is_running() or time.monotonic() - begin > START_S_MAX:
                self.kill()
                raise AssertionError(f"the broker did not start within {START_S_MAX} s:\n{self.stderr()[-4000:]}")
            time.sleep(0.002)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> float:
        """As an operator would; gives the seconds until exit, and does nothing when we have ended it already.

        Any exit code but 0, and anything on stderr that a developer forgot to handle, is a failure.
        """
        if self._process is None:
            return 0.0
        begin = time.monotonic()
        self.signal(number)
        try:
            code = self._process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"no exit within {STOP_S_MAX} s of {number.name}:\n{self.stderr()[-4000:]}") from None
        self._process = None
        assert code == 0, f"exit code {code}:\n{self.stderr()[-4000:]}"
        self.check_log()
        return time.monotonic() - begin

    def kill(self) -> None:
        """SIGKILL: no handler runs, nothing is flushed."""
        if self._process is not None and self._process.poll() is None:
            self.signal(signal.SIGKILL)
            self._process.wait()
        self._process = None

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    @contextmanager
    def serving(self) -> Iterator[Self]:
        """Started meanwhile, stopped at the end; whatever happens, it is gone then."""
        try:
            self.start()
            yield self
            self.stop()
        finally:
            self.kill()

    # Looking

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def check_alive(self) -> None:
        """A dead broker fails the next test at once, instead of every client's timeout."""
        code = self._process.poll() if self._process is not None else None
        assert code is None, f"the broker died with exit code {code}:\n{self.stderr()[-4000:]}"

    def welcome(self) -> str:
        """What the last start has printed for people."""
        return self._stdout_path.read_text()

    def stderr(self) -> str:
        """What the last start has logged."""
        with self._stderr_path.open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode(errors="replace")

    def check_log(self) -> None:
        """A traceback in the log is a failure that nobody has thought of."""
        assert "Traceback" not in self.stderr(), self.stderr()[-20_000:]

    def rss_bytes(self) -> int:
        """What the process holds in memory now."""
        return self._status_bytes("VmRSS")

    def peak_bytes(self) -> int:
        """The most that it has held since `forget_peak`."""
        return self._status_bytes("VmHWM")

    def forget_peak(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def cpu_s(self) -> float:
        """Processor time used so far, by all threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _status_bytes(self, name: str) -> int:
        found = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        assert found is not None
        return int(found[1]) * 1024


def _answers(host: str, port: int) -> bool:
    """Whether ApiVersions is answered."""
    try:
        with socket.create_connection((host, port), timeout=1) as connection:
            connection.sendall(_API_VERSIONS)
            return bool(connection.recv(4))
    except OSError:
        return False
