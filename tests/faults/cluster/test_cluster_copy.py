"""R24 on three brokers: a transaction's coordinator, and the leader of what it writes, are killed in each phase of it;
and the network between them is cut. Needs proxies that all clients and brokers use, so it has a cluster of its own.

What the job has to live with here is librdkafka's (2.16), and Kafka's brokers would have answered it the same:
- When the group's coordinator dies it may wait for ever in send_offsets_to_transaction (its issues 5456 and 5511): the
  producer is given up after the transaction's timeout, and replaced.
- When AddPartitionsToTxn or AddOffsetsToTxn is lost with the coordinator, it still ends a transaction that the next one
  has never heard of: INVALID_TXN_STATE, which is fatal to it. The producer is replaced.
- Messages that time out while their partition has no leader have sequence numbers that are never sent. The next batch
  is OUT_OF_ORDER_SEQUENCE_NUMBER, and it asks for the next epoch (KIP-360).
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.server.api import ApiKey
from ports import HOST, free_port

from .. import figures
from ..copy_world import PARTITIONS, CopyWorld, wait_until_sprung
from ..test_atomic_copy import CONFIG, PHASES, Phase
from ..trap_proxy import Trap, TrapProxy, TrapThread
from .broker_cluster import BROKERS, BrokerCluster, broker_cluster
from .hosts import Hosts

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

COUNT, BATCH = 100_000, 750


@contextlib.contextmanager
def trapped_cluster(directory: Path, name: str) -> Iterator[tuple[BrokerCluster, TrapThread, CopyWorld]]:
    ports = {node_id: free_port() for node_id in range(1, BROKERS + 1)}
    bootstrap = ",".join(f"{HOST}:{port}" for port in ports.values())
    jobs = directory / "jobs"
    jobs.mkdir()
    with (
        broker_cluster(directory, config=CONFIG, advertised=lambda node_id, _: f"{HOST}:{ports[node_id]}") as cluster,
        TrapThread() as traps,
    ):
        for node_id, port in ports.items():
            traps.open(port, cluster[node_id].port)
        world = CopyWorld(bootstrap, jobs, count=0, batch=BATCH, replicas=BROKERS, name=name)
        world.prepare()
        yield cluster, traps, world


@pytest.mark.parametrize("who", ["coordinator", "leader"])
def test_r24_a_broker_of_three_is_killed_in_each_phase(tmp_path: Path, who: str) -> None:
    begun = time.monotonic()
    with trapped_cluster(tmp_path, who) as (cluster, traps, world):
        with world.copying():
            for phase in PHASES:
                kill_at(phase, who, cluster, traps, world)
        world.check()
        assert cluster.crashes() == []
    figures.note(
        f"R24 kill -9 the {who} of three brokers in each phase",
        f"{world.count:,} records copied, 0 missing, 0 twice, in order; {world.starts} jobs, readers held up for "
        f"{world.stuck_s:.1f} s at most; {time.monotonic() - begun:.0f} s",
        "input == output",
    )


def kill_at(phase: Phase, who: str, cluster: BrokerCluster, traps: TrapThread, world: CopyWorld) -> None:
    _, api_key, moment, delay_s = phase
    world.feed(-(-COUNT // len(PHASES)))  # Else all is copied long before the last phase.
    leaders = {cluster.leader(world.target, partition) for partition in range(PARTITIONS)}
    killed = []

    def strike(proxy: TrapProxy) -> None:
        """Who was asked is the coordinator, unless it was asked to store something."""
        asked = next(broker for broker in cluster.brokers if broker.port == proxy.target_port)
        victim = asked if who == "coordinator" else next(iter(leaders))
        os.kill(victim.pid, signal.SIGKILL)
        killed.append(victim)

    trap = traps.set(Trap(api_key, moment, strike, delay_s=delay_s))
    if api_key == ApiKey.INIT_PRODUCER_ID:
        world.kill_job()
    wait_until_sprung(trap.sprung, f"{ApiKey(api_key).name} {moment.value}", timeout_s=120)
    (victim,) = killed
    victim.kill()
    before = world.copied_count()
    deadline = time.monotonic() + 60
    while world.copied_count() <= before and time.monotonic() < deadline:
        time.sleep(0.2)  # The others go on without it.
    victim.start()
    cluster.wait_until_in_sync(world.target)


def test_r24_the_network_between_coordinator_and_leaders_is_cut(hosts: Hosts, tmp_path: Path) -> None:
    begun = time.monotonic()
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    with broker_cluster(tmp_path, hosts=hosts, config=CONFIG) as cluster:
        world = CopyWorld(cluster.bootstrap, jobs, count=COUNT, batch=100, replicas=BROKERS, name="cut")
        world.prepare()
        with world.copying():
            for one, other in [(1, 2), (2, 3), (1, 3)]:
                hosts.cut([one], [other])
                time.sleep(8)
                hosts.heal()
                time.sleep(2)
            for number in hosts.numbers:
                hosts.isolate(number)
                time.sleep(10)
                hosts.heal()
                cluster.wait_until_in_sync(world.target)
        world.check()
        assert cluster.crashes() == []
    figures.note(
        "R24 links between brokers cut while copying",
        f"{world.count:,} records copied, 0 missing, 0 twice, in order; {world.starts} jobs, readers held up for "
        f"{world.stuck_s:.1f} s at most; {time.monotonic() - begun:.0f} s",
        "input == output",
    )
