"""The broker, the exchange of records and Kafka's tools, once per session. Settings: README.md in this folder."""

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import pytest

from local_zookeeper import zookeeper_ensemble
from penstock.local.zookeeper import ZooKeeperEnsemble

from .broker import Broker, BrokerCluster, ExternalBroker
from .exchange import Exchange
from .kafka_tools import KafkaTools
from .missing_parts import skip_when_missing

TEST_S_MAX = 900  # The first test of a client fetches and builds it, and runs all its jobs.
BROKER_COUNT = int(os.environ.get("PENSTOCK_COMPAT_CLUSTER", "1"))
RECORD_COUNT = int(os.environ.get("PENSTOCK_COMPAT_RECORDS", "100000"))  # Per client, over all its codecs.

GROUP_CONFIG = {
    "group.initial.rebalance.delay.ms": "100",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "3000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "500",
    "offsets.topic.num.partitions": "2",  # The tests read all of it.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}

_HERE = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "stops_the_broker: runs after all other tests of this folder")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = [item for item in items if item.path.is_relative_to(_HERE)]
    for item in ours:
        item.add_marker(pytest.mark.timeout(TEST_S_MAX))
    last = [item for item in ours if item.get_closest_marker("stops_the_broker")]
    items[:] = [item for item in items if item not in last] + last


class NewCluster(Protocol):
    def __call__(
        self, config: Mapping[str, str], *, own_configs: Sequence[Mapping[str, str]] = ..., brokers: int = ...
    ) -> BrokerCluster: ...


@pytest.fixture(scope="session")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    """Three nodes for all clusters of this folder; each has a chroot of its own."""
    with zookeeper_ensemble(tmp_path_factory.mktemp("ensemble"), nodes=3) as ensemble:
        yield ensemble


@pytest.fixture(scope="session")
def new_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> NewCluster:
    """Makes clusters, not started yet, of as many brokers as this run is about."""

    def make(
        config: Mapping[str, str], *, own_configs: Sequence[Mapping[str, str]] = (), brokers: int = BROKER_COUNT
    ) -> BrokerCluster:
        directory, connect = tmp_path_factory.mktemp("penstock"), None
        if brokers > 1:
            connect = f"{request.getfixturevalue('ensemble').connect}/{directory.name}"
        own_configs = own_configs or [{}] * brokers
        return BrokerCluster(directory, zookeeper_connect=connect, config=config, own_configs=own_configs)

    return make


@pytest.fixture(scope="session")
def broker(new_cluster: NewCluster) -> Iterator[Broker]:
    bootstrap = os.environ.get("PENSTOCK_COMPAT_BOOTSTRAP")
    if bootstrap:
        yield ExternalBroker(bootstrap)
        return
    with new_cluster(GROUP_CONFIG if BROKER_COUNT > 1 else {}).serving() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def group_broker(broker: Broker, new_cluster: NewCluster) -> Iterator[Broker]:
    """One whose groups do not wait for anybody, and whose members may be declared dead soon."""
    if BROKER_COUNT > 1 or isinstance(broker, ExternalBroker):
        yield broker  # Two clusters at once would only wait for each other.
        return
    with new_cluster(GROUP_CONFIG).serving() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def cluster(new_cluster: NewCluster) -> Iterator[BrokerCluster]:
    """Three brokers, whatever the run is about, for tests that stop and start some. Leaders stay where they are put."""
    with new_cluster({**GROUP_CONFIG, "auto.leader.rebalance.enable": "false"}, brokers=3).serving() as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def broker_lives(broker: Broker) -> Iterator[None]:
    broker.check_alive()
    yield
    broker.check_alive()


@pytest.fixture(scope="session")
def topic_prefix() -> str:
    """New in every session: an external broker remembers the last one."""
    return f"compat-{secrets.token_hex(3)}"


@pytest.fixture(scope="session")
def exchange(broker: Broker, topic_prefix: str, tmp_path_factory: pytest.TempPathFactory) -> Exchange:
    exchange = Exchange(
        bootstrap=broker.bootstrap,
        directory=tmp_path_factory.mktemp("exchange"),
        topic_prefix=topic_prefix,
        record_count=RECORD_COUNT,
    )
    exchange.create_topics()
    return exchange


@pytest.fixture(scope="session")
def kafka_tools(broker: Broker) -> Iterator[KafkaTools]:
    with skip_when_missing("Kafka's command-line tools"):
        tools = KafkaTools(broker.bootstrap)
    yield tools
    tools.close()
