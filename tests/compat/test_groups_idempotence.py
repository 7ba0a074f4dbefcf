"""Idempotent producers behind a proxy that loses a tenth of their answers: each record is there once, and in order."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ports import HOST, free_port

from .broker import Broker, BrokerCluster, ExternalBroker
from .client_kinds import CLIENT_KINDS, ClientKind
from .client_run import Job, run_jobs
from .conftest import BROKER_COUNT, NewCluster
from .lossy_proxy import LossyProxy
from .missing_parts import skip_when_missing
from .topics import create_topic, read_values

CLIENTS = ["java", "confluent-kafka", "kafka-python", "aiokafka", "franz-go"]
RECORD_COUNT = 3_000
PARTITION_COUNT = 2
SEED = 13
LOST_MIN = 3  # Fewer, and the test has not tested anything.


@pytest.fixture(scope="module")
def proxied(broker: Broker, new_cluster: NewCluster) -> Iterator[tuple[BrokerCluster, list[LossyProxy]]]:
    """Brokers, each behind a proxy, which it tells its clients and the other brokers to use."""
    if isinstance(broker, ExternalBroker):
        pytest.skip("needs a broker that tells its clients the address of the proxy")
    ports = [free_port() for _ in range(BROKER_COUNT)]
    cluster = new_cluster({}, own_configs=[{"advertised.listeners": f"PLAINTEXT://{HOST}:{port}"} for port in ports])
    with ExitStack() as stack:
        proxies = [
            stack.enter_context(LossyProxy(port, process.port, SEED))
            for port, process in zip(ports, cluster.brokers, strict=True)
        ]
        yield stack.enter_context(cluster.serving()), proxies


@pytest.mark.parametrize("kind", [CLIENT_KINDS[name] for name in CLIENTS], ids=lambda kind: kind.name)
def test_each_record_is_there_once_and_in_order(
    proxied: tuple[BrokerCluster, list[LossyProxy]], kind: ClientKind, tmp_path: Path
) -> None:
    cluster, proxies = proxied
    topic = f"idempotent-{kind.name}"
    with skip_when_missing(kind.name):
        create_topic(cluster.bootstrap, topic, partition_count=PARTITION_COUNT)
        for proxy in proxies:
            proxy.begin(SEED)
        job = Job("number", (topic, str(RECORD_COUNT), str(PARTITION_COUNT)))
        run_jobs(kind, cluster.bootstrap, [job], tmp_path / "jobs").check(job)
        lost, asked = sum(proxy.lost_count for proxy in proxies), sum(proxy.produce_count for proxy in proxies)
        assert lost >= LOST_MIN, f"only {lost} of {asked} answers were lost"
        for partition in range(PARTITION_COUNT):
            found = [int(value) for value in read_values(cluster.bootstrap, topic, partition)]
            assert found == list(range(partition, RECORD_COUNT, PARTITION_COUNT)), (
                f"{len(found)} records, {len(set(found))} different ones"
            )
