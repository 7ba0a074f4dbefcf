"""One broker for all rows. After each of them it lives, its memory is as before, and it serves another client."""

from collections.abc import Iterator
from itertools import count

import pytest

from .broker_process import BrokerProcess
from .client import Client, batch_of, eventually

RSS_GROWTH_BYTES_MAX = 64 << 20
HEALTH_TOPIC = "health"

_numbers = count(1)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    # Two levels down, so that what lies beside it is ours alone: names with ../ in them must not reach it.
    directory = tmp_path_factory.mktemp("hostile") / "outer" / "inner"
    directory.mkdir(parents=True)
    # Nor is anything deleted for its age meanwhile: there are batches from the year 1970.
    with BrokerProcess(directory, log_retention_check_interval_ms="86400000").serving() as process:
        with Client(process.port) as client:
            assert client.create_topic(HEALTH_TOPIC) == 0
            for _ in range(50):  # What a broker loads and reserves once is not what an attack costs.
                check_health(process)
        yield process


@pytest.fixture(autouse=True)
def unharmed(request: pytest.FixtureRequest) -> Iterator[None]:
    """For every test that attacks the shared broker."""
    if "broker" not in request.fixturenames:
        yield
        return
    broker: BrokerProcess = request.getfixturevalue("broker")
    before, logged = broker.rss_bytes(), len(broker.stderr())
    yield
    assert broker.is_alive, broker.stderr()[-4000:]
    check_health(broker)
    assert "Traceback" not in broker.stderr()[logged:], broker.stderr()[logged:][-8000:]
    eventually(lambda: broker.rss_bytes() - before <= RSS_GROWTH_BYTES_MAX, "the memory is given back")


def check_health(broker: BrokerProcess) -> None:
    """A produce and a fetch of another client."""
    with Client(broker.port) as client:
        code, offset = client.produce(HEALTH_TOPIC, batch_of(b"still here"))
        assert code == 0
        found = client.fetch(HEALTH_TOPIC, offset, wait_ms=30_000)
        assert int(found.error_code) == 0
        assert b"still here" in found.records


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[Client]:
    with Client(broker.port) as client:
        yield client


@pytest.fixture
def topic(client: Client) -> str:
    """A fresh topic."""
    name = f"topic-{next(_numbers)}"
    assert client.create_topic(name) == 0
    return name
