"""One broker and four stories on it at once: idempotent producers, deleted records, compaction, deleted topics.

`run(seed)` is one run. Each story knows what its clients were told and complains about what does not fit; the disk and
the broker's ends are those of the first simulation.
"""

import asyncio
from dataclasses import dataclass, fields
from random import Random

from penstock.base.config import BrokerConfig
from penstock.sim.clock import SimLoop
from penstock.sim.compaction_story import CompactionStory
from penstock.sim.deletion_story import DeletionStory
from penstock.sim.idempotent_story import IdempotentStory
from penstock.sim.lives import live_once
from penstock.sim.machine import Machine
from penstock.sim.network import SimNetwork
from penstock.sim.report import Report, watch
from penstock.sim.scenario import Life, draw_life
from penstock.sim.story import Stage, Story
from penstock.sim.trace import Trace
from penstock.sim.trim_story import TrimStory
from penstock.sim.workload import Links

PORT = 9092
UPKEEP_S = 2.0  # Given to retention and compaction at the end.


@dataclass(frozen=True, kw_only=True)
class StoryScenario:
    seed: int
    producers: int
    steps: int  # Per story.
    seconds: float
    segment_bytes: int
    upkeep_ms: int  # Between two passes of retention, and of compaction.
    link_cuts: int
    lives: tuple[Life, ...]  # After the last one the broker stays up.

    @classmethod
    def draw(cls, seed: int) -> "StoryScenario":
        random = Random(f"stories-{seed}")
        lives = tuple(draw_life(random) for _ in range(random.randint(1, 4)))
        return cls(
            seed=seed,
            producers=random.randint(1, 3),
            steps=random.randint(3, 8),
            seconds=sum(life.up_seconds + life.down_seconds for life in lives) * random.choice((0.5, 1.0, 1.5)),
            segment_bytes=random.choice((1024, 1024, 4096)),
            upkeep_ms=random.choice((50, 300)),
            link_cuts=random.choice((0, 2, 6)),
            lives=lives,
        )

    def __str__(self) -> str:
        return "\n".join(f"  {field.name}={getattr(self, field.name)}" for field in fields(self))


def run(seed: int) -> Report:
    """Simulate the seed. No problems: every story ended well."""
    scenario = StoryScenario.draw(seed)
    loop = SimLoop()
    stories = Stories(scenario, loop)
    return Report(scenario, watch(loop, stories.verdict()), loop.steps, stories.trace)


class Stories:
    def __init__(self, scenario: StoryScenario, loop: SimLoop) -> None:
        self.trace = Trace(loop)
        self._scenario = scenario
        self._network = SimNetwork(loop=loop, random=Random(f"network-{scenario.seed}"), trace=self.trace)
        config = BrokerConfig(
            port=PORT,
            data_dir="data",
            auto_create_topics_enable=False,
            log_retention_check_interval_ms=scenario.upkeep_ms,
            log_cleaner_backoff_ms=scenario.upkeep_ms,
        )
        self._machine = Machine(loop=loop, seed=scenario.seed, trace=self.trace, network=self._network, config=config)
        self._stories: tuple[Story, ...] = (
            IdempotentStory(self._stage("idempotent"), scenario.producers),
            TrimStory(self._stage("trim")),
            CompactionStory(self._stage("compaction")),
            DeletionStory(self._stage("deletion")),
        )

    def _stage(self, name: str) -> Stage:
        scenario = self._scenario
        return Stage(
            links=Links(self._network, PORT),
            clock=self._machine.clock,
            trace=self.trace,
            random=Random(f"{name}-{scenario.seed}"),
            topic_config={"segment.bytes": str(scenario.segment_bytes), "retention.ms": "-1"},
            steps=scenario.steps,
            think_s=scenario.seconds / scenario.steps,
        )

    async def verdict(self) -> list[str]:
        lives = asyncio.create_task(self._live(), name="lives")
        await asyncio.gather(*(story.prepare() for story in self._stories))
        cuts = asyncio.create_task(self._cut_links(), name="cuts")
        await asyncio.gather(lives, *(story.act() for story in self._stories))
        await cuts
        await asyncio.sleep(UPKEEP_S)
        await asyncio.gather(*(story.check() for story in self._stories))
        return [f"{story.name}: {complaint}" for story in self._stories for complaint in story.complaints]

    async def _live(self) -> None:
        for life in self._scenario.lives:
            await live_once(self._machine, life)
            await asyncio.sleep(life.down_seconds)
        self._machine.disk.heal()
        await self._machine.start()

    async def _cut_links(self) -> None:
        random = Random(f"cuts-{self._scenario.seed}")
        for _ in range(self._scenario.link_cuts):
            await asyncio.sleep(self._scenario.seconds / self._scenario.link_cuts * random.random())
            self._network.cut_one()
