"""What one seed stands for: the size of the workload, the shape of the data, and every fault with its time."""

from dataclasses import dataclass, fields
from enum import Enum
from random import Random


class Outage(Enum):
    """How a life of the broker ends."""

    POWER = "power"  # The power goes at some time.
    POWER_AT_OPERATION = "power-at-operation"  # The power goes between two disk operations, perhaps during recovery.
    KILL = "kill"  # The process dies, and the page cache stays.
    STOP = "stop"  # A clean stop.


OUTAGE_WEIGHTS = {Outage.POWER: 4, Outage.POWER_AT_OPERATION: 4, Outage.KILL: 2, Outage.STOP: 1}


@dataclass(frozen=True, kw_only=True)
class Life:
    """One life of the broker and its end."""

    end: Outage
    up_seconds: float
    operations: int  # Until the power goes, for POWER_AT_OPERATION.
    down_seconds: float
    sync_fails: int | None  # Which sync of this life fails with EIO.
    free_bytes: int | None  # What is left of the disk when this life begins; None: plenty.


@dataclass(frozen=True, kw_only=True)
class Scenario:
    seed: int
    partitions: int  # Of the durable topic; the one that leaves syncing to the system has one.
    producers: int
    readers: int
    sends: int  # Per producer.
    think_seconds: float  # Between two sends or polls of one client, at the most.
    records_max: int  # Per batch.
    value_bytes_max: int
    segment_bytes: int
    index_interval_bytes: int
    link_cuts: int
    clock_jump_ms: int
    lives: tuple[Life, ...]  # After the last one the broker stays up.

    @classmethod
    def draw(cls, seed: int) -> "Scenario":
        random = Random(f"scenario-{seed}")
        lives = tuple(draw_life(random) for _ in range(random.randint(1, 4)))
        sends = random.randint(6, 14)
        seconds = sum(life.up_seconds + life.down_seconds for life in lives)
        return cls(
            seed=seed,
            partitions=random.randint(1, 2),
            producers=random.randint(2, 3),
            readers=random.randint(1, 2),
            sends=sends,
            # In one burst; spread over all lives; or slower than that, so that the last life gets its share.
            think_seconds=random.choice((0.0, 1.0, 2.0, 4.0)) * seconds / sends,
            records_max=random.choice((1, 3, 8)),
            value_bytes_max=random.choice((16, 200, 1500)),
            segment_bytes=random.choice((1024, 1024, 4096, 1 << 20)),
            index_interval_bytes=random.choice((0, 100, 4096)),
            link_cuts=random.choice((0, 0, 0, 1, 3)),
            clock_jump_ms=random.choice((0, 0, 0, -3_600_000, 3_000_000)),
            lives=lives,
        )

    def __str__(self) -> str:
        return "\n".join(f"  {field.name}={getattr(self, field.name)}" for field in fields(self))


def draw_life(random: Random) -> Life:
    ends = list(OUTAGE_WEIGHTS)
    return Life(
        end=random.choices(ends, [OUTAGE_WEIGHTS[end] for end in ends])[0],
        # From a death during recovery to one after several checkpoints, which are a second apart.
        up_seconds=random.choice((0.02, 0.2, 1.0, 4.0)) * random.random(),
        operations=random.choice((5, 20, 80)),
        down_seconds=random.choice((0.0, 0.01, 0.1)),
        sync_fails=random.randint(1, 10) if random.random() < 0.08 else None,
        free_bytes=random.randint(0, 8192) if random.random() < 0.08 else None,
    )
