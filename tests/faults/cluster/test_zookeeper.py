"""ZooKeeper that goes, or that one broker alone cannot reach, under load."""

import time
from pathlib import Path

import pytest

from ..load import create_topic, read_all, wait_until
from .broker_cluster import SESSION_MS, BrokerCluster
from .leader_probe import LeaderProbe, lost, overlap_s
from .scenario import REPLICAS, scenario

WITHOUT_MAJORITY_S = 60
SESSION_S = SESSION_MS / 1000

pytestmark = pytest.mark.long


@pytest.mark.parametrize("fault", ["cut from ZooKeeper", "asleep"])
def test_r9_never_two_leaders_take_writes(cluster: BrokerCluster, histories: Path, fault: str) -> None:
    name = f"R9 leader {fault}, clients reach it"
    with scenario(cluster, name, histories, promise="overlap of two leaders 0 ms") as run:
        probed = f"probe-{run.topic}"
        place = create_topic(cluster.bootstrap, probed, 1, replication_factor=REPLICAS)[0]
        cluster.wait_until_in_sync(probed)
        leader = cluster.leader(probed)
        other = next(broker for broker in cluster.brokers if broker is not leader)
        probe = LeaderProbe(probed, cluster.brokers)
        with probe.running():
            time.sleep(1)
            if fault == "asleep":
                leader.pause()
            else:
                cluster.cut_from_zookeeper(leader)
            cut_at = time.monotonic()
            cluster.leader(probed, asked=other, not_=[leader])
            moved_s = time.monotonic() - cut_at
            time.sleep(3)
            leader.resume()
            time.sleep(3)
            answers = list(probe.answers)
        cluster.heal()
        run.notes.append(
            f"leader moved after {moved_s:.1f} s, overlap {overlap_s(answers, leader.node_id) * 1000:.0f} ms, "
            f"{sum(answer.code == 0 for answer in answers):,} of {len(answers):,} probes taken"
        )
        assert any(answer.code == 0 and answer.node_id != leader.node_id for answer in answers), "nobody took over"
        assert overlap_s(answers, leader.node_id) == 0
        cluster.wait_until_in_sync(probed)
        assert lost(probe.answers, read_all(cluster.bootstrap, [place])[place]) == []


@pytest.mark.parametrize("fault", ["cut from ZooKeeper", "asleep"])
def test_r10_another_controller_takes_over_and_the_old_one_follows_it(
    cluster: BrokerCluster, histories: Path, fault: str
) -> None:
    with scenario(cluster, f"R10 controller {fault}", histories) as run:
        old = cluster.controller()
        other = next(broker for broker in cluster.brokers if broker is not old)
        begin = time.monotonic()
        if fault == "asleep":
            old.pause()
        else:
            cluster.cut_from_zookeeper(old)
        new = cluster.controller(asked=other, not_=[old])
        run.notes.append(f"another controlled after {time.monotonic() - begin:.1f} s")
        create_topic(new.bootstrap, f"meanwhile-{run.topic}", 1)
        run.workload.wait_for_acks()
        cluster.heal()
        cluster.wait_until_in_sync(run.topic)
        wait_until(
            lambda: len({cluster.metadata(broker).controller_id for broker in cluster.brokers}) == 1,
            "brokers agree on who controls",
        )
        wait_until(
            lambda: all(f"meanwhile-{run.topic}" in cluster.metadata(broker).topics for broker in cluster.brokers),
            "all know the topic that was made meanwhile",
        )


def test_r15_zookeeper_loses_its_leader_then_its_majority_then_all_sessions(
    cluster: BrokerCluster, histories: Path
) -> None:
    name = "R15 ZooKeeper without its leader, without 2 of 3, sessions expired"
    with scenario(cluster, name, histories, promise="back <= 15 s") as run:
        leader = cluster.zookeeper.leader()
        leader.kill()
        run.workload.wait_for_acks()
        leader.start()
        leader.wait_until_serving()

        acked_before = run.workload.acked_count
        for node in cluster.zookeeper.nodes[:2]:
            node.kill()
        time.sleep(WITHOUT_MAJORITY_S)
        acked_meanwhile = run.workload.acked_count - acked_before
        for node in cluster.zookeeper.nodes[:2]:
            node.start()
        for node in cluster.zookeeper.nodes[:2]:
            node.wait_until_serving()
        begin = time.monotonic()
        run.workload.wait_for_acks()
        back_s = time.monotonic() - begin
        run.notes.append(f"{acked_meanwhile:,} acked without a majority, back after {back_s:.1f} s")

        for broker in cluster.brokers:
            cluster.cut_from_zookeeper(broker)
        time.sleep(2 * SESSION_S)
        cluster.heal()
        begin = time.monotonic()
        run.workload.wait_for_acks()
        anew_s = time.monotonic() - begin
        run.notes.append(f"with new sessions after {anew_s:.1f} s")
    assert max(back_s, anew_s) < 15
