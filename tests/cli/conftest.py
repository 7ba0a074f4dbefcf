"""Real processes: a broker on a free port, and the command line against it."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

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


def start_broker(data: Path, *options: str, address: str | None = None) -> Broker:
    address = address or f"localhost:{free_port()}"
    process = subprocess.Popen(
        [*PENSTOCK, "serve", "--listen", address, "--data", str(data), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "consume" in line:
            break
    else:
        raise AssertionError(f"the broker did not start: {process.communicate()[1]}")
    return Broker(address, data, process, "".join(lines))


def stop_broker(broker: Broker) -> tuple[int, str]:
    """Exit code and stderr of a broker that was asked to stop."""
    broker.process.send_signal(signal.SIGTERM)
    _, err = broker.process.communicate(timeout=TIMEOUT_S)
    return broker.process.returncode, err


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = start_broker(tmp_path_factory.mktemp("broker") / "data")
    yield broker
    stop_broker(broker)


@pytest.fixture
def penstock(broker: Broker) -> Callable[..., Result]:
    """Runs a command against the broker."""

    def run(*arguments: str | Path, stdin: str | bytes = b"") -> Result:
        return run_penstock(
            *arguments, stdin=stdin, environment={"PENSTOCK_BOOTSTRAP_SERVER": broker.address, "TZ": "UTC"}
        )

    return run


@pytest.fixture
def topic(request: pytest.FixtureRequest, penstock: Callable[..., Result]) -> str:
    """A fresh topic with two partitions, named for its test."""
    name = request.node.name.removeprefix("test_").replace("[", "-").replace("]", "")
    assert penstock("topics", "create", name, "--partitions", "2").code == 0
    return name
