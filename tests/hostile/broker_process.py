"""The broker under attack: a process of our own, whose memory and stderr are looked at."""

import re
import signal
import subprocess
import sys
from pathlib import Path

HOST = "127.0.0.1"
START_S_MAX = 30
STOP_S_MAX = 30


class BrokerProcess:
    def __init__(self, directory: Path, **properties: str) -> None:
        self.directory = directory
        self.data = directory / "data"
        self.port = 0
        self._properties = properties
        self._stderr_path = directory / "stderr"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "penstock.cli.main", "serve"]
        command += ["--listen", f"{HOST}:0", "--data", str(self.data)]
        if self._properties:
            config = self.directory / "broker.properties"
            lines = (f"{name.replace('_', '.')}={value}\n" for name, value in self._properties.items())
            config.write_text("".join(lines))
            command += ["--config", str(config)]
        with self._stderr_path.open("wb") as stderr:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr)
        assert self._process.stdout is not None
        welcome = self._process.stdout.readline().decode()  # Printed once the port is open.
        address = re.search(r"listens on [^ ]*:(\d+)", welcome)
        if address is None:
            self.kill()
            raise RuntimeError(f"the broker did not start: {welcome}\n{self.stderr()}")
        self.port = int(address[1])

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def rss_bytes(self) -> int:
        """What the process holds in memory now."""
        return self._status_bytes("VmRSS")

    def peak_bytes(self) -> int:
        """The most that it has held since `forget_peak`."""
        return self._status_bytes("VmHWM")

    def forget_peak(self) -> None:
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def _status_bytes(self, name: str) -> int:
        found = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text())
        assert found is not None
        return int(found[1]) * 1024

    def stderr(self) -> str:
        return self._stderr_path.read_text(errors="replace")

    def stop(self) -> None:
        """As an operator would, and nothing may be left on stderr that a developer forgot to handle."""
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the broker did not stop within {STOP_S_MAX} s:\n{self.stderr()[-4000:]}") from None
        finally:
            if self.process.stdout is not None:
                self.process.stdout.close()
        assert code == 0, f"exit code {code}:\n{self.stderr()[-4000:]}"
        assert "Traceback" not in self.stderr(), self.stderr()[-20_000:]

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
