"""A whole cluster: brokers, a metadata store, the links between them, and clients that follow the leaders.

`run(seed)` is one run: the same seed gives the same run, to the byte. When all mishaps are over, every partition must
serve again, every replica must have the same records, and nothing that was promised may be missing.
"""

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any

from penstock.base.clock import Clock
from penstock.base.config import BrokerConfig
from penstock.base.types import NodeId, TopicPartition
from penstock.sim.checkers import Contents, check_all
from penstock.sim.clock import SimClock, SimLoop
from penstock.sim.cluster_scenario import CLIENTS, ClusterScenario, machine_name
from penstock.sim.cluster_workload import RECOVERY_S, ClusterWorkload
from penstock.sim.ensemble import STORE, Ensemble
from penstock.sim.history import History, Log
from penstock.sim.machine import Machine
from penstock.sim.mishaps import Mishaps
from penstock.sim.network import HOST, SimNetwork
from penstock.sim.process import Process
from penstock.sim.replica_checkers import CLUSTER_CHECKS, batches_on, check_replicas, check_zombies
from penstock.sim.report import Report, watch
from penstock.sim.router import FIRST_PORT
from penstock.sim.store import SimStore
from penstock.sim.trace import Trace
from penstock.sim.witness import Witness

TOPIC = "topic"
SETTLE_S = 0.1  # Between two looks at whether all replicas have caught up.


def run(seed: int) -> Report:
    """Simulate the seed. No problems: every promise was kept."""
    return run_scenario(ClusterScenario.draw(seed))


def run_scenario(scenario: ClusterScenario) -> Report:
    loop = SimLoop()
    simulation = ClusterSimulation(scenario, loop)
    problems = watch(loop, simulation.verdict())
    problems += simulation.workload.complaints + simulation.witness.complaints
    return Report(scenario, problems, loop.steps, simulation.trace)


class ClusterSimulation:
    def __init__(self, scenario: ClusterScenario, loop: SimLoop) -> None:
        seed = scenario.seed
        self.scenario = scenario
        self.trace = Trace(loop)
        self.history = History(self.trace)
        self.network = SimNetwork(loop=loop, random=Random(f"network-{seed}"), trace=self.trace)
        self.ensemble = Ensemble(network=self.network, random=Random(f"store-{seed}"), trace=self.trace)
        self.machines = {number: self._machine(number, loop) for number in range(1, scenario.brokers + 1)}
        self.partitions = [TopicPartition(TOPIC, number) for number in range(scenario.partitions)]
        self.witness = Witness(machines=self.machines, ensemble=self.ensemble, isr_min=scenario.min_insync_replicas)
        self.workload = ClusterWorkload(
            scenario=scenario,
            network=self.network,
            history=self.history,
            clock=SimClock(loop),
            partitions=self.partitions,
            witness=self.witness,
        )
        self._loop = loop
        self._clients: list[str] = []
        self._mishaps = Mishaps(
            machines=self.machines,
            ensemble=self.ensemble,
            network=self.network,
            ends=[*scenario.machines, STORE, *CLIENTS],
            random=Random(f"mishaps-{seed}"),
            trace=self.trace,
        )

    def _machine(self, number: int, loop: SimLoop) -> Machine:
        scenario = self.scenario

        def open_store(clock: Clock, random: Random) -> SimStore:
            return SimStore(ensemble=self.ensemble, timeout_s=scenario.session_s, clock=clock, random=random)

        return Machine(
            loop=loop,
            seed=scenario.seed,
            trace=self.trace,
            network=self.network,
            config=self._config(number),
            name=machine_name(number),
            open_store=open_store,
        )

    def _config(self, number: int) -> BrokerConfig:
        return BrokerConfig(
            node_id=NodeId(number),
            host=HOST,
            port=FIRST_PORT + number,
            data_dir="data",
            auto_create_topics_enable=False,
            replica_lag_time_max_ms=self.scenario.replica_lag_ms,
        )

    async def verdict(self) -> list[str]:
        """Run the scenario; gives every promise that was broken."""
        contents = await self._main()
        violations = check_all(self.history.events, contents, CLUSTER_CHECKS)
        epochs: dict[Log, dict[int, int]] = {}
        for log, records in contents.items():
            replicas = {
                machine.name: batches_on(machine.disk, f"data/{log.partition}")
                for machine in self.machines.values()
                if machine.disk.exists(f"data/{log.partition}")
            }
            violations += check_replicas(log, len(records), replicas)
            epochs[log] = {
                offset: batch.leader_epoch
                for batches in replicas.values()
                for batch in batches
                for offset in range(batch.base_offset, batch.next_offset)
            }
        violations += check_zombies(self.history.events, epochs)
        return [str(violation) for violation in violations]

    async def _main(self) -> Contents:
        publishing = asyncio.create_task(self.ensemble.publish(), name="store")
        lives = [
            asyncio.create_task(self._mishaps.supervise(machine), name=machine.name)
            for machine in self.machines.values()
        ]
        await self._create_topic()
        contents = await self._work()
        for task in (publishing, *lives):
            task.cancel()
        await asyncio.gather(publishing, *lives, return_exceptions=True)
        return contents

    async def _work(self) -> Contents:
        """What the clients do; gives what is there when all is over."""
        scenario, workload = self.scenario, self.workload
        readers = [self._client(workload.follow(number)) for number in range(1, scenario.readers + 1)]
        idempotent = range(1, scenario.idempotent_producers + 1)
        producers = [self._client(workload.produce(number)) for number in range(1, scenario.plain_producers + 1)]
        producers += [self._client(workload.produce_idempotently(number)) for number in idempotent]
        await asyncio.gather(*(self._mishaps.happen(mishap) for mishap in scenario.mishaps))
        self.trace.add("healed")
        workload.must_serve_by = self._loop.time() + RECOVERY_S
        await asyncio.gather(*producers)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        await workload.check_alive()
        await self._settle()
        return await workload.read_all()

    async def _create_topic(self) -> None:
        scenario = self.scenario
        await self.workload.create_topic(
            TOPIC,
            scenario.replication_factor,
            {
                "segment.bytes": str(scenario.segment_bytes),
                "retention.ms": "-1",
                "min.insync.replicas": str(scenario.min_insync_replicas),
            },
        )

    async def _settle(self) -> None:
        """Wait until every replica is in sync and has everything; complain when that takes too long."""
        give_up_at = self._loop.time() + RECOVERY_S
        while (unsettled := self._unsettled()) is not None:
            if self._loop.time() > give_up_at:
                self.workload.complaints.append(f"{RECOVERY_S} s after the last write: {unsettled}")
                return
            await asyncio.sleep(SETTLE_S)

    def _unsettled(self) -> str | None:
        """What is not yet as it should be, if anything."""
        for machine in self.machines.values():
            if not machine.is_up:
                return f"{machine.name} is down"
            topic = machine.broker.metadata.image.topics.get(TOPIC)
            if topic is None:
                return f"{machine.name} knows no topic"
            for state in topic.partitions:
                if set(state.isr) != set(state.replicas):
                    return f"{machine.name} knows {state}"
                ends = {}
                for number in state.replicas:
                    batches = batches_on(self.machines[number].disk, f"data/{TOPIC}-{state.partition}")
                    ends[number] = batches[-1].next_offset if batches else 0
                if len(set(ends.values())) != 1:
                    return f"{TOPIC}-{state.partition} ends at {ends}"
        return None

    def _client(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A client on a machine of its own."""
        name = CLIENTS[len(self._clients)]
        self._clients.append(name)
        return Process(self._loop, name, name).spawn(work)
