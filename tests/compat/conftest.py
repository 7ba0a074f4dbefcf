"""The broker, the exchange of records and Kafka's tools, once per session. Settings: README.md in this folder."""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from .broker import Broker, BrokerProcess, ExternalBroker
from .exchange import Exchange
from .kafka_tools import KafkaTools
from .missing_parts import skip_when_missing

TEST_S_MAX = 900  # The first test of a client fetches and builds it, and runs all its jobs.
RECORD_COUNT = int(os.environ.get("PENSTOCK_COMPAT_RECORDS", "100000"))  # Per client, over all its codecs.

GROUP_CONFIG = {
    "group.initial.rebalance.delay.ms": "100",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "3000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "500",
    "offsets.topic.num.partitions": "2",  # The tests read all of it.
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


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    bootstrap = os.environ.get("PENSTOCK_COMPAT_BOOTSTRAP")
    if bootstrap:
        yield ExternalBroker(bootstrap)
        return
    with BrokerProcess(tmp_path_factory.mktemp("penstock")).serving() as process:
        yield process


@pytest.fixture(scope="session")
def group_broker(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One whose groups do not wait for anybody, and whose members may be declared dead soon."""
    if not isinstance(broker, BrokerProcess):
        yield broker
        return
    with BrokerProcess(tmp_path_factory.mktemp("penstock-groups"), config=GROUP_CONFIG).serving() as process:
        yield process


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
