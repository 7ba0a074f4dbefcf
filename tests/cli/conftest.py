"""The command line against a real broker: one inside this process, or where it is the subject, one of its own."""

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock.cli.main import main
from penstock.testing import EmbeddedBroker
from penstock.testing.plugin import penstock_broker

__all__ = ["penstock_broker"]

PENSTOCK = [sys.executable, "-m", "penstock.cli.main"]
TIMEOUT_S = 30


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> Any:
        return json.loads(self.err.splitlines()[-1])["error"]


class Broker(NamedTuple):
    address: str
    data: Path
    process: subprocess.Popen[str]
    welcome: str


def run_penstock(*arguments: str | Path, stdin: str | bytes = b"", environment: dict[str, str] | None = None) -> Result:
    done = subprocess.run(
        [*PENSTOCK, *map(str, arguments)],
        input=stdin.encode() if isinstance(stdin, str) else stdin,
        capture_output=True,
        timeout=TIMEOUT_S,
        env={**os.environ, **(environment or {})},
    )
    return Result(done.returncode, done.stdout.decode("utf-8", "surrogateescape"), done.stderr.decode())


def free_port() -> int:
    with socket.create_server(("localhost", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def start_broker(data: Path, *options: str) -> Broker:
    """A broker that takes connections."""
    address = f"localhost:{free_port()}"
    with _log_of(data).open("w") as log:  # A pipe that nobody reads would fill up and stop the broker.
        process = subprocess.Popen(
            [*PENSTOCK, "serve", "--listen", address, "--data", str(data), *options],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "consume" in line:
            break
    else:
        raise AssertionError(f"the broker did not start: {_log_of(data).read_text()}")
    return Broker(address, data, process, "".join(lines))


def _log_of(data: Path) -> Path:
    return data.with_name(f"{data.name}.log")


def stop_broker(broker: Broker, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
    """Exit code and log of a broker that was told to stop."""
    broker.process.send_signal(number)
    broker.process.communicate(timeout=TIMEOUT_S)
    return broker.process.returncode, _log_of(broker.data).read_text()


def on_a_terminal(*arguments: str) -> bytes:
    """What the command shows on a terminal, where stdin is not one."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "COLUMNS": "160"}  # Wide enough that no table is folded.
    process = subprocess.Popen([*PENSTOCK, *arguments], stdout=follower, stderr=subprocess.DEVNULL, env=environment)
    os.close(follower)
    shown = b""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            chunk = os.read(leader, 4096)
        except OSError:  # Linux: the last writer has closed its end.
            break
        if not chunk:
            break
        shown += chunk
    os.close(leader)
    process.wait(TIMEOUT_S)
    return shown


@pytest.fixture(scope="session")
def penstock_settings() -> dict[str, Any]:
    return {"penstock.durability": "fsync"}  # As `penstock serve` has it: the commands speak of it.


@pytest.fixture(scope="session")
def address(penstock_broker: EmbeddedBroker) -> str:
    return penstock_broker.bootstrap_servers


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One that `penstock serve` runs."""
    broker = start_broker(tmp_path_factory.mktemp("broker") / "data")
    # A broker that serves nothing should cost one failure, not the patience of every test.
    ready = run_penstock("topics", "create", "ready", "-b", broker.address)
    assert ready.code == 0, ready.err
    yield broker
    stop_broker(broker)


@pytest.fixture
def penstock(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs a command against the broker, inside this process: a new one takes half a second to import the clients."""
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP_SERVER", address)

    def run(*arguments: str | Path, stdin: str | bytes = b"") -> Result:
        files = [tmp_path / f".{name}" for name in ("stdin", "stdout", "stderr")]
        files[0].write_bytes(stdin.encode() if isinstance(stdin, str) else stdin)
        with (
            files[0].open() as in_,
            files[1].open("w") as out,
            files[2].open("w") as err,
            monkeypatch.context() as patch,
        ):
            patch.setattr(sys, "stdin", in_)
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            code = main([str(argument) for argument in arguments])
        return Result(code, files[1].read_bytes().decode("utf-8", "surrogateescape"), files[2].read_text())

    return run


@pytest.fixture
def topic(request: pytest.FixtureRequest, penstock: Callable[..., Result]) -> str:
    """A fresh topic with two partitions, named for its test."""
    name = request.node.name.removeprefix("test_").replace("[", "-").replace("]", "")
    assert penstock("topics", "create", name, "--partitions", "2").code == 0
    return name
