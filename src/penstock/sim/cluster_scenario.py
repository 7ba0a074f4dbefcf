"""What one seed of a cluster stands for: the brokers, the topic, the clients, and every fault with its time."""

from dataclasses import dataclass, fields
from enum import Enum
from random import Random

from penstock.sim.ensemble import STORE
from penstock.sim.network import Link

CLIENTS = [f"client{number}" for number in range(1, 7)]  # Not all of them are there in every run.


LEADER = 0


class Fault(Enum):
    """What happens to the cluster. Each lasts for the seconds of its mishap and is then undone."""

    KILL = "kill"  # The process dies, and the page cache stays.
    POWER = "power"  # The power goes, and what was not synced with it; its peers may see a reset or nothing at all.
    POWER_AT_OPERATION = "power-at-operation"  # The power goes between two disk operations.
    STOP = "stop"  # A clean stop.
    POWER_ALL = "power-all"  # The power goes on all machines, which come back one after another.
    PAUSE = "pause"  # The process stands still, and goes on as if nothing had been.
    CUT = "cut"  # Some links are cut at once and healed together.
    SWIZZLE = "swizzle"  # Links are cut one after another and healed in another order.
    SLOW = "slow"  # Some links take longer.
    STORE_DOWN = "store-down"  # Nobody reaches the metadata store.
    CLOCK = "clock"  # The wall clock jumps.
    SYNC_FAILS = "sync-fails"  # A sync of the disk fails; the broker is restarted at the end.
    DISK_FULL = "disk-full"
    ISOLATE = "isolate"  # The broker is cut off from the others, and from the store if `amount` is 1; not from clients.


FAULT_WEIGHTS = {  # Of what any seed may have; ISOLATE is for elections.py.
    Fault.KILL: 3,
    Fault.POWER: 3,
    Fault.POWER_AT_OPERATION: 2,
    Fault.STOP: 2,
    Fault.POWER_ALL: 1,
    Fault.PAUSE: 4,
    Fault.CUT: 7,
    Fault.SWIZZLE: 2,
    Fault.SLOW: 1,
    Fault.STORE_DOWN: 1,
    Fault.CLOCK: 1,
    Fault.SYNC_FAILS: 1,
    Fault.DISK_FULL: 1,
}


@dataclass(frozen=True, kw_only=True)
class Mishap:
    at_s: float
    fault: Fault
    broker: int  # Whom it happens to, of the faults that happen to one; LEADER: who leads the first partition then.
    seconds: float
    links: tuple[Link, ...] = ()
    amount: float = 0.0  # Operations, seconds or bytes, as the fault needs.


@dataclass(frozen=True, kw_only=True)
class ClusterScenario:
    seed: int
    brokers: int
    partitions: int
    replication_factor: int
    min_insync_replicas: int
    session_s: float  # Of the metadata store.
    replica_lag_ms: int
    plain_producers: int
    idempotent_producers: int
    readers: int
    sends: int  # Windows of batches per producer.
    think_s: float  # Between two windows, or two polls, at the most.
    records_max: int  # Per batch.
    value_bytes_max: int
    segment_bytes: int
    mishaps: tuple[Mishap, ...]

    @classmethod
    def draw(cls, seed: int) -> "ClusterScenario":
        random = Random(f"cluster-{seed}")
        brokers = random.choice((3, 3, 3, 3, 2, 4))
        replication_factor = min(brokers, random.choice((3, 3, 3, 2)))
        session_s = random.choice((1.5, 3.0))
        mishaps = []
        at_s = 0.0
        for _ in range(random.randint(1, 6)):
            # Often several at once, sometimes far enough apart for the cluster to recover.
            at_s += random.choice((0.0, 0.1, 1.0, 4.0)) * random.random()
            mishaps.append(_draw_mishap(random, at_s, brokers, session_s))
        sends = random.randint(3, 8)
        seconds = max(mishap.at_s + mishap.seconds for mishap in mishaps)
        return cls(
            seed=seed,
            brokers=brokers,
            partitions=random.randint(1, 3),
            replication_factor=replication_factor,
            min_insync_replicas=min(replication_factor, random.choice((2, 2, 2, 1))),
            session_s=session_s,
            replica_lag_ms=random.choice((500, 2_000)),
            plain_producers=random.randint(0, 2),
            idempotent_producers=random.randint(1, 2),
            readers=random.randint(1, 2),
            sends=sends,
            think_s=random.choice((0.1, 1.0, 2.0)) * seconds / sends,
            records_max=random.choice((1, 3)),
            value_bytes_max=random.choice((16, 200)),
            segment_bytes=random.choice((1024, 1 << 20)),
            mishaps=tuple(mishaps),
        )

    @property
    def machines(self) -> list[str]:
        return [machine_name(number) for number in range(1, self.brokers + 1)]

    def __str__(self) -> str:
        lines = [f"  {field.name}={getattr(self, field.name)}" for field in fields(self) if field.name != "mishaps"]
        return "\n".join([*lines, *(f"  {mishap}" for mishap in self.mishaps)])


def machine_name(broker: int) -> str:
    return f"broker{broker}"


def _draw_mishap(random: Random, at_s: float, brokers: int, session_s: float) -> Mishap:
    faults = list(FAULT_WEIGHTS)
    fault = random.choices(faults, [FAULT_WEIGHTS[fault] for fault in faults])[0]
    machines = [machine_name(number) for number in range(1, brokers + 1)]
    broker = random.randint(1, brokers)
    # Around the time after which the store ends a session: just before, just after, much longer, much shorter.
    seconds = random.choice((0.1, 0.7, 1.0, 1.0, 2.0)) * session_s * (0.5 + random.random())
    links: tuple[Link, ...] = ()
    amount = 0.0
    if fault is Fault.CUT:
        links = _draw_cut(random, machines, machine_name(broker))
    elif fault is Fault.SWIZZLE:
        ends = [*machines, STORE]
        pairs = [(a, b) for a in ends for b in ends if a < b]
        chosen = random.sample(pairs, random.randint(2, len(pairs)))
        links = tuple(link for a, b in chosen for link in ((a, b), (b, a)))
    elif fault is Fault.SLOW:
        links = _draw_cut(random, machines, machine_name(broker))
        amount = random.choice((0.05, 0.3))
    elif fault is Fault.POWER_AT_OPERATION:
        amount = random.choice((3, 10, 40))
    elif fault is Fault.CLOCK:
        # Clients may be ahead by an hour; and after a day a broker that starts forgets idempotent producers.
        amount = random.choice((-3000.0, 3000.0, 80_000.0))
    elif fault is Fault.SYNC_FAILS:
        amount = random.randint(1, 5)
    elif fault is Fault.DISK_FULL:
        amount = random.randint(0, 2048)
    return Mishap(at_s=at_s, fault=fault, broker=broker, seconds=seconds, links=links, amount=amount)


def _draw_cut(random: Random, machines: list[str], victim: str) -> tuple[Link, ...]:
    """Links to cut: of one broker with some of the others, the store or the clients, both ways or one."""
    others = [machine for machine in machines if machine != victim]
    ends = random.choice(
        (
            [STORE],  # The zombie: clients and followers reach a leader that the store has given up.
            [STORE],
            others,
            [random.choice(others)],
            [*others, STORE],
            [*others, STORE, *CLIENTS],
            random.sample(CLIENTS, random.randint(1, len(CLIENTS))),
        )
    )
    ways = random.choice(("both", "both", "from", "to"))
    away = [(victim, end) for end in ends] if ways != "to" else []
    back = [(end, victim) for end in ends] if ways != "from" else []
    return (*away, *back)
