"""Settings and parts for all tests."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from compat.missing_parts import missing_parts
from local_zookeeper import zookeeper_ensemble
from penstock.local.zookeeper import ZooKeeperEnsemble

# No deadline per example, nor for making them: the machines that run this are shared, and a slow second says nothing
# about the code.
settings.register_profile("penstock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("penstock")

# A shell that runs us in the background ignores Ctrl-C, and so would every process that we start.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What one of several processes has to run, in order: a file, or all that shares the records of the clients."""
    compat = Path(__file__).parent / "compat"
    for item in items:
        group = compat if item.path.is_relative_to(compat) else item.path
        item.add_marker(pytest.mark.xdist_group(group.name))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    missing = missing_parts(terminalreporter)
    if missing:
        terminalreporter.section("COMPAT PARTS MISSING", red=True, bold=True)
        for part in missing:
            terminalreporter.line(part, red=True)
        terminalreporter.line("Nothing is proved about these.", red=True)


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    """One node for all tests that do it no harm; each has a chroot of its own."""
    with zookeeper_ensemble(tmp_path_factory.mktemp("zookeeper")) as ensemble:
        yield ensemble
