"""Carries out what a scenario has in store for a cluster, and undoes it."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from random import Random

from penstock.cluster.registration import NodeIdTaken
from penstock.sim.cluster_scenario import LEADER, Fault, Mishap
from penstock.sim.ensemble import STORE, Ensemble
from penstock.sim.machine import Machine
from penstock.sim.network import Link, SimNetwork
from penstock.sim.process import Killed
from penstock.sim.trace import Trace

RESTART_S = 0.5  # After a broker has ended by itself.
SILENT_RATE = 0.5  # Of the power cuts: peers hear nothing, not even a reset, until the machine is back.


class Mishaps:
    def __init__(
        self,
        *,
        machines: Mapping[int, Machine],
        ensemble: Ensemble,
        network: SimNetwork,
        ends: Sequence[str],
        random: Random,
        trace: Trace,
    ) -> None:
        """`ends` are all that machines have links with."""
        self._machines = machines
        self._ensemble = ensemble
        self._network = network
        self._ends = ends
        self._random = random
        self._trace = trace
        self._down_s: dict[str, float] = {}  # How long a machine that has just died stays down.

    async def supervise(self, machine: Machine) -> None:
        """Start the broker, and start it again whenever it has ended; for ever."""
        while True:
            try:
                await machine.start()
                await machine.wait_dead()
            except Killed:
                pass  # While it was starting.
            except (OSError, NodeIdTaken) as error:
                self._trace.add("start failed", machine.name, str(error))
                machine.kill()
            await asyncio.sleep(self._down_s.pop(machine.name, RESTART_S))

    async def happen(self, mishap: Mishap) -> None:
        await asyncio.sleep(mishap.at_s)
        self._trace.add("mishap", mishap.fault.value, mishap.broker, mishap.seconds)
        machine = self._machines[self._leader() if mishap.broker == LEADER else mishap.broker]
        match mishap.fault:
            case Fault.KILL | Fault.POWER | Fault.STOP:
                await self._end(machine, mishap.fault, mishap.seconds)
            case Fault.POWER_ALL:
                downs = [mishap.seconds * self._random.random() for _ in self._machines]
                ends = zip(self._machines.values(), downs, strict=True)
                await asyncio.gather(*(self._end(machine, Fault.POWER, down_s) for machine, down_s in ends))
            case Fault.POWER_AT_OPERATION:
                machine.disk.cut_power_at = machine.disk.operations + int(mishap.amount)
                await asyncio.sleep(mishap.seconds)
                machine.disk.cut_power_at = None
            case Fault.PAUSE:
                await self._pause(machine, mishap.seconds)
            case Fault.CUT:
                await self._cut(mishap.links, mishap.seconds)
            case Fault.ISOLATE:
                away = [other.name for other in self._machines.values() if other is not machine]
                away += [STORE] if mishap.amount else []
                await self._cut([link for end in away for link in _both(machine.name, end)], mishap.seconds)
            case Fault.SWIZZLE:
                await self._swizzle(mishap.links, mishap.seconds)
            case Fault.SLOW:
                await self._slow(mishap.links, mishap.seconds, mishap.amount)
            case Fault.STORE_DOWN:
                await self._store_down(mishap.seconds)
            case Fault.CLOCK:
                machine.clock.jump_ms = int(mishap.amount * 1000)
            case Fault.SYNC_FAILS:
                machine.disk.fail_syncs.add(machine.disk.syncs + int(mishap.amount))
                await asyncio.sleep(mishap.seconds)
                # Nothing is acknowledged after a failed sync until a restart.
                await self._end(machine, Fault.KILL, 0.0)
                machine.disk.fail_syncs.clear()
            case Fault.DISK_FULL:
                machine.disk.fill(int(mishap.amount))
                await asyncio.sleep(mishap.seconds)
                machine.disk.capacity_bytes = None

    def _leader(self) -> int:
        """Of the first partition, as the broker knows that heard last."""
        images = [machine.broker.metadata.image for machine in self._machines.values() if machine.is_up]
        leaders = [
            (topic.partitions[0].leader_epoch, topic.partitions[0].leader)
            for image in images
            for topic in image.topics.values()
            if topic.partitions[0].leader in self._machines
        ]
        return max(leaders)[1] if leaders else min(self._machines)

    async def _end(self, machine: Machine, fault: Fault, down_s: float) -> None:
        if not machine.is_up:
            return
        self._down_s[machine.name] = down_s
        if fault is Fault.KILL or (fault is Fault.STOP and not machine.is_serving):
            machine.kill()
        elif fault is Fault.STOP:
            with suppress(Killed):  # Something else was faster.
                await machine.stop()
        elif self._random.random() < SILENT_RATE:
            links = [link for end in self._ends if end != machine.name for link in _both(machine.name, end)]
            for link in links:
                self._network.cut_link(link)
            machine.cut_power()
            await asyncio.sleep(down_s)
            for link in links:
                self._network.heal_link(link)
        else:
            machine.cut_power()

    async def _pause(self, machine: Machine, seconds: float) -> None:
        process = machine.process
        if process.alive and not process.paused:
            process.pause()
            await asyncio.sleep(seconds)
            process.resume()

    async def _cut(self, links: Sequence[Link], seconds: float) -> None:
        for link in links:
            self._network.cut_link(link)
        await asyncio.sleep(seconds)
        for link in links:
            self._network.heal_link(link)

    async def _swizzle(self, links: Sequence[Link], seconds: float) -> None:
        step_s = seconds / len(links)
        for link in links:
            self._network.cut_link(link)
            await asyncio.sleep(step_s * self._random.random())
        healed = list(links)
        self._random.shuffle(healed)
        for link in healed:
            self._network.heal_link(link)
            await asyncio.sleep(step_s * self._random.random())

    async def _slow(self, links: Sequence[Link], seconds: float, by_s: float) -> None:
        for link in links:
            self._network.slow_link(link, by_s)
        await asyncio.sleep(seconds)
        for link in links:
            self._network.slow_link(link, 0.0)

    async def _store_down(self, seconds: float) -> None:
        if not self._ensemble.is_down:
            self._ensemble.go_down()
            await asyncio.sleep(seconds)
            self._ensemble.come_back()


def _both(one: str, other: str) -> tuple[Link, Link]:
    return (one, other), (other, one)
