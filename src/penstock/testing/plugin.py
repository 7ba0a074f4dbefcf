"""pytest fixtures: a broker for the whole run, and a topic for each test. Installed with Penstock, nothing to import.

pytest loads this file in every run of every project that has Penstock installed, so it imports nothing of the broker
until a fixture is used.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from penstock.testing.embedded import EmbeddedBroker


@pytest.fixture(scope="session")
def penstock_settings() -> dict[str, Any]:
    """The settings of `penstock_broker`, with Kafka's keys. Define a fixture of this name to change them."""
    return {}


@pytest.fixture(scope="session")
def penstock_broker(penstock_settings: dict[str, Any]) -> "Iterator[EmbeddedBroker]":
    """A broker that all tests share; it starts with the first test that asks for it."""
    from penstock.testing.embedded import broker

    with broker(penstock_settings) as running:
        yield running


@pytest.fixture
def penstock_topic(penstock_broker: "EmbeddedBroker", request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of an empty topic that only this test has; deleted afterwards."""
    name = penstock_broker.create_topic(penstock_broker.unused_topic_name(like=request.node.name))
    yield name
    # The test may have deleted it itself.
    if name in penstock_broker.topics():
        penstock_broker.delete_topic(name)
