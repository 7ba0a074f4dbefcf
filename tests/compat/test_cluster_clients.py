"""A client of each family writes to three brokers, and reads it back. All tests of this folder against a cluster, and
all clients with all codecs, are `make compat CLUSTER=3`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from .broker import BrokerCluster
from .client_kinds import CLIENT_KINDS, ClientKind
from .client_run import Job, run_jobs
from .comparison import assert_same_records
from .corpus import PARTITION_COUNT, write_corpus
from .missing_parts import skip_when_missing
from .topics import create_topic

CODECS = {"confluent-kafka": "zstd", "kafka-python": "gzip", "java": "lz4", "franz-go": "snappy", "kafkajs": "none"}
RECORD_COUNT = 500


@pytest.fixture(autouse=True)
def broker_lives(cluster: BrokerCluster) -> Iterator[None]:
    """The one broker of other tests is not needed here."""
    cluster.check_alive()
    yield
    cluster.check_alive()


@pytest.mark.parametrize("kind", [CLIENT_KINDS[name] for name in CODECS], ids=lambda kind: kind.name)
def test_reads_back_what_it_wrote(cluster: BrokerCluster, kind: ClientKind, tmp_path: Path) -> None:
    topic, codec = f"cluster-{kind.name}", CODECS[kind.name]
    create_topic(cluster.bootstrap, topic, partition_count=PARTITION_COUNT)
    corpus = write_corpus(tmp_path / "corpus", codec=codec, record_count=RECORD_COUNT, limits=kind.limits)
    produce = Job("produce", (topic, codec, str(corpus.to_send)))
    consume = Job("consume", (topic, str(PARTITION_COUNT), str(tmp_path / "read")))
    with skip_when_missing(kind.name):
        outcomes = run_jobs(kind, cluster.bootstrap, [produce, consume], tmp_path / "jobs")
    for job in (produce, consume):
        outcomes.check(job)
    assert_same_records(consume.output, corpus.as_logged, with_timestamps=kind.sets_timestamps)
