"""The first simulation: one broker, its clients, and a disk that loses unsynced writes and tears the last one.

`run(seed)` is one run: the same seed gives the same run, to the byte. Every life of the broker ends as the scenario
says; the last broker stays up, is read to the end, and the checkers compare what is there with what was promised.
"""

import asyncio
from random import Random

from penstock.base.config import BrokerConfig
from penstock.base.types import TopicPartition
from penstock.sim.checkers import Contents, check_all
from penstock.sim.clock import SimLoop
from penstock.sim.history import History
from penstock.sim.lives import live_once
from penstock.sim.machine import Machine
from penstock.sim.network import SimNetwork
from penstock.sim.report import Report, watch
from penstock.sim.scenario import Scenario
from penstock.sim.trace import Trace
from penstock.sim.workload import Links, Workload

PORT = 9092
DURABLE = "durable"
VOLATILE = "volatile"


def run(seed: int) -> Report:
    """Simulate the seed. No problems: every promise was kept."""
    scenario = Scenario.draw(seed)
    loop = SimLoop()
    simulation = Simulation(scenario, loop)
    problems = watch(loop, simulation.verdict())
    return Report(scenario, problems + simulation.workload.complaints, loop.steps, simulation.trace)


class Simulation:
    def __init__(self, scenario: Scenario, loop: SimLoop) -> None:
        self.scenario = scenario
        self.trace = Trace(loop)
        self.history = History(self.trace)
        self.network = SimNetwork(loop=loop, random=Random(f"network-{scenario.seed}"), trace=self.trace)
        config = BrokerConfig(port=PORT, data_dir="data", auto_create_topics_enable=False)
        self.machine = Machine(loop=loop, seed=scenario.seed, trace=self.trace, network=self.network, config=config)
        self.workload = Workload(
            scenario=scenario,
            links=Links(self.network, PORT),
            history=self.history,
            clock=self.machine.clock,
            durable=[TopicPartition(DURABLE, number) for number in range(scenario.partitions)],
            volatile=[TopicPartition(VOLATILE, 0)],
            losses=lambda: self.machine.disk.losses,
            has_room=lambda: self.machine.disk.capacity_bytes is None,
        )

    async def verdict(self) -> list[str]:
        """Run the scenario; gives every promise that was broken."""
        contents = await self._main()
        return [str(violation) for violation in check_all(self.history.events, contents)]

    async def _main(self) -> Contents:
        lives = asyncio.create_task(self._live(), name="lives")
        shape = {
            "segment.bytes": str(self.scenario.segment_bytes),
            "index.interval.bytes": str(self.scenario.index_interval_bytes),
            "retention.ms": "-1",
        }
        await self.workload.create_topics(
            [(DURABLE, self.scenario.partitions, shape), (VOLATILE, 1, {**shape, "penstock.durability": "os"})]
        )
        readers = [
            asyncio.create_task(self.workload.follow(n), name=f"reader-{n}") for n in range(self.scenario.readers)
        ]
        cuts = asyncio.create_task(self._cut_links(), name="cuts")
        producers = [self.workload.produce(number) for number in range(1, self.scenario.producers + 1)]
        await asyncio.gather(lives, *producers)
        for task in (*readers, cuts):
            task.cancel()
        await asyncio.gather(*readers, cuts, return_exceptions=True)
        await self.workload.check_alive()
        return await self.workload.read_all()

    async def _live(self) -> None:
        for life in self.scenario.lives:
            await live_once(self.machine, life)
            await asyncio.sleep(life.down_seconds)
        self.machine.disk.heal()
        self.machine.clock.jump_ms = self.scenario.clock_jump_ms
        await self.machine.start()

    async def _cut_links(self) -> None:
        random = Random(f"cuts-{self.scenario.seed}")
        for _ in range(self.scenario.link_cuts):
            await asyncio.sleep(random.random())
            self.network.cut_one()
