import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from . import figures
from .broker_process import BrokerProcess


@pytest.fixture
def new_broker(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """Makes brokers, not yet started, in the test's directory; whatever happens, they are gone after the test."""
    brokers: list[BrokerProcess] = []

    def make(**options: Any) -> BrokerProcess:
        directory = tmp_path / f"broker-{len(brokers)}"
        directory.mkdir()
        brokers.append(BrokerProcess(directory, **options))
        return brokers[-1]

    yield make
    for broker in brokers:
        broker.kill()


@pytest.fixture
def verify_log() -> Callable[..., None]:
    """`penstock log verify` on the files of a broker that is not running: no half batch, no index that misleads."""

    def verify(directory: Path) -> None:
        command = [sys.executable, "-m", "penstock.cli.main", "log", "verify", str(directory)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr

    return verify


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = figures.table()
    if lines:
        terminalreporter.section("figures of the fault tests")
        for line in lines:
            terminalreporter.write_line(line)
        figures.store()
