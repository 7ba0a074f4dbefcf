"""Transactions on a cluster whose brokers die at every step of them.

`run(seed)` is one run: the same seed gives the same run, to the byte. When all mishaps are over, what was committed is
there as a whole and once, and nothing else is; and no reader has ever seen anything else.
"""

import asyncio
from collections import Counter

from penstock.base.config import BrokerConfig
from penstock.sim.checkers import Contents
from penstock.sim.clock import SimClock, SimLoop
from penstock.sim.cluster import ClusterSimulation
from penstock.sim.cluster_scenario import Mishap
from penstock.sim.cluster_workload import RECOVERY_S
from penstock.sim.report import Report, watch
from penstock.sim.txn_history import check
from penstock.sim.txn_scenario import Step, TxnScenario
from penstock.sim.txn_workload import TxnWorkload

TIMEOUTS_INTERVAL_MS = 500


def run(seed: int) -> Report:
    """Simulate the seed. No problems: every promise was kept."""
    scenario = TxnScenario.draw(seed)
    loop = SimLoop()
    simulation = TxnSimulation(scenario, loop)
    problems = watch(loop, simulation.verdict())
    problems += simulation.txns.complaints + simulation.workload.complaints
    return Report(scenario, problems, loop.steps, simulation.trace)


class TxnSimulation(ClusterSimulation):
    def __init__(self, scenario: TxnScenario, loop: SimLoop) -> None:
        self.txn_scenario = scenario
        super().__init__(scenario.cluster, loop)
        self.txns = TxnWorkload(
            scenario=scenario,
            network=self.network,
            clock=SimClock(loop),
            trace=self.trace,
            partitions=self.partitions,
            on_step=self._on_step,
        )
        self._steps: Counter[Step] = Counter()
        self._ambushes: list[asyncio.Task[None]] = []

    def _config(self, number: int) -> BrokerConfig:
        return (
            super()
            ._config(number)
            ._replace(
                transaction_state_log_num_partitions=self.txn_scenario.state_partitions,
                offsets_topic_num_partitions=self.txn_scenario.state_partitions,
                transaction_abort_timed_out_transaction_cleanup_interval_ms=TIMEOUTS_INTERVAL_MS,
            )
        )

    def _on_step(self, step: Step, broker: int) -> None:
        self._steps[step] += 1
        for ambush in self.txn_scenario.ambushes:
            if (ambush.step, ambush.number) == (step, self._steps[step]) and broker in self.machines:
                mishap = Mishap(at_s=ambush.delay_s, fault=ambush.fault, broker=broker, seconds=ambush.seconds)
                self._ambushes.append(asyncio.create_task(self._mishaps.happen(mishap)))

    async def verdict(self) -> list[str]:
        await self._main()
        return []

    async def _work(self) -> Contents:
        scenario, txns = self.txn_scenario, self.txns
        readers = [self._client(txns.follow(number)) for number in range(1, scenario.readers + 1)]
        producers = [self._client(txns.write(number)) for number in range(1, scenario.producers + 1)]
        await asyncio.gather(*(self._mishaps.happen(mishap) for mishap in self.scenario.mishaps))
        # An ambush may come later than all mishaps, as long as there are producers to lie in wait for.
        done, _ = await asyncio.wait(producers, timeout=RECOVERY_S)
        await asyncio.gather(*self._ambushes)
        self.trace.add("healed", len(done))
        txns.must_serve_by = self._loop.time() + RECOVERY_S
        await asyncio.gather(*producers)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        final = await txns.finish()
        self.workload.complaints += check(txns.history, final)
        await self._settle()
        return {}
