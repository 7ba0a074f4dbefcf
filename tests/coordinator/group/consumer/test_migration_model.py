"""Consumers of both protocols in one group that goes up and down between them, on a coordinator that fails over.

Eager ones give everything up before they join, cooperative ones what they are told to; whoever is the leader of a
classic generation assigns. Whatever happens, no two clients that the coordinator counts as members own the same
partition, and in the end those alive share all of them.
"""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.base.errors import ErrorCode
from penstock.coordinator.group.commands import Protocol
from penstock.coordinator.group.consumer.embedded_protocol import (
    read_assignment,
    read_subscription,
    write_assignment,
)
from penstock.coordinator.group.states import GroupState

from ..support import GROUP, REBALANCE_MS
from ..support import SESSION_MS as CLASSIC_SESSION_MS
from .invariants import assert_books_are_right, assert_log_says_what_the_shard_knows, assert_target_is_whole
from .support import SESSION_MS, ConsumerWorld, T

CLIENTS_MAX = 4
ROUNDS_MAX = 400
ALL = frozenset(range(6))

clients = st.integers(0, CLIENTS_MAX - 1)
delays = st.sampled_from([1, 3_000, CLASSIC_SESSION_MS - 1, CLASSIC_SESSION_MS, SESSION_MS, REBALANCE_MS])
RETRY = {
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_not_available,
    ErrorCode.rebalance_in_progress,
    ErrorCode.illegal_generation,
}


class NewClient:
    """Of the new protocol."""

    def __init__(self, world: ConsumerWorld, name: str) -> None:
        self.world, self.member_id, self.epoch = world, name, 0
        self.owned: frozenset[int] = frozenset()
        self.token: int | None = None
        self.is_unsure = True

    def act(self, fail: ErrorCode | None) -> None:
        fields: dict[str, Any] = {"owned": {T: self.owned} if self.owned else {}}
        if self.epoch == 0 or self.is_unsure:
            fields |= {"rebalance_timeout_ms": REBALANCE_MS, "topic_names": ("t",)}
        self.token = self.world.send_beat(self.member_id, self.epoch, fail=fail, **fields)

    def on_reply(self, reply: Any) -> None:
        if reply.error_code in (ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id):
            self.epoch, self.owned, self.is_unsure = 0, frozenset(), True
        elif reply.error_code is not ErrorCode.none:
            assert reply.error_code in RETRY, reply
            self.is_unsure = True
        else:
            self.epoch, self.is_unsure = reply.member_epoch, False
            if reply.assignment is not None:
                self.owned = frozenset(reply.assignment.get(T, ()))

    def leave(self, fail: ErrorCode | None) -> None:
        if self.epoch > 0:
            self.world.send_beat(self.member_id, -1, fail=fail)

    def on_lost_answer(self) -> None:
        self.is_unsure = True


class ClassicClient:
    def __init__(self, world: ConsumerWorld, is_cooperative: bool) -> None:
        self.world, self.is_cooperative = world, is_cooperative
        self.member_id, self.epoch = "", -1
        self.owned: frozenset[int] = frozenset()
        self.token: int | None = None
        self.wants = "join"
        self.to_assign: dict[str, bytes] = {}

    @property
    def protocols(self) -> tuple[Protocol, ...]:
        # Both names, so that all classic clients have one in common; version 1 with what it owns.
        listed = write_assignment({T: self.owned} if self.owned else {}, self.world.topics, 1)[2:-4]
        metadata = b"\0\1" + b"\0\0\0\1" + b"\0\1t" + b"\xff\xff\xff\xff" + listed
        return (Protocol("both", metadata),)

    def act(self, fail: ErrorCode | None) -> None:
        if self.wants == "join":
            if not self.is_cooperative:
                self.owned = frozenset()
            self.token = self.world.send_join(self.member_id, protocols=self.protocols, fail=fail)
        elif self.wants == "sync":
            self.token = self.world.send_sync(self.member_id, self.epoch, self.to_assign, fail=fail)
        else:
            self.world.advance(0)
            self.on_code(self.world.heartbeat(self.member_id, self.epoch) if self.world.auto_commit else ErrorCode.none)

    def on_reply(self, reply: Any) -> None:
        if self.wants == "join":
            if reply.error_code is ErrorCode.member_id_required:
                self.member_id = reply.member_id
            elif reply.error_code is not ErrorCode.none:
                self.on_code(reply.error_code)
            else:
                self.member_id, self.epoch, self.wants = reply.member_id, reply.generation_id, "sync"
                self.to_assign = self.assign(reply) if reply.leader == reply.member_id else {}
        elif reply.error_code is not ErrorCode.none:
            self.on_code(reply.error_code)
        else:
            given = {number for _, numbers in read_assignment(reply.assignment) or [] for number in numbers}
            has_given_up = bool(self.owned - given)
            self.owned = frozenset(given)
            self.wants = "join" if has_given_up else "run"

    def assign(self, reply: Any) -> dict[str, bytes]:
        """Evenly; what another says it owns is left out this time, as cooperative assignors do."""
        member_ids = sorted(member.member_id for member in reply.members)
        owners: dict[int, set[str]] = {}
        for member in reply.members:
            subscription = read_subscription(member.metadata)
            assert subscription is not None
            for _, numbers in subscription.owned:
                for number in numbers:
                    owners.setdefault(number, set()).add(member.member_id)
        shares: dict[str, set[int]] = {member_id: set() for member_id in member_ids}
        for number in ALL:
            member_id = member_ids[number % len(member_ids)]
            if owners.get(number, set()) <= {member_id}:
                shares[member_id].add(number)
        return {
            member_id: write_assignment({T: frozenset(numbers)} if numbers else {}, self.world.topics, 1)
            for member_id, numbers in shares.items()
        }

    def on_code(self, code: ErrorCode) -> None:
        if code is ErrorCode.unknown_member_id:
            self.member_id, self.epoch, self.owned, self.wants = "", -1, frozenset(), "join"
        elif code is ErrorCode.illegal_generation:
            self.owned, self.wants = frozenset(), "join"
        elif code is not ErrorCode.none:
            assert code in RETRY, code
            self.wants = "join"

    def leave(self, fail: ErrorCode | None) -> None:
        if self.member_id:
            self.world.send_leave(self.member_id, fail=fail)

    def on_lost_answer(self) -> None:
        self.wants = "join"


class Migration(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clients: list[NewClient | ClassicClient] = []
        self.started = 0
        self.fail: ErrorCode | None = None

    @initialize()
    def begin(self) -> None:
        self.world = ConsumerWorld()

    @precondition(lambda self: len(self.clients) < CLIENTS_MAX)
    @rule(kind=st.sampled_from(["new", "eager", "cooperative"]))
    def start(self, kind: str) -> None:
        self.started += 1
        if kind == "new":
            self.clients.append(NewClient(self.world, f"new{self.started}"))
        else:
            self.clients.append(ClassicClient(self.world, kind == "cooperative"))

    @rule(number=clients)
    def act(self, number: int) -> None:
        if number < len(self.clients):
            self.step(self.clients[number])

    @rule()
    def all_act(self) -> None:
        for client in self.clients:
            self.step(client)

    def step(self, client: NewClient | ClassicClient) -> None:
        self.receive(client)
        if client.token is None:
            fail, self.fail = self.fail, None
            client.act(fail)
            self.receive(client)

    def receive(self, client: NewClient | ClassicClient) -> None:
        reply = None if client.token is None else self.world.replies.get(client.token)
        if reply is not None:
            client.token = None
            client.on_reply(reply)

    @rule(number=clients)
    def act_in_vain(self, number: int) -> None:
        """The request arrives, the answer does not."""
        if number < len(self.clients) and self.clients[number].token is None:
            client = self.clients[number]
            client.act(None)
            client.token = None
            client.on_lost_answer()

    @rule(number=clients)
    def leave(self, number: int) -> None:
        if number < len(self.clients):
            fail, self.fail = self.fail, None
            self.clients.pop(number).leave(fail)

    @rule(number=clients)
    def die(self, number: int) -> None:
        if number < len(self.clients):
            self.clients.pop(number)

    @rule(delay_ms=delays)
    def wait(self, delay_ms: int) -> None:
        self.world.advance(delay_ms)

    @rule(code=st.sampled_from([ErrorCode.not_leader_or_follower, ErrorCode.not_enough_replicas]))
    def fail_next_append(self, code: ErrorCode) -> None:
        self.fail = code

    @rule()
    def fail_over(self) -> None:
        for client in self.clients:
            self.receive(client)
            if client.token is not None:
                client.token = None
                client.on_lost_answer()
        self.world.restart()

    # What must hold -----------------------------------------------------------------------------------------------

    def members(self) -> list[NewClient | ClassicClient]:
        """Those that the coordinator counts as members, in the epoch that they think it is."""
        shard = self.world.shard
        if GROUP in shard.groups:
            group = shard.groups[GROUP]
            return [
                client
                for client in self.clients
                if client.member_id in group.members and client.epoch == group.generation_id
            ]
        consumer = shard.consumers.get(GROUP)
        if consumer is None:
            return []
        return [
            client
            for client in self.clients
            if (member := consumer.members.get(client.member_id)) is not None
            and client.epoch in (member.current.epoch, member.current.previous_epoch)
        ]

    @invariant()
    def no_two_members_own_the_same(self) -> None:
        seen: dict[int, object] = {}
        for client in self.members():
            for number in client.owned:
                assert seen.setdefault(number, client) is client, f"{number} has two owners"

    @invariant()
    def the_group_is_of_one_kind_and_its_books_are_right(self) -> None:
        shard = self.world.shard
        consumer = shard.consumers.get(GROUP)
        assert consumer is None or GROUP not in shard.groups
        if consumer is not None:
            assert_books_are_right(consumer)
            assert_target_is_whole(consumer, self.world.topics)
            # The last of the new protocol has gone: then it is a classic group again.
            assert not 0 < len(consumer.members) == consumer.classic_count
        used = sum(one.held_bytes for group in shard.consumers.groups.values() for one in group.members.values())
        used += sum(one.charged_bytes for group in shard.groups.values() for one in group.members.values())
        assert shard.budget.bytes_used == used

    @invariant()
    def the_log_says_what_the_shard_knows(self) -> None:
        assert_log_says_what_the_shard_knows(self.world)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.fail = None
        for _ in range(ROUNDS_MAX):
            if not self.clients or self.is_settled():
                return
            self.world.advance(1_000)
            for client in self.clients:
                self.step(client)
            self.no_two_members_own_the_same()
        raise AssertionError([vars(client) for client in self.clients])

    def is_settled(self) -> bool:
        shard = self.world.shard
        is_new = any(isinstance(client, NewClient) for client in self.clients)
        if is_new:
            if self.world.consumer_state() != "Stable" or GROUP in shard.groups:
                return False
            members = set(shard.consumers.groups[GROUP].members)
        else:
            if GROUP not in shard.groups or shard.groups[GROUP].state is not GroupState.STABLE:
                return False
            members = set(shard.groups[GROUP].members)
        if members != {client.member_id for client in self.clients}:
            return False
        return sorted(number for client in self.clients for number in client.owned) == sorted(ALL)


TestMigration = Migration.TestCase
TestMigration.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)


def test_one_that_was_taken_for_dead_gives_up_what_it_owned_before_it_is_a_member_again() -> None:
    story = Migration()
    story.begin()
    story.start("cooperative")
    story.all_act()
    story.all_act()
    story.wait(3_000)
    story.all_act()
    assert story.clients[0].owned == ALL
    story.act_in_vain(0)
    story.start("new")
    story.wait(CLASSIC_SESSION_MS)
    story.act(1)
    assert story.clients[1].owned == ALL
    story.act(0)
    assert story.clients[0].owned == frozenset()
    story.no_two_members_own_the_same()
    story.teardown()
