"""Partitions that are moved to another broker under load, while one of those that are part of it dies."""

import time
from pathlib import Path

import pytest
from kafka.admin import KafkaAdminClient
from kafka.structs import TopicPartition

from .broker_cluster import BROKERS, BrokerCluster
from .scenario import Scenario, scenario

MOVE_S_MAX = 120

pytestmark = pytest.mark.long


@pytest.mark.parametrize("victim", ["nobody", "the source", "the target"])
def test_r28_partitions_are_moved_under_load(cluster: BrokerCluster, histories: Path, victim: str) -> None:
    """Each of eight partitions leaves its leader for the one broker that has no replica of it."""
    name = f"R28 move 8 partitions, kill {victim}"
    options = {"replicas": 2, "min_insync_replicas": "1", "promise": f"done <= {MOVE_S_MAX} s"}
    with scenario(cluster, name, histories, **options) as run:
        time.sleep(5)  # So that there is something to copy.
        admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(","))
        try:
            target = {
                partition.id: [*partition.replicas[1:], *({*range(1, BROKERS + 1)} - {*partition.replicas})]
                for partition in cluster.partitions(run.topic).values()
            }
            begin = time.monotonic()
            admin.alter_partition_reassignments(
                {TopicPartition(run.topic, partition): replicas for partition, replicas in target.items()}
            )
            if victim != "nobody":
                broker = cluster[target[0][-1]] if victim == "the target" else cluster.leader(run.topic, 0)
                broker.kill()
                time.sleep(1)
                broker.start()
            _wait_until_moved(cluster, run, target)
            run.notes.append(f"moved after {time.monotonic() - begin:.1f} s")
        finally:
            admin.close()


def _wait_until_moved(cluster: BrokerCluster, run: Scenario, target: dict[int, list[int]]) -> None:
    deadline = time.monotonic() + MOVE_S_MAX
    while True:
        found = {p.id: (sorted(p.replicas), sorted(p.isrs)) for p in cluster.partitions(run.topic).values()}
        if found == {partition: (sorted(replicas), sorted(replicas)) for partition, replicas in target.items()}:
            return
        assert time.monotonic() < deadline, f"not moved within {MOVE_S_MAX} s: {found}, wanted {target}"
        time.sleep(0.2)
