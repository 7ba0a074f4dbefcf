"""One member of a consumer group, as faithful as a real client: it joins, is assigned, reads, commits and beats.

Eager rebalancing of the classic protocol: a member that is told to rejoin commits, gives up what it owns, and joins.
Everything it was told goes into the history. It can be paused at any request, before the request is sent or after the
answer has come: when it goes on, it believes what it believed before.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol, TypeVar

from kio.schema.join_group.v9.response import JoinGroupResponseMember

from penstock.base.errors import ErrorCode
from penstock.base.types import TopicPartition
from penstock.sim.client import LinkLost, NoReply, SimClient
from penstock.sim.group_checkers import PASSING
from penstock.sim.group_history import NEVER, Beat, Committed, Delivered, GroupHistory, Joined, Looked, Span, Synced
from penstock.sim.group_requests import (
    Identity,
    assigned,
    assignment_of,
    commit_offsets,
    fetch_offsets,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    sync_group,
)
from penstock.sim.workload import Links

# Longer than bytes of a broken connection can still be under way: a commit that arrives after a later one of the same
# member would put its own offset back, and that would be the client's fault.
RECONNECT_S = 0.1
BACKOFF_S = 0.1
EXPIRY_SLACK_S = 1.0  # The coordinator's timers are coarse, and its answers take their time.
COMMIT_RATE = 0.4  # Of the polls.
COMMIT_BEFORE_JOIN_RATE = 0.7
LAST_WORD_RATE = 0.5  # Of those that leave: one more commit, as a client does that shuts down in the wrong order.

R = TypeVar("R")


class World(Protocol):
    """What a member needs to know of the run."""

    @property
    def lives(self) -> int:
        """Brokers started so far."""

    def on_asked(self, what: str) -> None: ...

    def complain(self, what: str) -> None: ...


@dataclass(frozen=True, kw_only=True)
class MemberShape:
    session_s: float
    rebalance_s: float
    think_s: float


class Fenced(Exception):
    """Another process has taken this static member's seat."""


class Member:
    def __init__(
        self,
        *,
        name: str,
        group: str,
        instance_id: str | None,
        shape: MemberShape,
        partitions: Sequence[TopicPartition],
        links: Links,
        history: GroupHistory,
        world: World,
        random: Random,
        now: Callable[[], float],
    ) -> None:
        self.name = name
        self.group = group
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.owned: frozenset[TopicPartition] = frozenset()
        self.is_settled = False  # It is in a generation and knows its part.
        self.waits_for: str | None = None  # The request that is under way.
        self.is_leaving = False
        self.is_done = False
        self._shape = shape
        self._partitions = partitions
        self._topic = partitions[0].topic
        self._links = links
        self._history = history
        self._world = world
        self._random = random
        self._now = now
        self._client: SimClient | None = None
        self._positions: dict[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._heard_at = 0.0  # When the coordinator last answered us, or may have heard of us.
        self._heard_in = 0  # Which broker that was.
        self._left_in: int | None = None  # The broker that we have told that we leave.
        self._paused_until = 0.0
        self._has_slept = False
        self._polls = 0
        self._begun = 0  # The last request's place in the run's order.
        self._was_out = False  # Whether the coordinator must have let go of us when it was sent.

    def pause(self, seconds: float) -> None:
        """Stop at the next request or answer; go on after so long, as if nothing had been."""
        self._paused_until = self._now() + seconds

    def is_in_step(self, since: float) -> bool:
        """Whether it knows its part and has heard of the coordinator since: one that slept only thinks so."""
        return self.is_settled and self._heard_at >= since

    def has_committed(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Whether it has committed all that it owns up to these ends."""
        return all(self._committed[partition] >= ends.get(partition, 0) for partition in self.owned)

    def drop_link(self, *, silently: bool) -> None:
        """As a process that died, or a machine that vanished: then the broker does not even see the link break."""
        if self._client is not None and not silently:
            self._client.abort()

    async def run(self) -> None:
        """Take part until told to leave, or fenced."""
        while True:
            try:
                await self._take_part()
                break
            except LinkLost:
                self._note_heard()
                self._client = None
                await asyncio.sleep(RECONNECT_S)
            except NoReply as error:
                self._world.complain(f"{self.name}: {error}")
                break
            except Fenced:
                break
        self.is_done = True
        self.is_settled = False
        if self._client is not None:
            self._client.close()

    async def _take_part(self) -> None:
        if self._client is None:
            self._client = await self._links.connect()
        client = self._client
        await self._find(client)
        while not self.is_leaving:
            if self.is_settled:
                await self._poll(client)
            else:
                await self._join(client)
        await self._leave(client)

    async def _find(self, client: SimClient) -> None:
        while True:
            code, _ = await self._ask("find", lambda: find_coordinator(client, self.group))
            if code is ErrorCode.none:
                return
            self._expect(code, "FindCoordinator")
            await asyncio.sleep(BACKOFF_S)

    # Joining

    async def _join(self, client: SimClient) -> None:
        self.owned = frozenset()
        shape = self._shape
        reply, span = await self._ask(
            "join",
            lambda: join_group(
                client,
                self._identity(),
                topics=[self._topic],
                session_s=shape.session_s,
                rebalance_s=shape.rebalance_s,
                within_s=self._patience_s,
            ),
        )
        code = ErrorCode(reply.error_code.value)
        if code is ErrorCode.member_id_required:
            self.member_id = reply.member_id
        elif code is ErrorCode.none:
            self._history.add(Joined(span, self.group, reply.generation_id))
            self.member_id, self.generation = reply.member_id, reply.generation_id
            leads = reply.leader == self.member_id and not reply.skip_assignment
            await self._sync(client, self._assign(reply.members) if leads else {})
        else:
            await self._on_refused(code, "JoinGroup")

    def _assign(self, members: Sequence[JoinGroupResponseMember]) -> dict[str, bytes]:
        # By seat, so that static members keep what they have.
        seated = sorted((member.group_instance_id or member.member_id, member.member_id) for member in members)
        return {
            member_id: assignment_of(self._partitions[number :: len(seated)])
            for number, (_, member_id) in enumerate(seated)
        }

    async def _sync(self, client: SimClient, assignments: dict[str, bytes]) -> None:
        reply, span = await self._ask(
            "sync", lambda: sync_group(client, self._identity(), assignments, within_s=self._patience_s)
        )
        code = ErrorCode(reply.error_code.value)
        if code is not ErrorCode.none:
            await self._on_refused(code, "SyncGroup")
            return
        part = assigned(reply.assignment)
        self._history.add(Synced(span, self.group, self._owner, self.member_id, self.generation, part))
        await self._find_positions(client, part)

    async def _find_positions(self, client: SimClient, part: frozenset[TopicPartition]) -> None:
        offsets, span = await self._ask(
            "offsets", lambda: fetch_offsets(client, self.group, self._topic, len(self._partitions))
        )
        if isinstance(offsets, ErrorCode):
            await self._on_refused(offsets, "OffsetFetch")
            return
        self._history.add(Looked(span, self.group, tuple(offsets.items())))
        self._committed = {partition: max(0, offsets[partition]) for partition in sorted(part)}
        self._positions = dict(self._committed)
        self.owned, self.is_settled = part, True

    # At work

    async def _poll(self, client: SimClient) -> None:
        await asyncio.sleep(self._shape.think_s * self._random.random())
        if self._has_slept:
            self._has_slept = False
            await self._commit(client, self._positions)
        if self.is_settled and self._now() - self._heard_at > self._shape.session_s / 3:
            await self._beat(client)
        if self.is_settled and self.owned:
            self._polls += 1
            await self._read(client, sorted(self.owned)[self._polls % len(self.owned)])
        if self.is_settled and self._random.random() < COMMIT_RATE:
            await self._commit(client, self._read_since())

    async def _beat(self, client: SimClient) -> None:
        code, span = await self._ask("heartbeat", lambda: heartbeat(client, self._identity()))
        if code is ErrorCode.none:
            self._history.add(Beat(span, self.group, self.member_id, self.generation))
            return
        if code is ErrorCode.rebalance_in_progress and self._random.random() < COMMIT_BEFORE_JOIN_RATE:
            await self._commit(client, self._read_since())
        if self.is_settled:
            await self._on_refused(code, "Heartbeat")

    async def _read(self, client: SimClient, partition: TopicPartition) -> None:
        position = self._positions[partition]
        wait_ms = self._random.choice((0, 0, 100))
        reply, _ = await self._ask("fetch", lambda: client.fetch(partition, position, wait_ms=wait_ms))
        if reply.error is ErrorCode.offset_out_of_range:
            self._world.complain(f"{self.name}: {partition} has no offset {position}")
        if reply.records:
            self._history.add(Delivered(self.group, partition, tuple(reply.records)))
            self._positions[partition] = reply.records[-1][0] + 1

    def _read_since(self) -> dict[TopicPartition, int]:
        """Positions that are past what we have committed."""
        return {p: offset for p, offset in self._positions.items() if offset > self._committed[p]}

    async def _commit(self, client: SimClient, positions: Mapping[TopicPartition, int]) -> None:
        offsets = tuple(positions.items())
        if not offsets:
            return
        who = self._identity()
        try:
            code, span = await self._ask("commit", lambda: commit_offsets(client, who, dict(offsets)))
        except (LinkLost, NoReply, asyncio.CancelledError):
            self._note_commit(Span(self._begun, NEVER), who, offsets, None)
            raise
        self._note_commit(span, who, offsets, code)
        if code is ErrorCode.none:
            self._committed.update(offsets)
        else:
            await self._on_refused(code, "OffsetCommit")

    def _note_commit(
        self, span: Span, who: Identity, offsets: tuple[tuple[TopicPartition, int], ...], code: ErrorCode | None
    ) -> None:
        self._history.add(
            Committed(span, self.group, self._owner, who.member_id, who.generation, offsets, code, self._was_out)
        )

    async def _leave(self, client: SimClient) -> None:
        if self.member_id:
            code, _ = await self._ask("leave", lambda: leave_group(client, self._identity()))
            if code is ErrorCode.none:
                self._left_in = self._world.lives
                if self.is_settled and self._random.random() < LAST_WORD_RATE:
                    await self._commit(client, self._positions)
            elif code not in (ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id):
                self._expect(code, "LeaveGroup")

    # What all requests have in common

    @property
    def _owner(self) -> str:
        return self.instance_id or self.member_id

    @property
    def _patience_s(self) -> float:
        """A rebalance waits for the slowest member, and another may follow at once; more is being forgotten."""
        return 3 * (self._shape.rebalance_s + self._shape.session_s)

    def _identity(self) -> Identity:
        return Identity(self.group, self.member_id, self.instance_id, self.generation)

    async def _ask(self, what: str, request: Callable[[], Awaitable[R]]) -> tuple[R, Span]:
        """The reply, and the places in the run's order between which it was made."""
        await self._gate()
        self._begun, self._was_out = self._history.place(), self._is_out()
        self.waits_for = what
        self._world.on_asked(what)
        try:
            reply = await request()
        finally:
            self.waits_for = None
        span = self._history.span(self._begun)
        if what != "fetch":
            self._note_heard()
        await self._gate()
        return reply, span

    async def _gate(self) -> None:
        if self._paused_until > self._now():
            await asyncio.sleep(self._paused_until - self._now())
            self._has_slept = True

    def _note_heard(self) -> None:
        self._heard_at, self._heard_in = self._now(), self._world.lives

    def _is_out(self) -> bool:
        """Whether the coordinator must have let go of us. A new coordinator gives everyone a new session."""
        life = self._world.lives
        if self._left_in == life:
            return True
        return self._heard_in == life and self._now() - self._heard_at > self._shape.session_s + EXPIRY_SLACK_S

    async def _on_refused(self, code: ErrorCode, what: str) -> None:
        if code in PASSING:
            await asyncio.sleep(BACKOFF_S)
            return
        if code is ErrorCode.fenced_instance_id:
            raise Fenced
        self.is_settled = False
        if code is ErrorCode.unknown_member_id:
            self.member_id, self.generation = "", -1
        elif code not in (ErrorCode.illegal_generation, ErrorCode.rebalance_in_progress):
            self._world.complain(f"{self.name}: {what} answered {code.name}")

    def _expect(self, code: ErrorCode, what: str) -> None:
        if code not in PASSING:
            self._world.complain(f"{self.name}: {what} answered {code.name}")
