"""One group of the classic protocol: its members, its generation, and which of their requests are parked.

Inputs: what `join`, `sync`, `leave` and `rebalance` do to it, and `on_stored` with a record of it that was appended.
Outputs: replies, put into the Decision that is being made.
Invariants: beside the fields. Driven by GroupShard; the files named above decide, this one keeps the books.

What must survive a restart is in `stored`, the last record of the group. All else (joins in progress, the generation
between a rebalance and its SyncGroup, sessions) is soft: it goes with the coordinator, and clients rejoin.
"""

from collections.abc import Callable, Mapping

from penstock.base.errors import ErrorCode
from penstock.base.types import NO_TIMESTAMP
from penstock.coordinator.group.commands import JoinGroup
from penstock.coordinator.group.deadlines import Deadlines, Key, Kind
from penstock.coordinator.group.decision import Decision, Now, Reply, Token
from penstock.coordinator.group.group_config import GroupConfig
from penstock.coordinator.group.member import Member, rebalance_timeout_ms, restored_member
from penstock.coordinator.group.member_budget import MemberBudget
from penstock.coordinator.group.protocol_plan import ProtocolCounts
from penstock.coordinator.group.records import GroupMetadata
from penstock.coordinator.group.replies import JoinedMember, JoinReply, SyncReply
from penstock.coordinator.group.states import NEXT, GroupState
from penstock.coordinator.group.subscription import CONSUMER_PROTOCOL, topics_of

GENERATION_MASK = 0x7FFFFFFF  # An int32 on the wire; after two thousand million rebalances it starts anew.
MEMBER_ID_PREFIX_MAX = 255  # Characters of a client or instance id that go into a member id, which must fit a record.


class ClassicGroup:
    def __init__(
        self,
        group_id: str,
        *,
        config: GroupConfig,
        budget: MemberBudget,
        deadlines: Deadlines,
        new_unique_id: Callable[[], str],
    ) -> None:
        self.group_id = group_id
        self.config = config
        self.budget = budget
        self.deadlines = deadlines
        self._new_unique_id = new_unique_id

        self.stored: GroupMetadata | None = None  # The last record of this group in the log; None: there is none.
        self.state = GroupState.EMPTY
        self.state_since_ms = NO_TIMESTAMP  # Wall clock.
        self.generation_id = 0  # Grows with every completed rebalance. stored.generation_id <= generation_id
        self.protocol_type: str | None = None  # None: nobody ever joined.
        self.protocol_name: str | None = None  # Set in COMPLETING_REBALANCE and STABLE; common to all members.

        self.members: dict[str, Member] = {}  # Empty exactly in EMPTY, and for moments of a rebalance.
        self.leader_id: str | None = None  # A member. None: it is gone, and the rebalance will elect another.
        self.static_ids: dict[str, str] = {}  # Instance id to member id, of the static members.
        self.pending_ids: set[str] = set()  # Given out with MEMBER_ID_REQUIRED, not members yet.
        self.unsynced_ids: set[str] = set()  # Members that have not sent SyncGroup in this generation.
        self.protocols = ProtocolCounts()  # Of all members.
        self.parked_joins = 0  # Members with a join_token.

        # The first rebalance of an empty group waits for more members, each new one making it wait longer, until here.
        self.initial_until_ms: int | None = None  # None: not that kind of rebalance.
        self.has_new_member = False  # Since the wait was last prolonged.

        self._topics: frozenset[str] | None = None  # See subscribed_topics.
        self._topics_of = -1  # The generation that they were read for; -1: to be read again.

    # Questions ----------------------------------------------------------------------------------------------------

    @property
    def has_all_joined(self) -> bool:
        return self.parked_joins == len(self.members) and not self.pending_ids

    @property
    def is_vacant(self) -> bool:
        """Whether nothing would be lost with it; offsets apart, which are not kept here.

        A group that has had a generation is remembered even if its record is still to be appended.
        """
        is_known = self.stored is not None or self.generation_id > 0
        return self.state is GroupState.EMPTY and not is_known and not self.pending_ids

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Whether a request may speak for this member: a static member's seat belongs to the last who took it."""
        if instance_id is not None:
            seated = self.static_ids.get(instance_id)
            if seated is None:
                return ErrorCode.unknown_member_id
            if seated != member_id:
                return ErrorCode.fenced_instance_id
        return ErrorCode.none if member_id in self.members else ErrorCode.unknown_member_id

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member consumes `topic`. Yes, when it cannot be told: offsets in use must not be removed."""
        if not self.members:
            return False
        topics = self.subscribed_topics()
        return self.uses_consumer_protocol if topics is None else topic in topics

    def subscribed_topics(self) -> frozenset[str] | None:
        """The topics of all members; None when they cannot be told. Read when asked for, once per generation."""
        if not self.uses_consumer_protocol or self.protocol_name is None:
            return None
        if self._topics_of != self.generation_id:
            self._topics_of = self.generation_id
            self._topics = self._read_topics()
        return self._topics

    def _read_topics(self) -> frozenset[str] | None:
        topics: set[str] = set()
        for metadata in {member.metadata(self.protocol_name) for member in self.members.values()}:
            found = topics_of(metadata)
            if found is None:
                return None
            topics |= found
        return frozenset(topics)

    # Members ------------------------------------------------------------------------------------------------------

    def new_member_id(self, command: JoinGroup) -> str:
        prefix = command.client_id if command.instance_id is None else command.instance_id
        return f"{prefix[:MEMBER_ID_PREFIX_MAX]}-{self._new_unique_id()}"

    def add(self, member: Member) -> None:
        self.members[member.member_id] = member
        self.budget.charge(member)
        self.protocols.add(member.protocols)
        self.pending_ids.discard(member.member_id)
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id
        self._topics_of = -1

    def remove(self, member_id: str, code: ErrorCode, out: Decision) -> None:
        """The member is gone; what it waited for is answered with `code`."""
        member = self.members.pop(member_id)
        self.answer_join(member, JoinReply(error_code=code), out)
        self.answer_sync(member, SyncReply(error_code=code), out)
        self.deadlines.cancel(self._session(member_id))
        self.budget.release(member)
        self.protocols.remove(member.protocols)
        self.unsynced_ids.discard(member_id)
        if member.instance_id is not None:
            del self.static_ids[member.instance_id]
        if self.leader_id == member_id:
            self.leader_id = None

    def update(self, member: Member, command: JoinGroup) -> None:
        self.protocols.remove(member.protocols)
        member.protocols = command.protocols
        self.protocols.add(member.protocols)
        member.client_id = command.client_id
        member.client_host = command.client_host
        member.rebalance_timeout_ms = rebalance_timeout_ms(command)
        member.session_timeout_ms = command.session_timeout_ms
        self.budget.charge(member)
        self._topics_of = -1

    def replace_static(self, old_id: str, new_id: str, out: Decision) -> Member:
        """The static member under a new id: it restarted. Who still speaks under the old one is fenced."""
        member = self.members.pop(old_id)
        self.answer_join(member, JoinReply(error_code=ErrorCode.fenced_instance_id, member_id=old_id), out)
        self.answer_sync(member, SyncReply(error_code=ErrorCode.fenced_instance_id), out)
        self.deadlines.cancel(self._session(old_id))
        assert member.instance_id is not None, f"{old_id} is not static"
        member.member_id = new_id
        member.is_new = False
        self.members[new_id] = member
        self.static_ids[member.instance_id] = new_id
        if old_id in self.unsynced_ids:
            self.unsynced_ids.remove(old_id)
            self.unsynced_ids.add(new_id)
        if self.leader_id == old_id:
            self.leader_id = new_id
        return member

    def add_pending(self, member_id: str, until_ms: int) -> None:
        self.pending_ids.add(member_id)
        self.deadlines.set(self._session(member_id), until_ms)

    def remove_pending(self, member_id: str) -> None:
        self.pending_ids.remove(member_id)
        self.deadlines.cancel(self._session(member_id))

    def elect_joined_leader(self) -> bool:
        """Whether the leader is one who has rejoined: the old one if it has, else the first that has."""
        if self.leader_id is not None and self.members[self.leader_id].join_token is not None:
            return True
        joined = next((member for member in self.members.values() if member.join_token is not None), None)
        if joined is not None:
            self.leader_id = joined.member_id
        return joined is not None

    # Parked requests ----------------------------------------------------------------------------------------------

    def park_join(self, member: Member, token: Token, out: Decision) -> None:
        # The client gave up on an earlier one and asks again; the reply keeps its connection's replies in order.
        self.answer_join(member, JoinReply(error_code=ErrorCode.rebalance_in_progress), out)
        member.join_token = token
        self.parked_joins += 1

    def answer_join(self, member: Member, reply: JoinReply, out: Decision) -> None:
        if member.join_token is not None:
            out.replies_now.append(Reply(member.join_token, reply))
            member.join_token = None
            self.parked_joins -= 1

    def park_sync(self, member: Member, token: Token, out: Decision) -> None:
        self.answer_sync(member, SyncReply(error_code=ErrorCode.rebalance_in_progress), out)
        member.sync_token = token

    def answer_sync(self, member: Member, reply: SyncReply, out: Decision) -> None:
        if member.sync_token is not None:
            out.replies_now.append(Reply(member.sync_token, reply))
            member.sync_token = None

    def joined(self, member: Member) -> JoinReply:
        """What a member of this generation hears; the leader hears of all members, too."""
        is_leader = member.member_id == self.leader_id
        return JoinReply(
            generation_id=self.generation_id,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.leader_id or "",
            member_id=member.member_id,
            members=self.joined_members() if is_leader else (),
        )

    def joined_members(self) -> tuple[JoinedMember, ...]:
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata(self.protocol_name))
            for member in self.members.values()
        )

    # Time ---------------------------------------------------------------------------------------------------------

    def _session(self, member_id: str) -> Key:
        return Key(Kind.SESSION, self.group_id, member_id)

    def touch(self, member: Member, now: Now) -> None:
        """The member lives: its session starts again."""
        self.deadlines.set(self._session(member.member_id), now.timer_ms + member.session_timeout_ms)

    def await_new_member(self, member: Member, now: Now) -> None:
        until_ms = now.timer_ms + self.config.new_member_join_timeout_ms
        self.deadlines.set(self._session(member.member_id), until_ms)

    def cancel_deadlines(self) -> None:
        for member_id in (*self.members, *self.pending_ids):
            self.deadlines.cancel(self._session(member_id))
        self.deadlines.cancel(Key(Kind.JOIN, self.group_id))
        self.deadlines.cancel(Key(Kind.SYNC, self.group_id))

    # Generations --------------------------------------------------------------------------------------------------

    def become(self, state: GroupState, since_ms: int) -> None:
        assert state in NEXT[self.state], f"{self.group_id!r}: {self.state} -> {state}"
        self.state = state
        self.state_since_ms = since_ms

    def next_generation(self, now: Now) -> None:
        """The members there are form a generation; without members the group is empty."""
        self.generation_id = (self.generation_id + 1) & GENERATION_MASK
        self.unsynced_ids = set(self.members)
        if self.members:
            self.protocol_name = self.protocols.select(member.protocols for member in self.members.values())
            self.become(GroupState.COMPLETING_REBALANCE, now.wall_ms)
        else:
            self.protocol_name = None
            self.become(GroupState.EMPTY, now.wall_ms)

    def metadata(self, assignments: Mapping[str, bytes]) -> GroupMetadata:
        """The group as a record. Whoever was left out of the assignment has none."""
        return GroupMetadata(
            group_id=self.group_id,
            protocol_type=self.protocol_type or "",
            generation_id=self.generation_id,
            protocol=self.protocol_name,
            leader=self.leader_id,
            state_timestamp_ms=self.state_since_ms,
            members=tuple(
                member.stored(self.protocol_name, assignments.get(member.member_id, b""))
                for member in self.members.values()
            ),
        )

    def on_stored(self, record: GroupMetadata) -> None:
        """`record` is in the log. If it is the assignment that the members wait for, they have it now."""
        self.stored = record
        if self.state is GroupState.COMPLETING_REBALANCE and record.generation_id == self.generation_id:
            for stored in record.members:
                member = self.members[stored.member_id]
                member.assignment = stored.assignment
                self.budget.charge(member)
            self.become(GroupState.STABLE, record.state_timestamp_ms)

    def restore(self, now: Now) -> None:
        """The group as its last record says, after all records were applied: members get a session to show up in."""
        assert self.state is GroupState.EMPTY and not self.members, f"{self.group_id!r} is not fresh"
        if self.stored is None:
            return
        self.generation_id = self.stored.generation_id
        self.state_since_ms = self.stored.state_timestamp_ms
        self.protocol_type = self.stored.protocol_type or None
        for stored in self.stored.members:
            if stored.member_id in self.members or stored.instance_id in self.static_ids:
                continue  # Never written by us; without this, one of the two could not be removed again.
            member = restored_member(stored, self.stored.protocol)
            self.add(member)
            self.touch(member, now)
        if self.members:
            self.state = GroupState.STABLE
            self.protocol_name = self.stored.protocol or ""
            if self.stored.leader in self.members:
                self.leader_id = self.stored.leader
