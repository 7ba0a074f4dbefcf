"""Members of the classic protocol in a group of the new one, and groups that go from one to the other."""

from typing import Any

import pytest

from penstock.base.errors import ErrorCode
from penstock.coordinator.group.commands import LeavingMember, Protocol
from penstock.coordinator.group.consumer.embedded_protocol import read_assignment, write_assignment
from penstock.coordinator.group.group_config import GroupConfig, MigrationPolicy
from penstock.coordinator.group.records import GroupDeleted, GroupMetadata

from ..support import GROUP, REBALANCE_MS, subscription
from ..support import SESSION_MS as CLASSIC_SESSION_MS
from .support import SESSION_MS, ConsumerWorld, T

ALL = frozenset(range(6))


def cooperative(*topics: str, owned: tuple[int, ...] = ()) -> tuple[Protocol, ...]:
    """Version 1: with the partitions of `t` that it owns."""
    names = b"".join(len(name).to_bytes(2) + name.encode() for name in topics)
    numbers = b"".join(number.to_bytes(4) for number in owned)
    listed = (1).to_bytes(4) + b"\0\1t" + len(owned).to_bytes(4) + numbers if owned else (0).to_bytes(4)
    metadata = b"\0\1" + len(topics).to_bytes(4) + names + b"\xff\xff\xff\xff" + listed
    return (Protocol("cooperative-sticky", metadata),)


class MixedWorld(ConsumerWorld):
    def classic_group(self, number: int = 2, **fields: Any) -> tuple[list[str], int]:
        """A stable classic group whose members share `t` evenly."""
        members, generation = self.joined(number, **fields)
        step = 6 // number
        shares = {
            member_id: write_assignment({T: frozenset(range(at * step, at * step + step))}, self.topics, 1)
            for at, member_id in enumerate(members)
        }
        self.sync(members[0], generation, shares)
        for member_id in members[1:]:
            self.sync(member_id, generation)
        return members, generation

    def rejoin(self, member_id: str, **fields: Any) -> tuple[int, set[int]]:
        """Join and sync as a classic member. Gives (generation, partitions of t)."""
        reply = self.join(member_id, **fields)
        assert reply.error_code is ErrorCode.none, reply
        return reply.generation_id, self.synced(member_id, reply.generation_id)

    def synced(self, member_id: str, generation: int) -> set[int]:
        reply = self.sync(member_id, generation)
        assert reply.error_code is ErrorCode.none, reply
        return {number for _, numbers in read_assignment(reply.assignment) or [] for number in numbers}


# Up -------------------------------------------------------------------------------------------------------------------


def test_a_member_of_the_new_protocol_turns_a_classic_group_into_a_consumer_group() -> None:
    world = MixedWorld()
    (a, b), generation = world.classic_group()
    reply = world.enter_new("n")
    assert (reply.error_code, reply.member_epoch, reply.assignment) == (ErrorCode.none, generation + 1, {})
    assert isinstance(world.records[0], GroupDeleted)
    assert world.state() is None and world.consumer_state() == "Reconciling"
    assert world.numbers(a) | world.numbers(b) == ALL, "they have what they had"

    assert world.heartbeat(a, generation) is ErrorCode.rebalance_in_progress
    assert world.heartbeat(b, generation) is ErrorCode.rebalance_in_progress
    of_a = world.rejoin(a)
    of_b = world.rejoin(b)
    assert (of_a[0], len(of_a[1]), of_b[0], len(of_b[1])) == (generation + 1, 2, generation + 1, 2)
    assert world.heartbeat(a, generation + 1) is ErrorCode.none
    world.beat("n", generation + 1)
    assert of_a[1] | of_b[1] | world.numbers("n") == ALL
    assert world.consumer_state() == "Stable"


def test_a_cooperative_member_gives_up_before_another_gets() -> None:
    world = MixedWorld()
    (a,), generation = world.classic_group(1, protocols=cooperative("t"))
    world.enter_new("n")
    assert world.heartbeat(a, generation) is ErrorCode.rebalance_in_progress
    epoch, kept = world.rejoin(a, protocols=cooperative("t", owned=tuple(ALL)))
    assert (epoch, len(kept)) == (generation, 3)
    world.beat("n", generation + 1)
    assert not world.numbers("n"), "the other has not confirmed"
    assert world.heartbeat(a, epoch) is ErrorCode.rebalance_in_progress
    epoch, still = world.rejoin(a, protocols=cooperative("t", owned=tuple(kept)))
    assert (epoch, still) == (generation + 1, kept)
    world.beat("n", generation + 1)
    assert world.numbers("n") == ALL - kept


def test_what_a_cooperative_member_did_not_give_up_yet_stays_its_own() -> None:
    """The group is upgraded between the leader's assignment and the member that hears of it."""
    world = MixedWorld()
    (a, b), generation = world.joined(2, protocols=cooperative("t", owned=tuple(ALL)))
    shares = {a: write_assignment({T: frozenset({0, 1, 2})}, world.topics, 1), b: b""}
    world.sync(a, generation, shares)
    world.enter_new("n")
    world.beat("n", generation + 1)
    assert not world.numbers("n") & ALL, "a and b said that they own all of it"


def test_joins_and_syncs_that_wait_are_sent_back() -> None:
    world = MixedWorld()
    (a, b), generation = world.classic_group()
    waiting = world.send_join(a)
    world.enter_new("n")
    assert world.replies[waiting].error_code is ErrorCode.rebalance_in_progress
    assert world.rejoin(a)[0] == generation + 1

    world = MixedWorld()
    (a, b), generation = world.joined()
    waiting = world.send_sync(b, generation)
    world.enter_new("n")
    assert world.replies[waiting].error_code is ErrorCode.rebalance_in_progress


def test_new_members_that_do_not_know_their_id_begin_anew() -> None:
    world = MixedWorld()
    _, waiting = world.enter()
    assert world.enter_new("n").assignment == {T: ALL}
    assert world.replies[waiting].error_code is ErrorCode.unknown_member_id
    assert list(world.group.members) == ["n"]


def test_an_empty_classic_group_is_replaced_and_its_offsets_stay() -> None:
    world = MixedWorld()
    (a,), generation = world.classic_group(1)
    world.commit_offset(7, member_id=a, generation_id=generation)
    world.leave(a)
    reply = world.enter_new("n")
    assert (reply.error_code, reply.member_epoch) == (ErrorCode.none, generation + 2), "leaving was a generation, too"
    assert world.offset() == 7
    assert world.state() is None and world.consumer_state() == "Stable"
    world.restart()
    assert world.state() is None and world.consumer_state() == "Stable"


@pytest.mark.parametrize("policy", [MigrationPolicy.DISABLED, MigrationPolicy.DOWNGRADE])
def test_the_policy_can_forbid_it(policy: MigrationPolicy) -> None:
    world = MixedWorld(GroupConfig(migration_policy=policy))
    members, generation = world.classic_group()
    assert world.enter_new("n").error_code is ErrorCode.group_id_not_found
    assert world.state() == "Stable" and world.heartbeat(members[0], generation) is ErrorCode.none


def test_groups_of_other_things_than_consumers_stay_what_they_are() -> None:
    world = MixedWorld()
    world.stable(protocol_type="connect")
    assert world.enter_new("n").error_code is ErrorCode.group_id_not_found
    world = MixedWorld()
    waiting = world.send_join(protocol_type="connect", version=3)
    assert world.enter_new("n").error_code is ErrorCode.group_id_not_found
    assert waiting not in world.replies
    world = MixedWorld()
    world.stable(protocols=(Protocol("range", b"?"),))
    assert world.enter_new("n").error_code is ErrorCode.group_id_not_found


def test_a_refused_member_leaves_the_classic_group_alone() -> None:
    world = MixedWorld()
    (a, _b), _generation = world.classic_group()
    waiting = world.send_join(a)
    assert world.enter_new("n", topic_regex="[").error_code is ErrorCode.invalid_regular_expression
    assert waiting not in world.replies and world.state() == "PreparingRebalance"


def test_an_upgrade_that_cannot_be_appended_did_not_happen() -> None:
    world = MixedWorld()
    (a, _b), generation = world.classic_group()
    world.send_enter("n", fail=ErrorCode.not_enough_replicas)
    assert world.consumer_state() is None and world.state() == "Stable"
    assert world.heartbeat(a, generation) is ErrorCode.none
    world.advance(CLASSIC_SESSION_MS)
    assert world.state() in ("Empty", None)


# Inside ---------------------------------------------------------------------------------------------------------------


def mixed() -> tuple[MixedWorld, str, int]:
    """A consumer group of one member of each protocol, stable."""
    world = MixedWorld()
    (a,), generation = world.classic_group(1)
    world.enter_new("n")
    world.rejoin(a)
    world.beat("n", generation + 1)
    assert world.consumer_state() == "Stable"
    return world, a, generation + 1


def test_a_classic_member_joins_a_consumer_group() -> None:
    world = ConsumerWorld()
    world.enter_new("n")
    given = world.join()
    assert given.error_code is ErrorCode.member_id_required and given.member_id
    joined = world.join(given.member_id)
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (ErrorCode.none, 2, "range")
    assert not joined.members and joined.leader != joined.member_id
    assert world.sync(given.member_id, 2).error_code is ErrorCode.none
    world.settle("n")
    assert world.heartbeat(given.member_id, 2) is ErrorCode.rebalance_in_progress, "what it waits for is free"


def test_classic_requests_of_others_are_refused() -> None:
    world, a, epoch = mixed()
    assert world.heartbeat("x", epoch) is ErrorCode.unknown_member_id
    assert world.heartbeat("n", epoch) is ErrorCode.unknown_member_id, "it speaks the new protocol"
    assert world.heartbeat(a, epoch - 1) is ErrorCode.illegal_generation
    assert world.sync(a, epoch + 1).error_code is ErrorCode.illegal_generation
    assert world.sync(a, epoch, protocol_name="roundrobin").error_code is ErrorCode.inconsistent_group_protocol
    assert world.join(a, protocol_type="connect").error_code is ErrorCode.inconsistent_group_protocol
    assert world.join(a, protocols=(Protocol("range", b"?"),)).error_code is ErrorCode.inconsistent_group_protocol
    other = (Protocol("roundrobin", subscription("t")),)
    assert world.join("b", protocols=other).error_code is ErrorCode.inconsistent_group_protocol
    assert world.beat(a, epoch).error_code is ErrorCode.unknown_member_id
    assert world.leave("n") == [ErrorCode.unknown_member_id]


def test_a_classic_member_lives_by_its_own_session() -> None:
    world, a, epoch = mixed()
    world.advance(CLASSIC_SESSION_MS - 1)
    assert world.heartbeat(a, epoch) is ErrorCode.none
    world.advance(CLASSIC_SESSION_MS)
    assert list(world.group.members) == ["n"]


def test_a_classic_member_must_rejoin_in_time() -> None:
    world, a, epoch = mixed()
    world.enter_new("m")
    for _ in range(REBALANCE_MS // 5_000 + 1):
        for member_id in ("n", "m"):
            current = world.group.members[member_id].current
            world.beat(member_id, current.epoch, owned=current.assigned)
        if a in world.group.members:
            assert world.heartbeat(a, epoch) is ErrorCode.rebalance_in_progress
        world.advance(5_000)
    assert sorted(world.group.members) == ["m", "n"]


def test_a_classic_member_must_sync_in_time() -> None:
    world, a, epoch = mixed()
    joined = world.join(a)
    for _ in range(REBALANCE_MS // 5_000):
        assert world.heartbeat(a, joined.generation_id) is ErrorCode.none
        world.beat("n", epoch)
        world.advance(5_000)
    assert list(world.group.members) == ["n"]


def test_topics_that_change_are_seen_by_a_classic_heartbeat() -> None:
    world, a, epoch = mixed()
    world.set_topic("t", 8)
    assert world.heartbeat(a, epoch) is ErrorCode.rebalance_in_progress
    assert len(world.rejoin(a)[1]) == 4


def test_commits_are_fenced_by_generation_or_epoch() -> None:
    world, a, epoch = mixed()
    assert world.commit_offset(1, member_id=a, generation_id=epoch, version=2) is ErrorCode.none
    assert world.commit_offset(1, member_id=a, generation_id=epoch - 1) is ErrorCode.illegal_generation
    assert world.commit_offset(1, member_id="n", generation_id=epoch, version=9) is ErrorCode.none
    assert world.commit_offset(1, member_id="n", generation_id=epoch - 1, version=9) is ErrorCode.stale_member_epoch
    assert world.commit_offset(1, member_id="n", generation_id=epoch, version=8) is ErrorCode.unsupported_version
    assert world.commit_offset(1, member_id="x", generation_id=epoch, version=9) is ErrorCode.unknown_member_id
    assert world.commit_offset(1) is ErrorCode.unknown_member_id


def test_static_members_change_their_protocol_and_keep_their_seat() -> None:
    world = MixedWorld()
    (a,), generation = world.stable_static("i")
    reply = world.enter_new("n", instance_id="i")
    assert reply.error_code is ErrorCode.none
    assert list(world.group.members) == ["n"] and not world.group.classic_count
    assert world.heartbeat(a, generation, instance_id="i") is ErrorCode.fenced_instance_id


def test_an_operator_removes_a_static_member_of_either_protocol() -> None:
    world = ConsumerWorld()
    world.enter_new("n", instance_id="i")
    world.enter_new("m")
    assert world.leave(LeavingMember("", "j"), LeavingMember("", "i")) == [ErrorCode.unknown_member_id, ErrorCode.none]
    assert list(world.group.members) == ["m"]


# Down -----------------------------------------------------------------------------------------------------------------


def test_the_last_member_of_the_new_protocol_leaves_a_classic_group_behind() -> None:
    world, a, epoch = mixed()
    world.commit_offset(5, member_id=a, generation_id=epoch)
    world.beat("n", -1)
    assert isinstance(world.records[-1], GroupMetadata)
    assert world.consumer_state() is None and world.state() == "PreparingRebalance"
    assert world.heartbeat(a, epoch) is ErrorCode.rebalance_in_progress
    token = world.send_join(a)
    reply = world.replies[token]
    assert (reply.error_code, reply.generation_id, reply.leader) == (ErrorCode.none, epoch + 1, a)
    assert world.sync(a, epoch + 1, {a: b"x"}).assignment == b"x"
    assert world.state() == "Stable" and world.offset() == 5
    world.restart()
    assert world.state() == "Stable" and world.consumer_state() is None


def test_so_does_one_whose_session_ends() -> None:
    world, a, epoch = mixed()
    for _ in range(SESSION_MS // 5_000):
        world.advance(5_000)
        world.heartbeat(a, epoch)
    assert world.consumer_state() is None and world.state() == "PreparingRebalance"


def test_when_all_go_together_the_group_is_empty() -> None:
    world, _a, _epoch = mixed()
    world.advance(SESSION_MS)
    assert world.state() in ("Empty", None) or world.consumer_state() == "Empty"


def test_so_does_a_static_one_that_comes_back_with_the_classic_protocol() -> None:
    world = MixedWorld()
    world.enter_new("n", instance_id="i")
    sent_back = world.join(instance_id="i")
    assert sent_back.error_code is ErrorCode.rebalance_in_progress
    assert world.consumer_state() is None and world.state() == "PreparingRebalance"
    token = world.send_join(instance_id="i")
    world.advance_until_answered(token)
    assert world.replies[token].error_code is ErrorCode.none
    assert world.beat("n", 1, instance_id="i").error_code is ErrorCode.unknown_member_id


def test_without_leave_of_the_policy_classic_members_stay_in_a_consumer_group() -> None:
    world = MixedWorld(GroupConfig(migration_policy=MigrationPolicy.UPGRADE))
    (a,), _generation = world.classic_group(1)
    world.enter_new("n")
    epoch, _ = world.rejoin(a)
    world.beat("n", epoch)
    world.beat("n", -1)
    assert list(world.group.members) == [a]
    assert world.heartbeat(a, epoch) is ErrorCode.rebalance_in_progress
    assert world.rejoin(a)[1] == ALL


def test_a_downgrade_that_cannot_be_appended_did_not_happen() -> None:
    world, a, epoch = mixed()
    token = world.send_beat("n", -1, fail=ErrorCode.not_enough_replicas)
    assert world.replies[token].error_code is ErrorCode.coordinator_not_available
    assert world.state() is None and world.consumer_state() == "Stable"
    assert world.heartbeat(a, epoch) is ErrorCode.none
    assert world.shard.budget.bytes_used == sum(one.held_bytes for one in world.group.members.values())


def test_a_classic_member_takes_over_an_empty_consumer_group() -> None:
    world = MixedWorld()
    world.enter_new("n")
    world.commit_offset(3, member_id="n", generation_id=1, version=9)
    world.beat("n", -1)
    assert world.consumer_state() == "Empty"
    (_a,), _generation = world.classic_group(1)
    assert world.consumer_state() is None and world.state() == "Stable" and world.offset() == 3
    world.restart()
    assert world.state() == "Stable" and world.offset() == 3


def test_the_memory_of_members_is_counted_through_all_of_it() -> None:
    world, a, _epoch = mixed()
    assert world.shard.budget.bytes_used == sum(one.held_bytes for one in world.group.members.values())
    world.beat("n", -1)
    assert world.shard.budget.bytes_used == sum(one.charged_bytes for one in world.shard.groups[GROUP].members.values())
    world.leave(a)
    assert world.shard.budget.bytes_used == 0
