"""Brokers that are killed, stopped, restarted and put to sleep, one or all, under load."""

import random
import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from .. import figures
from ..load import CLIENT, create_topic, produce_one, read_all, wait_until
from .broker_cluster import LAG_MS, SESSION_MS, BrokerCluster, drawn
from .scenario import REPLICAS, scenario

SESSION_S = SESSION_MS / 1000
LAG_S = LAG_MS / 1000

long = pytest.mark.long


@pytest.mark.parametrize("kills", [1, pytest.param(5, marks=long)])
def test_r1_the_leader_is_killed_and_killed_again(cluster: BrokerCluster, histories: Path, kills: int) -> None:
    promise = f"T <= session ({SESSION_S:.0f} s) + 3 s"
    with scenario(cluster, f"R1 kill -9 the leader, {kills} times", histories, promise=promise) as run:
        for _ in range(kills):
            leader = cluster.leader(run.topic)
            leader.kill()
            run.workload.wait_for_acks()
            leader.start()
            cluster.wait_until_in_sync(run.topic)
    assert run.verdict.write_gap_s < 3 * SESSION_S, "nobody took over"


def test_r2_all_brokers_are_restarted_one_after_the_other(cluster: BrokerCluster, histories: Path) -> None:
    with scenario(cluster, "R2 rolling restart", histories, promise="T <= 1 s, exit <= 10 s") as run:
        stops = []
        for broker in cluster.brokers:
            stops.append(broker.stop())
            broker.start()
            cluster.wait_until_in_sync(run.topic)
        run.notes.append(f"exit after {max(stops):.1f} s at most")
    assert run.verdict.write_gap_s < SESSION_S, "a leader went without handing over: its session had to end"
    assert max(stops) < 10


@long
def test_r3_all_brokers_are_killed_at_once(cluster: BrokerCluster, histories: Path) -> None:
    seed = random.randrange(2**32)
    draw = random.Random(seed)
    with scenario(cluster, "R3 kill -9 all brokers, 3 times", histories, promise="serving <= 30 s") as run:
        serving = []
        for _ in range(3):
            time.sleep(draw.uniform(0.5, 2))
            cluster.kill_all()
            begin = time.monotonic()
            cluster.start(drawn(draw, cluster.brokers))
            run.workload.wait_for_acks()
            serving.append(time.monotonic() - begin)
            cluster.wait_until_in_sync(run.topic)
        run.notes.append(f"serving after {max(serving):.1f} s at most ({seed=})")
    assert max(serving) < 30


@long
def test_r6_a_leader_that_sleeps_through_its_session_wakes_as_a_zombie(cluster: BrokerCluster, histories: Path) -> None:
    with scenario(cluster, "R6 SIGSTOP the leader for 2 sessions", histories) as run:
        leader = cluster.leader(run.topic)
        other = next(broker for broker in cluster.brokers if broker is not leader)
        leader.pause()
        slept_at = time.monotonic()
        cluster.leader(run.topic, asked=other, not_=[leader])
        run.workload.wait_for_acks()
        time.sleep(max(0.0, slept_at + 2 * SESSION_S - time.monotonic()))
        leader.resume()
        run.workload.wait_for_acks()
        cluster.wait_until_in_sync(run.topic)
    assert run.verdict.write_gap_s < 3 * SESSION_S


@long
def test_r7_a_follower_that_falls_behind_leaves_the_isr_and_comes_back(cluster: BrokerCluster, histories: Path) -> None:
    promise = f"out of the ISR <= {LAG_S + 2:.0f} s, back <= 30 s"
    with scenario(cluster, "R7 SIGSTOP a follower", histories, promise=promise) as run:
        leader = cluster.leader(run.topic)
        follower = next(broker for broker in cluster.brokers if broker is not leader)
        begin = time.monotonic()
        follower.pause()
        while follower.node_id in cluster.isr(run.topic, 0, asked=leader):
            assert time.monotonic() - begin < SESSION_S + LAG_S + 30, "it stays in the ISR"
            time.sleep(0.05)
        shrunk_s = time.monotonic() - begin
        led = [p.id for p in cluster.partitions(run.topic, leader).values() if p.leader == leader.node_id]
        run.workload.wait_for_acks(led)
        follower.resume()
        back_s = cluster.wait_until_in_sync(run.topic)
        run.notes.append(f"out of the ISR after {shrunk_s:.1f} s, back after {back_s:.1f} s")
    assert back_s < 30


@long
def test_r17_a_replica_that_missed_something_does_not_lead(cluster: BrokerCluster, histories: Path) -> None:
    """Who was in sync is gone, who was not is back: the partitions wait, and nothing is lost."""
    with scenario(cluster, "R17 only an out-of-sync replica is up", histories) as run:
        stale = cluster.leader(run.topic)
        in_sync = [broker for broker in cluster.brokers if broker is not stale]
        stale.kill()
        wait_until(
            lambda: all(
                stale.node_id not in partition.isrs for partition in cluster.partitions(run.topic, in_sync[0]).values()
            ),
            "it is out of every ISR",
        )
        run.workload.wait_for_acks()
        for broker in in_sync:
            broker.kill()
        acked_before = run.workload.acked_count
        stale.start()
        time.sleep(2 * SESSION_S)  # By now nobody takes the others for alive.
        leaders = {partition.leader for partition in cluster.partitions(run.topic, stale).values()}
        run.notes.append(f"leaders meanwhile: {sorted(leaders)}")
        assert leaders == {-1}
        assert run.workload.acked_count == acked_before
        cluster.start()
        run.workload.wait_for_acks()


@long
def test_r17_unless_the_operator_allows_it_and_then_readers_are_told(cluster: BrokerCluster, histories: Path) -> None:
    cluster.heal()
    cluster.forget_logs()
    topic = f"unclean-{time.time_ns()}"
    place = create_topic(cluster.bootstrap, topic, 1, REPLICAS)[0]
    cluster.wait_until_in_sync(topic)
    assert produce_one(cluster.bootstrap, place, b"on all") is None
    leader = cluster.leader(topic)
    stale = next(broker for broker in cluster.brokers if broker is not leader)
    stale.kill()
    wait_until(lambda: stale.node_id not in cluster.isr(topic, 0, asked=leader), "it is out of the ISR")
    assert produce_one(cluster.bootstrap, place, b"on two") is None
    for broker in cluster.brokers:
        broker.kill()
    stale.start()
    change = ConfigEntry("unclean.leader.election.enable", "true", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
    wait_until(lambda: cluster.controller(asked=stale) is stale, "it controls")
    admin = AdminClient({**CLIENT, "bootstrap.servers": stale.bootstrap})
    admin.incremental_alter_configs([resource], request_timeout=60)[resource].result(90)
    assert cluster.leader(topic, asked=stale) is stale
    cluster.start()
    cluster.wait_until_in_sync(topic)
    records = read_all(cluster.bootstrap, [place])[place]
    assert [value for _, value in records] == [b"on all"]
    said = [line for line in stale.stderr().splitlines() if "unclean leader elected" in line]
    assert len(said) == 1, "the operator is to be told once"
    assert "unclean_elections=1" in said[0]
    assert cluster.crashes() == []
    figures.note("R17 unclean election, allowed", "an out-of-sync replica leads, 1 of 2 records lost, said in the log")
