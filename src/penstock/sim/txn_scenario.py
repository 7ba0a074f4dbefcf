"""What one seed of transactions on a cluster stands for."""

from dataclasses import dataclass, replace
from enum import Enum
from random import Random

from penstock.sim.cluster_scenario import ClusterScenario, Fault


class Step(Enum):
    """The requests of a transaction, each of which may be the last that its broker gets."""

    INIT = "init"
    ADD = "add"
    PRODUCE = "produce"
    OFFSETS = "offsets"
    END = "end"


@dataclass(frozen=True, kw_only=True)
class Ambush:
    """Something happens to the broker that gets a certain request, while it is at work on it or on what follows."""

    step: Step
    number: int  # The how manieth of its kind.
    delay_s: float
    fault: Fault
    seconds: float


@dataclass(frozen=True, kw_only=True)
class TxnScenario:
    seed: int
    cluster: ClusterScenario  # Its brokers and its mishaps; of its clients only how much they think.
    producers: int
    transactions: int  # Of each.
    readers: int
    state_partitions: int  # Of `__transaction_state`.
    timeout_s: float  # Of some producers' transactions.
    bumping_rate: float  # Of producers of transaction.version 2.
    death_rate: float  # Of transactions whose process does not end them.
    handover_rate: float
    copier_rate: float  # Of producers that commit offsets of a group, too.
    ambushes: tuple[Ambush, ...]

    @classmethod
    def draw(cls, seed: int) -> "TxnScenario":
        random = Random(f"transactions-{seed}")
        cluster = ClusterScenario.draw(seed)
        transactions = random.randint(3, 8)
        end_s = max(mishap.at_s + mishap.seconds for mishap in cluster.mishaps)
        think_s = random.choice((0.2, 1.0, 2.0)) * end_s / transactions
        return cls(
            seed=seed,
            cluster=replace(cluster, think_s=think_s, partitions=random.randint(1, 3)),
            producers=random.randint(1, 3),
            transactions=transactions,
            readers=random.randint(1, 2),
            state_partitions=random.choice((1, 1, 2)),
            timeout_s=random.choice((1.0, 3.0)),
            bumping_rate=random.choice((0.0, 0.5, 1.0)),
            death_rate=random.choice((0.0, 0.2, 0.4)),
            handover_rate=random.choice((0.0, 0.2)),
            copier_rate=random.choice((0.0, 0.5, 1.0)),
            ambushes=tuple(_draw_ambush(random, cluster.session_s) for _ in range(random.choice((0, 1, 2, 3)))),
        )

    @property
    def has_wrong_clocks(self) -> bool:
        return any(mishap.fault is Fault.CLOCK for mishap in self.cluster.mishaps)

    def __str__(self) -> str:
        own = [f"  {name}={getattr(self, name)}" for name in self.__dataclass_fields__ if name != "cluster"]
        return "\n".join([*own, str(self.cluster)])


def _draw_ambush(random: Random, session_s: float) -> Ambush:
    return Ambush(
        step=random.choice((*Step, Step.END, Step.END)),
        number=random.randint(1, 8),
        delay_s=random.choice((0.0, 0.0005, 0.002, 0.005, 0.01, 0.05)),
        fault=random.choice((Fault.KILL, Fault.POWER, Fault.POWER, Fault.PAUSE, Fault.STOP)),
        seconds=session_s * random.choice((0.1, 1.0, 2.0)) * (0.5 + random.random()),
    )
