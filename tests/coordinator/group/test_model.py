"""Consumers that start, crash, sleep, wake up and restart, on a coordinator that fails over, against a simple model.

The model knows what clients were told, and holds the coordinator to it: one owner per partition and generation, no
commit from a zombie, nothing acknowledged is lost, no generation twice. In the end those alive share all partitions.
"""

from collections import defaultdict
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.base.errors import ErrorCode
from penstock.coordinator.group.commands import LeavingMember, Protocol
from penstock.coordinator.group.records import OffsetCommitted
from penstock.coordinator.group.replies import JoinReply, SyncReply
from penstock.coordinator.group.states import GroupState

from .support import GROUP, SESSION_MS, World, decode_pair, subscription

PARTITIONS = range(4)
CLIENTS_MAX = 6
PATIENCE_S = 1_000  # New members that crashed while their join was parked are waited for longest: five minutes.

clients = st.integers(0, CLIENTS_MAX - 1)
delays = st.sampled_from([1, 100, 2_999, 3_000, 6_000, SESSION_MS - 1, SESSION_MS, 60_000])


class Client:
    """A consumer as far as the coordinator sees it."""

    def __init__(self, instance_id: str | None, version: int) -> None:
        self.instance_id = instance_id
        self.version = version
        self.topics: tuple[str, ...] = ("t",)
        self.member_id = ""
        self.generation = -1
        self.wants = "join"  # join, sync, run; or nothing more: fenced, gone
        self.token: int | None = None  # What it waits for.
        self.asked = 0  # Its last token, whether it still waits for it or not.
        self.to_assign: dict[str, bytes] = {}
        self.owned: frozenset[int] = frozenset()
        self.left_in = -1  # Which incarnation of the coordinator it told that it leaves.
        self.heard_ms = 0  # When the coordinator last heard of it or answered it.

    @property
    def seat(self) -> str:
        return self.member_id if self.instance_id is None else self.instance_id

    @property
    def is_done(self) -> bool:
        return self.wants in ("fenced", "gone")

    def reset(self) -> None:
        self.member_id, self.generation, self.owned, self.wants = "", -1, frozenset(), "join"

    def rejoin(self) -> None:
        self.owned, self.wants = frozenset(), "join"

    def on_error(self, code: ErrorCode) -> None:
        if code is ErrorCode.unknown_member_id:
            self.reset()
        elif code is ErrorCode.fenced_instance_id:
            self.owned, self.wants = frozenset(), "fenced"
        elif code in (ErrorCode.rebalance_in_progress, ErrorCode.illegal_generation):
            self.rejoin()
        else:
            assert code in (ErrorCode.not_coordinator, ErrorCode.coordinator_not_available), code


def assign(members: list[str]) -> dict[str, bytes]:
    return {
        member_id: bytes(partition for partition in PARTITIONS if partition % len(members) == number)
        for number, member_id in enumerate(sorted(members))
    }


class Groups(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World(auto_commit=False)
        self.clients: list[Client] = []
        self.retired: list[Client] = []  # Processes that were replaced and do not know it.
        self.fail: ErrorCode | None = None  # What the next append meets.

        self.incarnation = 0  # Of the coordinator.
        self.first_token = 1  # That it was given.
        self.told: dict[tuple[int, int], set[tuple[str | None, str]]] = defaultdict(set)
        self.generation_told = 0  # By this incarnation.
        self.generation_synced = 0  # Ever; what was told of an assignment is stored.
        self.owners: dict[tuple[int, int], str] = {}
        self.seat_of: dict[str, str] = {}
        self.holders: dict[str, Client | None] = {}
        self.commits: dict[int, list[int]] = defaultdict(lambda: [-1])  # By partition, in the order of the log.
        self.acked: dict[int, int] = defaultdict(int)  # Index in commits of the last that was acknowledged.
        self.commit_tokens: dict[int, tuple[int, int]] = {}
        self.next_offset = 0

    # What clients do ----------------------------------------------------------------------------------------------

    @initialize(versions=st.lists(st.sampled_from([3, 5, 9]), min_size=2, max_size=4), is_settled=st.booleans())
    def begin(self, versions: list[int], is_settled: bool) -> None:
        for number, version in enumerate(versions):
            self.clients.append(Client(f"i{number}" if number % 2 else None, version))
        if is_settled:
            self.settle(is_flushing=True)

    @precondition(lambda self: len(self.clients) < CLIENTS_MAX)
    @rule(is_static=st.booleans(), version=st.sampled_from([3, 5, 9]))
    def start(self, is_static: bool, version: int) -> None:
        self.clients.append(Client(f"i{len(self.clients)}" if is_static and version >= 5 else None, version))

    @rule(number=clients)
    def step(self, number: int) -> None:
        if number < len(self.clients):
            self.advance_client(self.clients[number])

    @rule()
    def step_all(self) -> None:
        for client in self.clients:
            self.advance_client(client)

    @rule(is_flushing=st.booleans())
    def settle(self, is_flushing: bool) -> None:
        """A while without faults. Most that can go wrong starts from a group that works, or almost."""
        for _ in range(20):
            if self.is_settled([client for client in self.clients if not client.is_done]):
                return
            self.world.advance(1_000)
            self.step_all()
            if is_flushing:
                self.flush()
            self.members_of_a_generation_hear_the_same()

    @rule(delay_ms=delays, sleepers=st.sets(clients))
    def sleep_while_others_work(self, delay_ms: int, sleepers: set[int]) -> None:
        """Some are stopped (SIGSTOP) for a while; when they wake up, they commit first."""
        for _ in range(5):
            self.world.advance(delay_ms // 5)
            for number, client in enumerate(self.clients):
                if number not in sleepers:
                    self.advance_client(client)
            self.flush()
            self.members_of_a_generation_hear_the_same()
        self.commit_all()

    @rule()
    def commit_all(self) -> None:
        for number, client in enumerate(self.clients + self.retired):
            if client.member_id:
                self.commit_as(client, number % len(PARTITIONS))

    @rule(number=clients)
    def zombie_step(self, number: int) -> None:
        if number < len(self.retired):
            self.advance_client(self.retired[number])

    @rule(number=clients, partition=st.sampled_from(PARTITIONS))
    def commit(self, number: int, partition: int) -> None:
        everyone = self.clients + self.retired
        if number < len(everyone) and everyone[number].member_id:
            self.commit_as(everyone[number], partition)

    @rule(partition=st.sampled_from(PARTITIONS))
    def commit_from_outside(self, partition: int) -> None:
        is_empty = self.world.state() in (None, "Empty")
        self.next_offset += 1
        self.note_commit(
            self.world.send_commit(self.next_offset, partition=partition, fail=self.take_fail()), partition
        )
        assert bool(self.world.records) == is_empty

    @rule(number=clients)
    def leave(self, number: int) -> None:
        if number < len(self.clients) and self.clients[number].member_id and self.clients[number].token is None:
            client = self.clients[number]
            self.leave_as(client)

    @rule(number=clients)
    def restart_process(self, number: int) -> None:
        """Its successor has the same instance id, if it has one. The old process may still be there, asleep."""
        if number < len(self.clients):
            old = self.clients[number]
            self.retired = [*self.retired, old][-CLIENTS_MAX:]
            self.clients[number] = Client(old.instance_id, old.version)

    @rule(number=clients)
    def lose_connection(self, number: int) -> None:
        """It does not wait any longer, and asks again."""
        if number < len(self.clients):
            self.clients[number].token = None

    @rule(number=clients, topics=st.sampled_from([("t",), ("t", "u")]))
    def subscribe(self, number: int, topics: tuple[str, ...]) -> None:
        if number < len(self.clients) and not self.clients[number].is_done and self.clients[number].token is None:
            self.clients[number].topics = topics
            self.clients[number].rejoin()

    # What happens to the coordinator ------------------------------------------------------------------------------

    @rule(delay_ms=delays)
    def sleep(self, delay_ms: int) -> None:
        self.world.advance(delay_ms)

    @rule()
    def flush(self) -> None:
        self.world.commit()

    @rule(code=st.sampled_from([ErrorCode.not_enough_replicas, ErrorCode.kafka_storage_error]))
    def fail_next_append(self, code: ErrorCode) -> None:
        self.fail = code

    @rule(lost=st.integers(0, 3))
    def fail_over(self, lost: int) -> None:
        """Another broker takes over. What was not committed may be lost, and nobody was told of it."""
        world = self.world
        self.handle_replies()
        kept = max(world.committed, len(world.log) - lost)
        self.forget_commits(kept)
        del world.log[kept:]
        world.restart()
        world.commit()  # A new leader takes what it has for committed.
        self.incarnation += 1
        self.first_token = world.last_token + 1
        self.generation_told = 0
        static_ids = world.shard.groups[GROUP].static_ids if GROUP in world.shard.groups else {}
        everyone = self.clients + self.retired
        for instance_id in self.holders:
            seated = static_ids.get(instance_id)
            self.holders[instance_id] = next((one for one in everyone if one.member_id == seated), None)
        for client in everyone:
            client.token = None  # Its connection broke.
            client.heard_ms = world.replied_ms[client.asked] = world.timer_ms

    # How a client goes on -----------------------------------------------------------------------------------------

    def take_fail(self) -> ErrorCode | None:
        fail, self.fail = self.fail, None
        return fail

    def advance_client(self, client: Client) -> None:
        if client.token is not None:
            if client.token not in self.world.replies:
                return
            reply = self.world.replies[client.token]
            client.token = None
            if isinstance(reply, JoinReply):
                self.on_joined(client, reply)
            else:
                self.on_synced(client, reply)
        elif client.wants == "join":
            self.join_as(client)
        elif client.wants == "sync":
            client.token = self.world.send_sync(
                client.member_id,
                client.generation,
                client.to_assign,
                instance_id=client.instance_id,
                fail=self.take_fail(),
            )
            client.asked, client.heard_ms = client.token, self.world.timer_ms
        elif client.wants == "run":
            code = self.world.heartbeat(client.member_id, client.generation, instance_id=client.instance_id)
            if code in (ErrorCode.none, ErrorCode.rebalance_in_progress):
                client.heard_ms = self.world.timer_ms
            if code is not ErrorCode.none:
                client.on_error(code)

    def join_as(self, client: Client) -> None:
        owned = bytes(sorted(client.owned))
        client.token = self.world.send_join(
            client.member_id,
            instance_id=client.instance_id,
            version=client.version,
            protocols=(Protocol("range", subscription(*client.topics, owned=owned)),),
            fail=self.take_fail(),
        )
        client.asked, client.heard_ms = client.token, self.world.timer_ms
        if client.instance_id is not None and not client.member_id:
            self.holders[client.instance_id] = client

    def on_joined(self, client: Client, reply: JoinReply) -> None:
        client.heard_ms = self.world.timer_ms
        if reply.error_code is ErrorCode.member_id_required:
            client.member_id = reply.member_id
        elif reply.error_code is not ErrorCode.none:
            client.on_error(reply.error_code)
        else:
            client.member_id, client.generation, client.wants = reply.member_id, reply.generation_id, "sync"
            self.seat_of[client.member_id] = client.seat
            client.to_assign = {}
            if reply.leader == reply.member_id and not reply.skip_assignment:
                client.to_assign = assign([member.member_id for member in reply.members])

    def on_synced(self, client: Client, reply: SyncReply) -> None:
        client.heard_ms = self.world.timer_ms
        if reply.error_code is not ErrorCode.none:
            client.on_error(reply.error_code)
            return
        client.owned, client.wants = frozenset(reply.assignment), "run"
        for partition in client.owned:
            owner = self.owners.setdefault((client.generation, partition), client.seat)
            assert owner == client.seat, f"{partition} has two owners in {client.generation}"
        self.generation_synced = max(self.generation_synced, client.generation)

    def leave_as(self, client: Client) -> None:
        self.world.send_leave(LeavingMember(client.member_id, client.instance_id), fail=self.take_fail())
        client.owned, client.wants, client.left_in = frozenset(), "gone", self.incarnation

    def commit_as(self, client: Client, partition: int) -> None:
        is_empty = self.world.state() in (None, "Empty")
        self.next_offset += 1
        token = self.world.send_commit(
            self.next_offset,
            partition=partition,
            member_id=client.member_id,
            generation_id=client.generation,
            instance_id=client.instance_id,
            version=9,
            fail=(fail := self.take_fail()),
        )
        if not self.world.records:
            return
        if client.generation < 0:
            assert is_empty, "it never was in a generation"
        else:
            self.check_committer(client)
        client.heard_ms = self.world.timer_ms
        if fail is None:
            self.note_commit(token, partition)

    def check_committer(self, client: Client) -> None:
        """It was accepted, so it must not be a zombie."""
        # Who left is in the stored generation until the next one is. A coordinator that takes over knows no better,
        # and nobody else owns its partitions yet.
        assert client.left_in != self.incarnation, "it has left"
        assert client.generation >= self.generation_told, "its generation is over"
        if client.asked in self.world.replied_ms:  # Else it waits, or waited until its connection broke: that is fine.
            heard_ms = max(client.heard_ms, self.world.replied_ms[client.asked])
            assert self.world.timer_ms - heard_ms < SESSION_MS, "its session is over"
        if client.instance_id is not None:
            assert self.holders[client.instance_id] is client, "another process has its seat"

    # What was committed -------------------------------------------------------------------------------------------

    def note_commit(self, token: int, partition: int) -> None:
        if self.world.records and len(self.world.log) and decode_pair(self.world.log[-1]) == self.world.records[-1]:
            self.commits[partition].append(self.next_offset)
            self.commit_tokens[token] = (partition, len(self.commits[partition]) - 1)

    def handle_replies(self) -> None:
        for token, (partition, index) in list(self.commit_tokens.items()):
            if token in self.world.replies:
                self.acked[partition] = max(self.acked[partition], index)
                del self.commit_tokens[token]

    def forget_commits(self, kept: int) -> None:
        """The log is cut: commits in what is lost were never acknowledged."""
        self.commit_tokens.clear()
        for pair in reversed(self.world.log[kept:]):
            record = decode_pair(pair)
            if isinstance(record, OffsetCommitted):
                assert self.commits[record.partition].pop() == record.offset

    # What must hold -----------------------------------------------------------------------------------------------

    @invariant()
    def committed_offsets_are_what_was_accepted_and_nothing_acknowledged_is_lost(self) -> None:
        self.handle_replies()
        for partition in PARTITIONS:
            stored = self.world.shard.offsets.get(GROUP, "t", partition)
            assert (-1 if stored is None else stored.offset) == self.commits[partition][-1]
            assert self.acked[partition] < len(self.commits[partition])

    @invariant()
    def members_of_a_generation_hear_the_same(self) -> None:
        for client in self.clients + self.retired:
            reply: Any = self.world.replies.get(client.token) if client.token is not None else None
            if isinstance(reply, JoinReply) and reply.error_code is ErrorCode.none:
                self.generation_told = max(self.generation_told, reply.generation_id)
                self.seat_of[reply.member_id] = client.instance_id or reply.member_id
                leader = self.seat_of.get(reply.leader)
                if leader is not None:
                    told = self.told[self.incarnation, reply.generation_id]
                    told.add((reply.protocol_name, leader))
                    assert len(told) == 1

    @invariant()
    def generations_do_not_go_back(self) -> None:
        group = self.world.shard.groups.get(GROUP)
        assert (0 if group is None else group.generation_id) >= max(self.generation_synced, self.generation_told)

    @invariant()
    def the_books_are_right(self) -> None:
        group = self.world.shard.groups.get(GROUP)
        if group is None:
            return
        members = group.members
        assert group.parked_joins == sum(member.join_token is not None for member in members.values())
        assert group.static_ids == {one.instance_id: key for key, one in members.items() if one.is_static}
        assert group.unsynced_ids <= members.keys()
        assert (group.state is GroupState.EMPTY) <= (not members)
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            assert group.leader_id in members
            assert group.protocol_name is not None and group.protocols.is_common(group.protocol_name)
        if group.state is GroupState.STABLE:
            assert group.stored is not None and group.stored.generation_id == group.generation_id
            assert {one.member_id: one.assignment for one in group.stored.members} == {
                one.member_id: one.assignment for one in members.values()
            }
        parked = [token for one in members.values() for token in (one.join_token, one.sync_token) if token is not None]
        waiting = [reply.token for _, reply in self.world.waiting]
        kept = [token for token in (*self.world.replies, *parked, *waiting) if token >= self.first_token]
        assert sorted(kept) == list(range(self.first_token, self.world.last_token + 1)), "a token was lost, or is twice"
        for one in members.values():
            assert one.join_token is None or group.state is GroupState.PREPARING_REBALANCE
            assert one.sync_token is None or group.state is GroupState.COMPLETING_REBALANCE

    @invariant()
    def the_log_says_what_the_shard_knows(self) -> None:
        replayed = self.world.new_shard()
        replayed.load([record for record in map(decode_pair, self.world.log) if record], self.world.now)
        group, again = self.world.shard.groups.get(GROUP), replayed.groups.get(GROUP)
        assert (group and group.stored) == (again and again.stored)
        assert self.world.shard.offsets.of_group(GROUP) == replayed.offsets.of_group(GROUP)

    def teardown(self) -> None:
        """Those who are alive end up with every partition, once."""
        self.fail = None
        self.world.auto_commit = True
        self.world.commit()
        for _ in range(PATIENCE_S):
            alive = [client for client in self.clients if not client.is_done]
            if not alive or self.is_settled(alive):
                return
            self.world.advance(1_000)
            for client in alive:
                self.advance_client(client)
            self.members_of_a_generation_hear_the_same()
        raise AssertionError([vars(client) for client in self.clients])

    def is_settled(self, alive: list[Client]) -> bool:
        if self.world.state() != "Stable" or any(client.wants != "run" for client in alive):
            return False
        owned = sorted(partition for client in alive for partition in client.owned)
        return owned == list(PARTITIONS) and len({client.generation for client in alive}) == 1


TestGroups = Groups.TestCase
TestGroups.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)
