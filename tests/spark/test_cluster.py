"""Source and sink on a real Spark cluster: a master and two workers, the tasks in JVMs of their own."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_cluster import SparkCluster

DRIVER = Path(__file__).parent / "cluster_copy.py"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("spark-cluster")) as running:
        yield running


def test_a_topic_is_copied_by_two_executors(cluster, penstock_broker, produce, tmp_path):
    source, target = penstock_broker.create_topic(partitions=2), penstock_broker.create_topic(partitions=2)
    produce(source, [(number % 2, b"%d" % number, b"%d" % number, 0, []) for number in range(1000)])
    arguments = [cluster.url, penstock_broker.bootstrap_servers, source, target, str(tmp_path / "checkpoint")]
    seen = json.loads(cluster.run([str(DRIVER), *arguments]).splitlines()[-1])
    assert seen == {"values": list(range(1000)), "executors": 2}
    assert cluster.executors_with_tasks() == 2
