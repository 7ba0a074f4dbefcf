"""Faults drawn at random, one mix after the other, for minutes or for hours: `make faults HOURS=3`."""

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .broker_cluster import BROKERS, SESSION_MS, Broker, BrokerCluster, broker_cluster
from .hosts import Hosts
from .scenario import scenario

HOURS = float(os.environ.get("PENSTOCK_FAULT_HOURS") or 2 / 60)
ROUND_S = 300  # One topic and one history: what is checked in one go has to fit into memory.
MIX_S = 30
QUIET_SHARE = 0.25
SESSION_S = SESSION_MS / 1000

pytestmark = [pytest.mark.long, pytest.mark.timeout(HOURS * 3600 * 3 + 1800)]


class Faults:
    """Each method begins one, or is one; `BrokerCluster.heal` ends all of them."""

    def __init__(self, cluster: BrokerCluster, hosts: Hosts, draw: random.Random) -> None:
        self._cluster = cluster
        self._hosts = hosts
        self._draw = draw

    def kill_one(self) -> None:
        self._one().kill()

    def kill_all(self) -> None:
        self._cluster.kill_all()
        self._cluster.start(self._draw.sample(self._cluster.brokers, BROKERS))

    def restart_one(self) -> None:
        broker = self._one()
        if broker.is_running():
            broker.stop()
            broker.start()

    def pause_one(self) -> None:
        broker = self._one()
        if broker.is_running():
            broker.pause()
            time.sleep(self._draw.uniform(0.5, 2 * SESSION_S))
            broker.resume()

    def cut_one_from_zookeeper(self) -> None:
        self._cluster.cut_from_zookeeper(self._one(), silently=self._draw.random() < 0.5)

    def kill_a_zookeeper(self) -> None:
        self._draw.choice(self._cluster.zookeeper.nodes).kill()

    def isolate_one(self) -> None:
        self._hosts.isolate(self._one().node_id)

    def cut_one_from_others(self) -> None:
        number = self._one().node_id
        self._hosts.cut([number], [other for other in self._hosts.numbers if other != number])

    def drop_one_way(self) -> None:
        self._hosts.drop(*self._draw.sample(list(self._hosts.numbers), 2))

    def draw_some(self) -> list[Callable[[], None]]:
        """Nothing in one of four cases, else one to three of them."""
        if self._draw.random() < QUIET_SHARE:
            return []
        every = [
            self.kill_one,
            self.kill_all,
            self.restart_one,
            self.pause_one,
            self.cut_one_from_zookeeper,
            self.kill_a_zookeeper,
            self.isolate_one,
            self.cut_one_from_others,
            self.drop_one_way,
        ]
        return self._draw.sample(every, self._draw.randint(1, 3))

    def _one(self) -> Broker:
        return self._draw.choice(self._cluster.brokers)


def test_random_mixes(hosts: Hosts, tmp_path: Path) -> None:
    seed = int(os.environ.get("PENSTOCK_FAULT_SEED") or random.randrange(2**32))
    draw = random.Random(seed)
    end_at = time.monotonic() + HOURS * 3600
    number = 0
    with broker_cluster(tmp_path, hosts=hosts) as cluster:
        faults = Faults(cluster, hosts, draw)
        while time.monotonic() < end_at:
            number += 1
            with scenario(cluster, f"mix-{number} random faults, {seed=}", tmp_path) as run:
                round_end_at = min(end_at, time.monotonic() + ROUND_S)
                while time.monotonic() < round_end_at:
                    mix_end_at = min(round_end_at, time.monotonic() + MIX_S)
                    drawn = faults.draw_some()
                    print(f"mix: {[fault.__name__ for fault in drawn] or 'quiet'}", flush=True)
                    for fault in drawn:
                        fault()
                        time.sleep(draw.uniform(0, 5))
                    time.sleep(max(0.0, mix_end_at - time.monotonic()))
                    cluster.heal()
                    run.workload.wait_for_acks()
