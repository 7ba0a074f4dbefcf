"""Idempotent producers behind a proxy that loses a tenth of their answers: each record is there once, and in order."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ports import HOST, free_port

from .broker import Broker, BrokerProcess
from .client_kinds import CLIENT_KINDS, ClientKind
from .client_run import Job, run_jobs
from .lossy_proxy import LossyProxy
from .missing_parts import skip_when_missing
from .topics import create_topic, read_values

CLIENTS = ["java", "confluent-kafka", "kafka-python", "aiokafka", "franz-go"]
RECORD_COUNT = 3_000
PARTITION_COUNT = 2
LOST_MIN = 3  # Fewer, and the test has not tested anything.


@pytest.fixture(scope="module")
def proxied(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, int]]:
    """A broker, and the port that it tells its clients to use."""
    if not isinstance(broker, BrokerProcess):
        pytest.skip("needs a broker that tells its clients the address of the proxy")
    port = free_port()
    config = {"advertised.listeners": f"PLAINTEXT://{HOST}:{port}"}
    with BrokerProcess(tmp_path_factory.mktemp("penstock-proxied"), config=config).serving() as process:
        yield process, port


@pytest.mark.parametrize("kind", [CLIENT_KINDS[name] for name in CLIENTS], ids=lambda kind: kind.name)
def test_each_record_is_there_once_and_in_order(
    proxied: tuple[BrokerProcess, int], kind: ClientKind, tmp_path: Path
) -> None:
    process, port = proxied
    topic = f"idempotent-{kind.name}"
    proxy = LossyProxy(port, process.port, seed=13)
    with skip_when_missing(kind.name), proxy:
        create_topic(process.bootstrap, topic, partition_count=PARTITION_COUNT)
        job = Job("number", (topic, str(RECORD_COUNT), str(PARTITION_COUNT)))
        run_jobs(kind, process.bootstrap, [job], tmp_path / "jobs").check(job)
        assert proxy.lost_count >= LOST_MIN, f"only {proxy.lost_count} of {proxy.produce_count} answers were lost"
        for partition in range(PARTITION_COUNT):
            found = [int(value) for value in read_values(process.bootstrap, topic, partition)]
            assert found == list(range(partition, RECORD_COUNT, PARTITION_COUNT)), (
                f"{len(found)} records, {len(set(found))} different ones"
            )
