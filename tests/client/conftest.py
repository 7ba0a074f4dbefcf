"""A broker for the client's tests, and a connection to it."""

from collections.abc import Iterator

import pytest

import penstock
from penstock.client import Connection
from penstock.testing import EmbeddedBroker
from penstock.testing.plugin import penstock_broker, penstock_topic

__all__ = ["penstock_broker", "penstock_topic"]


@pytest.fixture(scope="session")
def penstock_settings() -> dict[str, object]:
    """Transactions that have timed out are looked for more often than every five seconds."""
    return {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 200}


@pytest.fixture(scope="session")
def connection(penstock_broker: EmbeddedBroker) -> Iterator[Connection]:
    """One for all tests: librdkafka takes half a second to get a producer id."""
    with penstock.connect(penstock_broker.bootstrap_servers, publish_timeout=60) as opened:
        yield opened
