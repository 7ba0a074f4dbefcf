"""The members of one group that are alive: they are started and killed here, and seen from outside as a whole."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from penstock.base.types import TopicPartition
from penstock.sim.group_history import GroupHistory
from penstock.sim.member import Member, MemberShape, World
from penstock.sim.workload import Links


@dataclass
class Seat:
    """A member and its task."""

    member: Member
    task: asyncio.Task[None]


class GroupCrowd:
    def __init__(
        self,
        *,
        group: str,
        numbers: Iterator[int],  # For names; shared by all groups of a run.
        seed: int,
        shape: MemberShape,
        partitions: Sequence[TopicPartition],
        links: Links,
        history: GroupHistory,
        world: World,
        now: Callable[[], float],
    ) -> None:
        self.seats: list[Seat] = []
        self.ghosts_until = 0.0  # Until then a member may count that died while it joined.
        self._group = group
        self._seed = seed
        self._shape = shape
        self._partitions = sorted(partitions)
        self._links = links
        self._history = history
        self._world = world
        self._now = now
        self._numbers = numbers

    def new_name(self) -> str:
        return f"{self._group}-m{next(self._numbers)}"

    def start(self, instance_id: str | None = None) -> None:
        name = self.new_name()
        member = Member(
            name=name,
            group=self._group,
            instance_id=instance_id,
            shape=self._shape,
            partitions=self._partitions,
            links=self._links,
            history=self._history,
            world=self._world,
            random=Random(f"member-{self._seed}-{name}"),
            now=self._now,
        )
        self.seats.append(Seat(member, asyncio.create_task(member.run(), name=name)))

    def kill(self, seat: Seat, *, silently: bool) -> None:
        self.seats.remove(seat)
        if seat.member.waits_for in ("join", "sync"):
            # It becomes a member when the rebalance ends that it had joined, and its session starts then.
            shape = self._shape
            self.ghosts_until = self._now() + max(shape.rebalance_s, shape.session_s) + shape.session_s
        seat.task.cancel()
        seat.member.drop_link(silently=silently)

    async def stop(self) -> None:
        """End all of them, as a power cut would."""
        for seat in self.seats:
            seat.task.cancel()
        await asyncio.gather(*(seat.task for seat in self.seats), return_exceptions=True)

    def reap(self) -> None:
        """Forget those who left or were fenced; an error that ended a member is the run's."""
        for seat in [seat for seat in self.seats if seat.task.done()]:
            self.seats.remove(seat)
            seat.task.result()

    def is_stable(self, since: float) -> bool:
        """Whether those alive are in one generation, have heard so since then, and own every partition once."""
        self.reap()
        members = [seat.member for seat in self.seats]
        owned = sorted(partition for member in members for partition in member.owned)
        is_one = len({member.generation for member in members}) == 1
        return is_one and all(member.is_in_step(since) for member in members) and owned == self._partitions

    def has_committed(self, ends: Mapping[TopicPartition, int]) -> bool:
        return all(seat.member.has_committed(ends) for seat in self.seats)

    def describe(self) -> str:
        return "; ".join(
            f"{seat.member.name} generation={seat.member.generation} settled={seat.member.is_settled}"
            f" waits_for={seat.member.waits_for} owned={[p.partition for p in sorted(seat.member.owned)]}"
            for seat in self.seats
        )
