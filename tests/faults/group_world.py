"""The members and checkers of simulated churn, on sockets: fifty members in one process, the broker in another."""

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

from penstock.base.errors import ErrorCode
from penstock.base.types import TopicPartition
from penstock.sim.client import LinkLost, SimClient, batch_of
from penstock.sim.group_checkers import check_groups
from penstock.sim.group_crowd import GroupCrowd
from penstock.sim.group_history import Acked, Committed, GroupHistory
from penstock.sim.member import EXPIRY_SLACK_S, MemberShape
from penstock.sim.workload import Links, create_topic
from ports import HOST

from .broker_process import BrokerProcess

GROUP, TOPIC = "churning", "t"
SETTLE_S = 60.0  # Only a failure takes so long.
LOOK_EVERY_S = 0.05
CONFIG = {
    "group.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "300",
    "offsets.topic.num.partitions": "1",
    "auto.create.topics.enable": "false",
}


class SocketNetwork:
    """What `Links` needs of a network. Its simulated host stands for this machine."""

    async def connect(self, factory: Callable[[], SimClient], _: str, port: int) -> tuple[Any, SimClient]:
        return await asyncio.get_running_loop().create_connection(factory, HOST, port)


class GroupWorld:
    def __init__(self, broker: BrokerProcess, *, partitions: int, session_s: float) -> None:
        self.lives = 1
        self.complaints: list[str] = []
        self.history = GroupHistory()
        self.session_s = session_s
        self.on_asked: Callable[[str], None] = lambda what: None
        self.broker = broker
        self._partitions = [TopicPartition(TOPIC, number) for number in range(partitions)]
        self._links = Links(SocketNetwork(), broker.port)  # type: ignore[arg-type]
        self._ends: dict[TopicPartition, int] = {}
        self.crowd = GroupCrowd(
            group=GROUP,
            numbers=itertools.count(1),
            seed=0,
            shape=MemberShape(session_s=session_s, rebalance_s=2 * session_s, think_s=session_s / 5),
            partitions=self._partitions,
            links=self._links,
            history=self.history,
            world=self,
            now=asyncio.get_running_loop().time,
        )

    def complain(self, what: str) -> None:
        self.complaints.append(what)

    async def prepare(self) -> None:
        assert await create_topic(self._links, TOPIC, len(self._partitions), {}) is ErrorCode.none

    async def restart(self) -> None:
        """A new broker on what the last one left; members find it by themselves."""
        await asyncio.to_thread(self.broker.start)
        self.lives += 1

    async def produce(self, every_s: float) -> None:
        """Write to all partitions in turn until cancelled."""
        for number in itertools.count():
            partition = self._partitions[number % len(self._partitions)]
            values = (b"v%d" % number,)
            try:
                client = await self._links.connect()
                reply = await client.produce(partition, batch_of(values, int(time.time() * 1000)))
            except (LinkLost, OSError):
                await asyncio.sleep(every_s)
                continue
            if reply.error is ErrorCode.none:
                self.history.add(Acked(partition, reply.base_offset, values))
                self._ends[partition] = reply.base_offset + 1
            client.close()
            await asyncio.sleep(every_s)

    async def settle(self) -> float:
        """The seconds until the group was stable for good; an assertion when that takes longer than it may."""
        now = asyncio.get_running_loop().time
        began = now()
        self.crowd.reap()
        gone_at = max(began + self.session_s, self.crowd.ghosts_until)
        stable_at: float | None = None
        while stable_at is None or now() < gone_at + EXPIRY_SLACK_S:
            if not self.crowd.is_stable(began):
                stable_at = None
            elif stable_at is None:
                stable_at = now()
            assert now() < gone_at + SETTLE_S, f"not stable after {now() - began:.1f} s: {self.crowd.describe()}"
            await asyncio.sleep(LOOK_EVERY_S)
        return stable_at - began

    async def finish(self) -> None:
        """Read to the end, and hold everyone to what they were told."""
        deadline = asyncio.get_running_loop().time() + 60
        while not self.crowd.has_committed(self._ends):
            assert asyncio.get_running_loop().time() < deadline, f"not read to the end: {self.crowd.describe()}"
            await asyncio.sleep(LOOK_EVERY_S)
        await self.crowd.stop()
        found = [*self.complaints, *map(str, check_groups(self.history.events))]
        assert not found, "\n".join(found[:20])

    def refused_zombies(self) -> Sequence[Committed]:
        """Commits of members that the coordinator had let go."""
        return [event for event in self.history.events if isinstance(event, Committed) and event.is_out and event.code]
