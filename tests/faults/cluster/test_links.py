"""Links between brokers that are cut, in one direction or both, under load. Needs hosts of our own (see hosts.py)."""

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .broker_cluster import LAG_MS, BrokerCluster, broker_cluster
from .hosts import Hosts
from .scenario import scenario

LAG_S = LAG_MS / 1000
ROUNDS = 20

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def cluster(hosts: Hosts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    with broker_cluster(tmp_path_factory.mktemp("hosts"), hosts=hosts) as cluster:
        yield cluster


def test_r8_a_leader_without_followers_acks_nothing(cluster: BrokerCluster, hosts: Hosts, histories: Path) -> None:
    with scenario(cluster, "R8 leader cut from its followers", histories, promise="no ack with ISR < 2") as run:
        leader = cluster.leader(run.topic)
        led = [p.id for p in cluster.partitions(run.topic).values() if p.leader == leader.node_id]
        others = [broker.node_id for broker in cluster.brokers if broker is not leader]
        hosts.cut([leader.node_id], others)
        time.sleep(LAG_S + 5)  # By now it is alone in the ISR, or would be if it could ask for that.
        before = list(run.workload.acked_end)
        time.sleep(5)
        after = list(run.workload.acked_end)
        still_leads = [
            p.id
            for p in cluster.partitions(run.topic, cluster[others[0]]).values()
            if p.id in led and p.leader == leader.node_id
        ]
        run.notes.append(f"{len(led)} partitions led, {len(still_leads)} of them still after {LAG_S + 10:.0f} s")
        assert [p for p in still_leads if after[p] > before[p]] == [], "acked by a leader alone"


def test_r11_one_direction_a_ring_and_one_host_after_the_other(
    cluster: BrokerCluster, hosts: Hosts, histories: Path
) -> None:
    """In the ring each host hears another one, and no two of them hear the same."""
    with scenario(cluster, "R11 one-way drops; ring; each host isolated", histories) as run:
        for drops in ([(1, 2)], [(3, 1)], [(3, 1), (1, 2), (2, 3)]):
            for source, target in drops:
                hosts.drop(source, target)
            time.sleep(10)
            hosts.heal()
            run.workload.wait_for_acks()
        for number in hosts.numbers:
            for seconds in (10, 30):
                hosts.isolate(number)
                time.sleep(seconds)
                hosts.heal()
                run.workload.wait_for_acks()
                cluster.wait_until_in_sync(run.topic)


def test_r12_links_are_cut_one_by_one_and_come_back_in_another_order(
    cluster: BrokerCluster, hosts: Hosts, histories: Path
) -> None:
    seed = random.randrange(2**32)
    draw = random.Random(seed)
    links = [(source, target) for source in hosts.numbers for target in hosts.numbers if source != target]
    with scenario(cluster, "R12 links cut and healed in drawn order", histories) as run:
        for _ in range(ROUNDS):
            for source, target in draw.sample(links, len(links)):
                hosts.drop(source, target)
                time.sleep(draw.uniform(0, 1))
            for source, target in draw.sample(links, len(links)):
                hosts.pass_again(source, target)
                time.sleep(draw.uniform(0, 1))
            run.workload.wait_for_acks()
        run.notes.append(f"{seed=}")
