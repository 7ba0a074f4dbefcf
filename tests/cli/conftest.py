"""The command line against a real broker: one inside this process, or where it is the subject, one of its own."""

import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from broker_process import BrokerProcess
from penstock.cli.main import main
from penstock.testing import EmbeddedBroker
from penstock.testing.plugin import penstock_broker

__all__ = ["penstock_broker"]

PENSTOCK = [sys.executable, "-m", "penstock.cli.main"]
TIMEOUT_S = 90


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


def run_penstock(*arguments: str | Path, stdin: str | bytes = b"", environment: dict[str, str] | None = None) -> Result:
    done = subprocess.run(
        [*PENSTOCK, *map(str, arguments)],
        input=stdin.encode() if isinstance(stdin, str) else stdin,
        capture_output=True,
        timeout=TIMEOUT_S,
        env={**os.environ, **(environment or {})},
    )
    return Result(done.returncode, done.stdout.decode("utf-8", "surrogateescape"), done.stderr.decode())


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
    return {
        "penstock.durability": "fsync",  # As `penstock serve` has it: the commands speak of it.
        "log.retention.check.interval.ms": 86_400_000,  # Tests use old timestamps, and may take more than five minutes.
    }


@pytest.fixture(scope="session")
def address(penstock_broker: EmbeddedBroker) -> str:
    return penstock_broker.bootstrap_servers


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One that `penstock serve` runs."""
    with BrokerProcess(tmp_path_factory.mktemp("broker")).serving() as process:
        yield process


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
