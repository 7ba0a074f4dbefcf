"""Schedules of fast elections that leave divergent tails (KIP-279): R16 of the faults to survive.

A leader that is cut off from its followers goes on taking records that will never be committed. Another is elected, and
is cut off, stopped or killed before the first has copied from it; and so on, until replicas have tails of epochs that
the others never saw. In the end each of them must have the log of the last leader.
"""

from random import Random

from penstock.sim.cluster import run_scenario
from penstock.sim.cluster_scenario import LEADER, ClusterScenario, Fault, Mishap
from penstock.sim.report import Report

BROKERS = 3
SESSION_S = 1.5
REPLICA_LAG_MS = 500
ENDINGS = (Fault.ISOLATE, Fault.ISOLATE, Fault.ISOLATE, Fault.PAUSE, Fault.KILL, Fault.POWER)


def run(seed: int) -> Report:
    return run_scenario(draw(seed))


def draw(seed: int) -> ClusterScenario:
    random = Random(f"elections-{seed}")
    mishaps = []
    at_s = 0.0
    for _ in range(random.randint(3, 6)):
        at_s += SESSION_S * random.choice((0.5, 1.5, 2.5)) * random.random()
        mishaps.append(_ending(random, at_s))
    end_s = max(mishap.at_s + mishap.seconds for mishap in mishaps)
    sends = random.randint(10, 20)
    return ClusterScenario(
        seed=seed,
        brokers=BROKERS,
        partitions=1,
        replication_factor=BROKERS,
        min_insync_replicas=random.choice((1, 2, 2)),
        session_s=SESSION_S,
        replica_lag_ms=REPLICA_LAG_MS,
        plain_producers=2,
        idempotent_producers=1,
        readers=1,
        sends=sends,
        think_s=end_s / sends,
        records_max=2,
        value_bytes_max=16,
        segment_bytes=random.choice((1024, 1 << 20)),
        mishaps=tuple(mishaps),
    )


def _ending(random: Random, at_s: float) -> Mishap:
    """How a leadership ends: for a moment, for about as long as a session, for longer."""
    return Mishap(
        at_s=at_s,
        fault=random.choice(ENDINGS),
        broker=random.choice((LEADER, LEADER, LEADER, *range(1, BROKERS + 1))),
        seconds=SESSION_S * random.choice((0.2, 1.0, 1.5, 2.0)) * (0.5 + random.random()),
        amount=random.choice((0, 1, 1, 1)),
    )
