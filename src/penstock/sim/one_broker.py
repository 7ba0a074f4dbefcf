"""The first simulation: one broker, its clients, and a disk that loses unsynced writes and tears the last one.

`run(seed)` is one run: the same seed gives the same run, to the byte. Every life of the broker ends as the scenario
says; the last broker stays up, is read to the end, and the checkers compare what is there with what was promised.
"""

import asyncio
import gc
import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

from penstock.base.config import BrokerConfig
from penstock.base.types import TopicPartition
from penstock.sim.checkers import Contents, check_all
from penstock.sim.clock import SimLoop
from penstock.sim.history import History
from penstock.sim.machine import Machine
from penstock.sim.network import SimNetwork
from penstock.sim.process import Killed
from penstock.sim.scenario import Life, Outage, Scenario
from penstock.sim.trace import Trace
from penstock.sim.workload import Links, Workload

PORT = 9092
DURABLE = "durable"
VOLATILE = "volatile"


@dataclass(frozen=True)
class Report:
    scenario: Scenario
    problems: list[str]
    steps: int
    trace: Trace
    history: History

    def __str__(self) -> str:
        lines = [f"seed={self.scenario.seed} step={self.steps}", *self.problems[:20], "scenario:", str(self.scenario)]
        return "\n".join(lines)


def run(seed: int) -> Report:
    """Simulate the seed. No problems: every promise was kept."""
    scenario = Scenario.draw(seed)
    loop = SimLoop()
    simulation = Simulation(scenario, loop)
    problems: list[str] = []
    with _logged_tracebacks(problems), _no_garbage_collection():
        try:
            contents = loop.run(simulation.main())
            problems += map(str, check_all(simulation.history.events, contents))
        except Exception:
            problems.append(traceback.format_exc())
    problems += simulation.workload.complaints
    problems += (_describe(failure) for failure in loop.failures)
    return Report(scenario, problems, loop.steps, simulation.trace, simulation.history)


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
        )

    async def main(self) -> Contents:
        """Run the scenario; gives what the partitions hold at the end."""
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
            await self._one_life(life)
            await asyncio.sleep(life.down_seconds)
        self.machine.disk.heal()
        self.machine.clock.jump_ms = self.scenario.clock_jump_ms
        await self.machine.start()

    async def _one_life(self, life: Life) -> None:
        disk = self.machine.disk
        disk.heal()
        if life.sync_fails is not None:
            disk.fail_syncs.add(disk.syncs + life.sync_fails)
        if life.free_bytes is not None:
            disk.fill(life.free_bytes)
        if life.end is Outage.POWER_AT_OPERATION:
            disk.cut_power_at = disk.operations + life.operations
        try:
            await self.machine.start()
            if await self.machine.wait_down(life.up_seconds):
                return
            if life.end is Outage.STOP:
                await self.machine.stop()
                return
        except Killed:
            return
        if life.end is Outage.KILL:
            self.machine.kill()
        else:
            self.machine.cut_power()

    async def _cut_links(self) -> None:
        random = Random(f"cuts-{self.scenario.seed}")
        for _ in range(self.scenario.link_cuts):
            await asyncio.sleep(random.random())
            self.network.cut_one()


@contextmanager
def _logged_tracebacks(problems: list[str]) -> Iterator[None]:
    """Errors that the broker caught and logged with a traceback are problems too."""

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info and not isinstance(record.exc_info[1], Killed):
                problems.append(
                    f"logged: {record.getMessage()}\n{''.join(traceback.format_exception(record.exc_info[1]))}"
                )

    logger = logging.getLogger("penstock")
    collector = Collector(logging.ERROR)
    level, propagate = logger.level, logger.propagate
    logger.addHandler(collector)
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(collector)
        logger.setLevel(level)
        logger.propagate = propagate


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """The collector runs when it likes, and what it finds may have finalisers: not in the middle of a run."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _describe(failure: dict[str, object]) -> str:
    error = failure.get("exception")
    text = "".join(traceback.format_exception(error)) if isinstance(error, BaseException) else ""
    return f"unhandled: {failure.get('message')}\n{text}"
