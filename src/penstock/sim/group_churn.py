"""Groups whose members come, go, die, sleep and wake, on a broker that dies, too, also in the middle of a rebalance.

`run(seed)` is one run. When the churn is over, the members that are left must share all partitions within a session and
SETTLE_S, read what is there to the end, and the checkers compare what everyone was told.
"""

import asyncio
from dataclasses import dataclass
from random import Random

from penstock.base.config import BrokerConfig
from penstock.base.errors import ErrorCode
from penstock.base.types import TopicPartition
from penstock.sim.client import LinkLost, NoReply, batch_of
from penstock.sim.clock import SimLoop
from penstock.sim.group_checkers import check_groups
from penstock.sim.group_history import Acked, GroupHistory
from penstock.sim.group_scenario import GROUP_MEMBERS_MAX, Act, Ambush, Deed, GroupScenario
from penstock.sim.lives import live_once
from penstock.sim.machine import Machine
from penstock.sim.member import EXPIRY_SLACK_S, Member, MemberShape
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


@dataclass
class Seat:
    """A member and its task."""

    member: Member
    task: asyncio.Task[None]


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
        self._seats: list[list[Seat]] = [[] for _ in scenario.groups]  # Of the living, by group.
        self._ends: dict[TopicPartition, int] = {}  # After the last acknowledged record.
        self._named = 0
        self._ambush: Ambush | None = None
        self._ambushed = 0  # Requests of the ambush's kind in this life.
        self._churn_ended_at = 0.0
        self._ghosts_until = 0.0  # Until then a member may count that died while it joined.

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
        for number, statics in enumerate(self.scenario.groups):
            for is_static in statics:
                self._start(number, self._new_name(number) if is_static else None)
        await asyncio.gather(lives, self._produce(), self._churn())
        await cuts
        await self._settle()
        await self._drain()
        for seat in self._all_seats():
            seat.task.cancel()
        await asyncio.gather(*(seat.task for seat in self._all_seats()), return_exceptions=True)
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
            self._reap()
            self._do(act)
            if act.deed is Deed.PAUSE:
                awake_at = max(awake_at, self._loop.time() + act.seconds)
        await asyncio.sleep(max(0.0, max(awake_at, now + self.scenario.seconds) - self._loop.time()))

    def _do(self, act: Act) -> None:
        seats = self._seats[act.group]
        if act.deed is Deed.JOIN or not seats:
            if len(seats) < GROUP_MEMBERS_MAX:
                self._start(act.group, None)
            return
        seat = seats[int(act.pick * len(seats))]
        member = seat.member
        self.trace.add(act.deed.value, member.name)
        match act.deed:
            case Deed.LEAVE:
                member.is_leaving = True
            case Deed.PAUSE:
                member.pause(act.seconds)
            case Deed.CRASH | Deed.VANISH:
                self._kill(act.group, seat, silently=act.deed is Deed.VANISH)
            case Deed.RESTART:
                self._kill(act.group, seat, silently=False)
                self._start(act.group, member.instance_id)
            case Deed.DOUBLE if len(seats) < GROUP_MEMBERS_MAX:
                self._start(act.group, member.instance_id)

    def _start(self, group: int, instance_id: str | None) -> None:
        scenario = self.scenario
        name = self._new_name(group)
        member = Member(
            name=name,
            group=f"g{group}",
            instance_id=instance_id,
            shape=MemberShape(session_s=scenario.session_s, rebalance_s=scenario.rebalance_s, think_s=scenario.think_s),
            partitions=self._partitions,
            links=self._links,
            history=self._history,
            world=self,
            random=Random(f"member-{scenario.seed}-{name}"),
            now=self._loop.time,
        )
        self._seats[group].append(Seat(member, asyncio.create_task(member.run(), name=name)))

    def _new_name(self, group: int) -> str:
        self._named += 1
        return f"g{group}-m{self._named}"

    def _kill(self, group: int, seat: Seat, *, silently: bool) -> None:
        self._seats[group].remove(seat)
        if seat.member.waits_for in ("join", "sync"):
            self._ghosts_until = self._loop.time() + 2 * self.scenario.session_s
        seat.task.cancel()
        seat.member.drop_link(silently=silently)

    def _reap(self) -> None:
        """Forget those who left or were fenced; an error that ended a member is the run's."""
        for seats in self._seats:
            for seat in [seat for seat in seats if seat.task.done()]:
                seats.remove(seat)
                seat.task.result()

    def _all_seats(self) -> list[Seat]:
        return [seat for seats in self._seats for seat in seats]

    # The end

    async def _settle(self) -> None:
        began = self._churn_ended_at = self._loop.time()
        self._reap()
        for group, seats in enumerate(self._seats):
            if not any(not seat.member.is_leaving for seat in seats):
                self._start(group, None)
        # One that died while it joined becomes a member when those are gone who died before it: its session starts
        # then. Until all sessions are over a group may look stable and have a dead member that owns nothing.
        gone_at = max(began + self.scenario.session_s, self._ghosts_until)
        stable_at: float | None = None
        while self._loop.time() < gone_at + SETTLE_S:
            if not all(self._is_stable(number) for number in range(len(self._seats))):
                stable_at = None
            elif stable_at is None:
                stable_at = self._loop.time()
            if stable_at is not None and self._loop.time() > gone_at + EXPIRY_SLACK_S:
                self.settle_s = stable_at - began
                return
            await asyncio.sleep(LOOK_EVERY_S)
        for number in range(len(self._seats)):
            if not self._is_stable(number):
                self.complain(f"g{number} is not stable after {gone_at + SETTLE_S - began} s: {self._describe(number)}")

    def _is_stable(self, group: int) -> bool:
        """Whether those alive are in one generation and own every partition once."""
        self._reap()
        members = [seat.member for seat in self._seats[group]]
        owned = sorted(partition for member in members for partition in member.owned)
        is_one = len({member.generation for member in members}) == 1
        is_known = all(member.is_in_step(self._churn_ended_at) for member in members)
        return is_one and is_known and owned == self._partitions

    def _describe(self, group: int) -> str:
        return "; ".join(
            f"{seat.member.name} generation={seat.member.generation} settled={seat.member.is_settled}"
            f" waits_for={seat.member.waits_for} owned={[p.partition for p in sorted(seat.member.owned)]}"
            for seat in self._seats[group]
        )

    async def _drain(self) -> None:
        until = self._loop.time() + DRAIN_S_MAX
        while not self.complaints:
            for number in range(len(self._seats)):
                if not self._is_stable(number):
                    self.complain(f"g{number} was stable, and is not any more: {self._describe(number)}")
            if all(seat.member.has_committed(self._ends) for seat in self._all_seats()):
                return
            if self._loop.time() > until:
                self.complain("what is there was not read and committed to the end")
            await asyncio.sleep(LOOK_EVERY_S)
