"""Consumers of the new protocol that start, crash, sleep, lose answers and come back, on a coordinator that fails over.

The model knows what clients own, from what they were told, and holds the coordinator to it: whoever it still counts as
a member owns nothing that another member owns, whatever was lost on the way. In the end those alive share everything.
"""

from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.base.errors import ErrorCode
from penstock.coordinator.group.consumer.assignment import Assignment, is_within, overlap
from penstock.coordinator.group.consumer.replies import ConsumerHeartbeatReply

from ..support import GROUP, REBALANCE_MS
from .invariants import assert_books_are_right, assert_log_says_what_the_shard_knows, assert_target_is_whole
from .support import SESSION_MS, ConsumerWorld

CLIENTS_MAX = 5
PATIENCE = 200

clients = st.integers(0, CLIENTS_MAX - 1)
delays = st.sampled_from([1, 5_000, 20_000, SESSION_MS - 1, SESSION_MS, REBALANCE_MS])
subscriptions = st.sampled_from([("t",), ("t", "u"), ("u",), ("t", "v")])
regexes = st.sampled_from([None, None, None, "[tv]", "t|u", "v.*"])


class Client:
    def __init__(self, member_id: str, instance_id: str | None, topics: tuple[str, ...], regex: str | None) -> None:
        self.member_id, self.instance_id = member_id, instance_id
        self.topics, self.regex = topics, regex
        self.epoch = 0
        self.owned: Assignment = {}
        self.told: Assignment = {}  # What it shall own; it gives up and takes when it gets to it.
        self.is_unsure = True  # Something was lost: the next request says everything.
        self.token: int | None = None
        self.is_done = False

    def abandon(self) -> None:
        self.epoch, self.owned, self.told, self.is_unsure = 0, {}, {}, True


class ConsumerGroups(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clients: list[Client] = []
        self.started = 0
        self.fail: ErrorCode | None = None
        self.epochs: tuple[int, int] = (0, 0)

    @initialize(auto_commit=st.booleans())
    def begin(self, auto_commit: bool) -> None:
        self.world = ConsumerWorld(auto_commit=auto_commit)

    # What clients do ----------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.clients) < CLIENTS_MAX)
    @rule(topics=subscriptions, regex=regexes, static=st.sampled_from([None, None, "i", "j"]))
    def start(self, topics: tuple[str, ...], regex: str | None, static: str | None) -> None:
        self.started += 1
        self.clients.append(Client(f"m{self.started}", static, topics, regex))

    @rule(number=clients, says_all=st.booleans())
    def heartbeat(self, number: int, says_all: bool) -> None:
        if number < len(self.clients):
            self.beat(self.clients[number], says_all)

    def beat(self, client: Client, says_all: bool) -> None:
        self.receive(client)
        if client.token is not None or client.is_done:
            return
        fields = {"instance_id": client.instance_id, "fail": self.take_fail()}
        if client.epoch == 0 or client.is_unsure or says_all:
            fields |= {"rebalance_timeout_ms": REBALANCE_MS, "topic_names": client.topics, "topic_regex": client.regex}
        if client.epoch == 0 or client.is_unsure or says_all or client.owned == client.told:
            fields["owned"] = client.owned
            # What it said is what it goes by until it hears again: it does not take what it was told before.
            client.told = client.owned
        client.token = self.world.send_beat(client.member_id, client.epoch, **fields)
        self.receive(client)

    def receive(self, client: Client) -> None:
        reply = None if client.token is None else self.world.replies.get(client.token)
        if reply is None:
            return
        assert isinstance(reply, ConsumerHeartbeatReply)
        client.token = None
        if reply.error_code in (ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id):
            client.abandon()
        elif reply.error_code in (ErrorCode.unreleased_instance_id, ErrorCode.fenced_instance_id):
            client.abandon()
            client.is_done = True
        elif reply.error_code is not ErrorCode.none:
            assert reply.error_code in (ErrorCode.not_coordinator, ErrorCode.coordinator_not_available)
            client.is_unsure = True
        else:
            assert reply.member_epoch >= client.epoch
            client.epoch, client.is_unsure = reply.member_epoch, False
            if reply.assignment is not None:
                client.told = reply.assignment

    @rule(number=clients)
    def give_up_and_take(self, number: int) -> None:
        if number < len(self.clients):
            self.clients[number].owned = self.clients[number].told

    @rule(number=clients)
    def lose_the_answer(self, number: int) -> None:
        if number < len(self.clients) and self.clients[number].token is not None:
            self.clients[number].token = None
            self.clients[number].is_unsure = True

    @rule(number=clients)
    def heartbeat_in_vain(self, number: int) -> None:
        """The request arrives, the answer does not."""
        if number < len(self.clients) and self.clients[number].token is None:
            client = self.clients[number]
            before = vars(client).copy()
            self.beat(client, says_all=True)
            vars(client).update(before, is_unsure=True)

    @rule(number=clients, topics=subscriptions, regex=regexes)
    def subscribe(self, number: int, topics: tuple[str, ...], regex: str | None) -> None:
        if number < len(self.clients):
            client = self.clients[number]
            client.topics, client.regex, client.is_unsure = topics, regex or "", True

    @rule(number=clients, for_good=st.booleans())
    def leave(self, number: int, for_good: bool) -> None:
        if number >= len(self.clients) or self.clients[number].epoch <= 0:
            return
        client = self.clients.pop(number)
        epoch = -1 if for_good or client.instance_id is None else -2
        self.world.send_beat(client.member_id, epoch, instance_id=client.instance_id, fail=self.take_fail())

    @rule(number=clients)
    def die(self, number: int) -> None:
        if number < len(self.clients):
            self.clients.pop(number)

    # What happens around them -------------------------------------------------------------------------------------

    @rule(delay_ms=delays)
    def wait(self, delay_ms: int) -> None:
        self.world.advance(delay_ms)

    @rule(name=st.sampled_from("tuv"), count=st.integers(0, 7), is_new=st.booleans())
    def change_topic(self, name: str, count: int, is_new: bool) -> None:
        known = self.world.topics.find(name)
        if known is not None and count and not is_new:
            count = max(count, known.partition_count)
        is_recreated = known is not None and is_new and count > 0
        self.started += is_recreated
        self.world.set_topic(name, count, UUID(int=1_000 + self.started) if is_recreated else None)

    @rule(code=st.sampled_from([ErrorCode.not_leader_or_follower, ErrorCode.not_enough_replicas]))
    def fail_next_append(self, code: ErrorCode) -> None:
        self.fail = code

    def take_fail(self) -> ErrorCode | None:
        fail, self.fail = self.fail, None
        return fail

    @rule()
    def commit(self) -> None:
        self.world.commit()

    @rule()
    def fail_over(self) -> None:
        """What was not committed is lost, as are all answers on their way."""
        del self.world.log[self.world.committed :]
        for client in self.clients:
            self.receive(client)
            client.is_unsure |= client.token is not None
            client.token = None
        self.world.restart()
        self.epochs = (0, 0)

    # What must hold -----------------------------------------------------------------------------------------------

    @invariant()
    def no_two_members_own_the_same(self) -> None:
        group = self.world.shard.consumers.get(GROUP)
        if group is None:
            return
        members = []
        for client in self.clients:
            member = group.members.get(client.member_id)
            if member is not None and client.owned:
                current = member.current
                if client.epoch in (current.epoch, current.previous_epoch):
                    both = {
                        topic_id: current.assigned.get(topic_id, frozenset())
                        | current.to_revoke.get(topic_id, frozenset())
                        for topic_id in current.assigned.keys() | current.to_revoke.keys()
                    }
                    assert is_within(client.owned, both), "it owns what the coordinator thinks free"
                members.append(client)
        for client in members:
            assert not any(overlap(client.owned, other.owned) for other in members if other is not client), "two owners"

    @invariant()
    def the_books_are_right(self) -> None:
        group = self.world.shard.consumers.get(GROUP)
        if group is not None:
            assert_books_are_right(group)
            assert_target_is_whole(group, self.world.topics)

    @invariant()
    def epochs_only_rise(self) -> None:
        group = self.world.shard.consumers.get(GROUP)
        if group is not None:
            assert group.epoch >= self.epochs[0] and group.target_epoch >= self.epochs[1]
            self.epochs = group.epoch, group.target_epoch

    @invariant()
    def the_log_says_what_the_shard_knows(self) -> None:
        assert_log_says_what_the_shard_knows(self.world)

    def teardown(self) -> None:
        """Those who are alive end up with every partition, once."""
        if not hasattr(self, "world"):
            return
        self.fail = None
        self.world.auto_commit = True
        self.world.commit()
        for _ in range(PATIENCE):
            alive = [client for client in self.clients if not client.is_done]
            if self.is_settled(alive):
                return
            self.world.advance(5_000)
            for client in alive:
                self.beat(client, says_all=False)
                client.owned = client.told
            self.no_two_members_own_the_same()
            self.the_books_are_right()
        raise AssertionError([vars(client) for client in self.clients])

    def is_settled(self, alive: list[Client]) -> bool:
        group = self.world.shard.consumers.get(GROUP)
        if not alive:
            return True
        if group is None or self.world.consumer_state() != "Stable" or not group.is_up_to_date:
            return False
        if set(group.members) != {client.member_id for client in alive}:
            return False
        return all(client.owned == group.target(client.member_id) for client in alive)


TestConsumerGroups = ConsumerGroups.TestCase
TestConsumerGroups.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
