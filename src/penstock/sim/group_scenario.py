"""What one seed of group churn stands for: the groups, what is done to whom and when, and how the broker ends."""

from dataclasses import dataclass, fields
from enum import Enum
from random import Random

from penstock.sim.scenario import OUTAGE_WEIGHTS, Life

MEMBERS_MIN, MEMBERS_MAX = 3, 10  # Of all groups together, at the start.
GROUP_MEMBERS_MAX = 10
STATIC_RATE = 0.4


class Deed(Enum):
    """What is done to a member."""

    JOIN = "join"  # A new one comes.
    LEAVE = "leave"
    CRASH = "crash"  # It dies, and its connection is reset.
    VANISH = "vanish"  # It dies, and nobody sees its connection break.
    PAUSE = "pause"  # Stopped for a while, often for longer than its session; then it goes on as if nothing had been.
    RESTART = "restart"  # It dies and a new process comes in its place; a static one takes its seat again.
    DOUBLE = "double"  # A second process with the same instance id; of a dynamic member: one more.


DEED_WEIGHTS = {Deed.PAUSE: 4}  # Zombies are what groups are afraid of.


@dataclass(frozen=True, kw_only=True)
class Act:
    at_s: float
    deed: Deed
    group: int
    pick: float  # Which of the group's members, as a part of 1.
    seconds: float  # Of a pause.


@dataclass(frozen=True, kw_only=True)
class Ambush:
    """The power goes, or the process dies, while some request is under way."""

    request: str
    number: int  # The how manieth of this life.
    delay_s: float
    is_kill: bool


@dataclass(frozen=True, kw_only=True)
class GroupScenario:
    seed: int
    partitions: int
    groups: tuple[tuple[bool, ...], ...]  # The first members of each; True: a static one.
    session_s: float
    rebalance_s: float
    think_s: float
    initial_delay_ms: int
    offsets_partitions: int
    segment_bytes: int  # Of the records' topic.
    sends: int
    seconds: float  # Until the churn ends.
    acts: tuple[Act, ...]
    link_cuts: int
    lives: tuple[Life, ...]  # After the last one the broker stays up.
    ambushes: tuple[Ambush | None, ...]  # One per life.

    @classmethod
    def draw(cls, seed: int) -> "GroupScenario":
        random = Random(f"groups-{seed}")
        session_s = random.choice((1.5, 3.0, 6.0))
        seconds = random.choice((4.0, 8.0, 12.0))
        sizes = [0] * random.randint(1, 3)
        for number in range(random.randint(max(MEMBERS_MIN, len(sizes)), MEMBERS_MAX)):
            sizes[number % len(sizes)] += 1
        lives = tuple(_draw_life(random, seconds) for _ in range(random.choice((0, 1, 1, 2, 3))))
        return cls(
            seed=seed,
            partitions=random.randint(1, 5),
            groups=tuple(tuple(random.random() < STATIC_RATE for _ in range(size)) for size in sizes),
            session_s=session_s,
            rebalance_s=session_s * random.choice((0.5, 1.0, 2.0)),
            think_s=session_s * random.choice((0.1, 0.25)),  # A heartbeat is due every third of a session.
            initial_delay_ms=random.choice((0, 300, 3000)),
            offsets_partitions=random.choice((1, 1, 3)),
            segment_bytes=random.choice((1024, 1 << 20)),
            sends=random.randint(5, 20),
            seconds=seconds,
            acts=tuple(_draw_act(random, len(sizes), seconds, session_s) for _ in range(random.randint(2, 10))),
            link_cuts=random.choice((0, 0, 2, 6)),
            lives=lives,
            ambushes=tuple(_draw_ambush(random) for _ in lives),
        )

    def __str__(self) -> str:
        return "\n".join(f"  {field.name}={getattr(self, field.name)}" for field in fields(self))


def _draw_act(random: Random, groups: int, seconds: float, session_s: float) -> Act:
    deeds = list(Deed)
    return Act(
        at_s=seconds * random.random(),
        deed=random.choices(deeds, [DEED_WEIGHTS.get(deed, 1) for deed in deeds])[0],
        group=random.randrange(groups),
        pick=random.random(),
        seconds=session_s * random.choice((0.3, 0.9, 1.5, 2.5)),
    )


def _draw_life(random: Random, seconds: float) -> Life:
    ends = list(OUTAGE_WEIGHTS)
    return Life(
        end=random.choices(ends, [OUTAGE_WEIGHTS[end] for end in ends])[0],
        up_seconds=seconds * random.choice((0.05, 0.3, 0.6)) * random.random(),
        operations=random.choice((10, 60, 150)),
        down_seconds=random.choice((0.0, 0.05, 0.5)),
        sync_fails=random.randint(1, 20) if random.random() < 0.05 else None,
        free_bytes=random.randint(0, 8192) if random.random() < 0.05 else None,
    )


def _draw_ambush(random: Random) -> Ambush | None:
    if random.random() < 0.4:
        return None
    return Ambush(
        request=random.choice(("join", "sync", "sync", "commit", "leave", "heartbeat")),
        number=random.randint(1, 6),
        delay_s=random.choice((0.0, 0.0005, 0.002, 0.01)),
        is_kill=random.random() < 0.5,
    )
