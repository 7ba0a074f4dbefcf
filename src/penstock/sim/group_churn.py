"""Groups whose members come, go, die, sleep and wake, on a broker that dies, too, also in the middle of a rebalance.

`run(seed)` is one run. When the churn is over, the members that are left must share all partitions within a session and
SETTLE_S, read what is there to the end, and the checkers compare what everyone was told.
"""

import asyncio
import itertools
from dataclasses import dataclass
from random import Random

from penstock.base.config import BrokerConfig
from penstock.base.errors import ErrorCode
from penstock.base.types import TopicPartition
from penstock.sim.client import LinkLost, NoReply, batch_of
from penstock.sim.clock import SimLoop
from penstock.sim.group_checkers import check_groups
from penstock.sim.group_crowd import GroupCrowd
from penstock.sim.group_history import Acked, GroupHistory
from penstock.sim.group_scenario import GROUP_MEMBERS_MAX, Act, Ambush, Deed, GroupScenario
from penstock.sim.lives import live_once
from penstock.sim.machine import Machine
from penstock.sim.member import EXPIRY_SLACK_S, MemberShape
from penstock.sim.network import SimNetwork
from penstock.sim.report import Report, watch
from penstock.sim.trace import Trace
from penstock.sim.workload import Links, create_topic

PORT = 9092
TOPIC = "t"
MIN_SESSION_MS = 1_000
SETTLE_S = 5.0  # What a rebalance may take on top of the session of those who are gone.
DRAIN_S_MAX = 30.0  # Many times what a member needs to poll all its partitions.
LOOK_EVERY_S = 0.25
STEPS_MAX = 500_000


@dataclass(frozen=True)
class GroupReport(Report):
    settle_s: float  # From the end of the churn until the last group was stable.


def run(seed: int) -> GroupReport:
    """Simulate the seed. No problems: every promise was kept."""
    scenario = GroupScenario.draw(seed)
    loop = SimLoop(steps_max=STEPS_MAX)
    churn = GroupChurn(scenario, loop)
    problems = watch(loop, churn.verdict())
    return GroupReport(scenario, problems + churn.complaints, loop.steps, churn.trace, churn.settle_s)


class GroupChurn:
    def __init__(self, scenario: GroupScenario, loop: SimLoop) -> None:
        self.scenario = scenario
        self.trace = Trace(loop)
        self.complaints: list[str] = []
        self.settle_s = 0.0
        self._loop = loop
        self._history = GroupHistory(self.trace)
        self._network = SimNetwork(loop=loop, random=Random(f"network-{scenario.seed}"), trace=self.trace)
        config = BrokerConfig(
            port=PORT,
            data_dir="data",
            auto_create_topics_enable=False,
            group_min_session_timeout_ms=MIN_SESSION_MS,
            group_initial_rebalance_delay_ms=scenario.initial_delay_ms,
            offsets_topic_num_partitions=scenario.offsets_partitions,
        )
        self._machine = Machine(loop=loop, seed=scenario.seed, trace=self.trace, network=self._network, config=config)
        self._links = Links(self._network, PORT)
        self._partitions = [TopicPartition(TOPIC, number) for number in range(scenario.partitions)]
        self._numbers = itertools.count(1)
        self._crowds = [self._crowd(f"g{number}") for number in range(len(scenario.groups))]
        self._ends: dict[TopicPartition, int] = {}  # After the last acknowledged record.
        self._ambush: Ambush | None = None
        self._ambushed = 0  # Requests of the ambush's kind in this life.
        self._churn_ended_at = 0.0

    def _crowd(self, group: str) -> GroupCrowd:
        scenario = self.scenario
        return GroupCrowd(
            group=group,
            numbers=self._numbers,
            seed=scenario.seed,
            shape=MemberShape(session_s=scenario.session_s, rebalance_s=scenario.rebalance_s, think_s=scenario.think_s),
            partitions=self._partitions,
            links=self._links,
            history=self._history,
            world=self,
            now=self._loop.time,
        )

    # What members ask of the world

    @property
    def lives(self) -> int:
        return self._machine.lives

    def complain(self, what: str) -> None:
        self.complaints.append(f"{what} (at {self._loop.time():.3f} s)")

    def on_asked(self, what: str) -> None:
        if self._ambush is not None and self._ambush.request == what:
            self._ambushed += 1
            if self._ambushed == self._ambush.number:
                self._loop.call_later(self._ambush.delay_s, self._strike, self._ambush, self.lives)

    def _strike(self, ambush: Ambush, life: int) -> None:
        if self._machine.is_up and self.lives == life:
            if ambush.is_kill:
                self._machine.kill()
            else:
                self._machine.cut_power()

    # The run

    async def verdict(self) -> list[str]:
        lives = asyncio.create_task(self._live(), name="lives")
        config = {"segment.bytes": str(self.scenario.segment_bytes), "retention.ms": "-1"}
        code = await create_topic(self._links, TOPIC, self.scenario.partitions, config)
        if code is not ErrorCode.none:
            self.complain(f"creating {TOPIC}: {code.name}")
        cuts = asyncio.create_task(self._cut_links(), name="cuts")
        for crowd, statics in zip(self._crowds, self.scenario.groups, strict=True):
            for is_static in statics:
                crowd.start(crowd.new_name() if is_static else None)
        await asyncio.gather(lives, self._produce(), self._churn())
        await cuts
        await self._settle()
        await self._drain()
        for crowd in self._crowds:
            await crowd.stop()
        return [str(violation) for violation in check_groups(self._history.events)]

    async def _live(self) -> None:
        for life, ambush in zip(self.scenario.lives, self.scenario.ambushes, strict=True):
            self._ambush, self._ambushed = ambush, 0
            await live_once(self._machine, life)
            self._ambush = None
            await asyncio.sleep(life.down_seconds)
        self._machine.disk.heal()
        await self._machine.start()

    async def _cut_links(self) -> None:
        random = Random(f"cuts-{self.scenario.seed}")
        for _ in range(self.scenario.link_cuts):
            await asyncio.sleep(self.scenario.seconds / self.scenario.link_cuts * random.random())
            self._network.cut_one()

    async def _produce(self) -> None:
        random = Random(f"producer-{self.scenario.seed}")
        for number in range(self.scenario.sends):
            await asyncio.sleep(2 * self.scenario.seconds / self.scenario.sends * random.random())
            partition = random.choice(self._partitions)
            values = tuple(f"v{number}-{n}".encode() for n in range(random.randint(1, 3)))
            client = await self._links.connect()
            try:
                reply = await client.produce(partition, batch_of(values, self._machine.clock.now_ms()))
            except LinkLost:
                continue
            except NoReply as error:
                self.complain(f"producer: {error}")
                continue
            if reply.error is ErrorCode.none:
                self._history.add(Acked(partition, reply.base_offset, values))
                self._ends[partition] = reply.base_offset + len(values)
            client.close()

    # Churn

    async def _churn(self) -> None:
        now = self._loop.time()
        awake_at = now
        for act in sorted(self.scenario.acts, key=lambda act: act.at_s):
            await asyncio.sleep(max(0.0, now + act.at_s - self._loop.time()))
            self._do(act)
            if act.deed is Deed.PAUSE:
                awake_at = max(awake_at, self._loop.time() + act.seconds)
        await asyncio.sleep(max(0.0, max(awake_at, now + self.scenario.seconds) - self._loop.time()))

    def _do(self, act: Act) -> None:
        crowd = self._crowds[act.group]
        crowd.reap()
        if act.deed is Deed.JOIN or not crowd.seats:
            if len(crowd.seats) < GROUP_MEMBERS_MAX:
                crowd.start()
            return
        seat = crowd.seats[int(act.pick * len(crowd.seats))]
        member = seat.member
        self.trace.add(act.deed.value, member.name)
        match act.deed:
            case Deed.LEAVE:
                member.is_leaving = True
            case Deed.PAUSE:
                member.pause(act.seconds)
            case Deed.CRASH | Deed.VANISH:
                crowd.kill(seat, silently=act.deed is Deed.VANISH)
            case Deed.RESTART:
                crowd.kill(seat, silently=False)
                crowd.start(member.instance_id)
            case Deed.DOUBLE if len(crowd.seats) < GROUP_MEMBERS_MAX:
                crowd.start(member.instance_id)

    # The end

    async def _settle(self) -> None:
        began = self._churn_ended_at = self._loop.time()
        for crowd in self._crowds:
            crowd.reap()
            if all(seat.member.is_leaving for seat in crowd.seats):
                crowd.start()
        # Until all sessions are over a group may look stable and have a dead member that owns nothing.
        gone_at = max(began + self.scenario.session_s, *(crowd.ghosts_until for crowd in self._crowds))
        stable_at: float | None = None
        while self._loop.time() < gone_at + SETTLE_S:
            if not all(crowd.is_stable(began) for crowd in self._crowds):
                stable_at = None
            elif stable_at is None:
                stable_at = self._loop.time()
            if stable_at is not None and self._loop.time() > gone_at + EXPIRY_SLACK_S:
                self.settle_s = stable_at - began
                return
            await asyncio.sleep(LOOK_EVERY_S)
        for crowd in self._crowds:
            if not crowd.is_stable(began):
                self.complain(f"not stable after {gone_at + SETTLE_S - began} s: {crowd.describe()}")

    async def _drain(self) -> None:
        until = self._loop.time() + DRAIN_S_MAX
        while not self.complaints:
            for crowd in self._crowds:
                if not crowd.is_stable(self._churn_ended_at):
                    self.complain(f"was stable, and is not any more: {crowd.describe()}")
            if all(crowd.has_committed(self._ends) for crowd in self._crowds):
                return
            if self._loop.time() > until:
                self.complain("what is there was not read and committed to the end")
            await asyncio.sleep(LOOK_EVERY_S)
