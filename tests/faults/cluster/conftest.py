from collections.abc import Iterator
from pathlib import Path

import pytest

from compat.missing_parts import PART_MISSING

from .broker_cluster import BROKERS, BrokerCluster, broker_cluster
from .hosts import Hosts, open_hosts


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    """One for all scenarios that do not cut links between brokers: each begins by healing it."""
    with broker_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    """One for each broker. Until its end the tests are at the hub, and reach nothing that was started before."""
    opened = open_hosts(BROKERS)
    try:
        hosts = opened.__enter__()
    except OSError as error:
        pytest.skip(f"{PART_MISSING}network namespaces: {error}")
    yield hosts
    opened.__exit__(None, None, None)


@pytest.fixture
def histories(tmp_path: Path) -> Path:
    """Where the history of each scenario is written to."""
    return tmp_path
