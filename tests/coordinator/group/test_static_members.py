"""Static members (KIP-345, KIP-814): a seat that outlives its process."""

import pytest

from penstock.base.errors import ErrorCode
from penstock.coordinator.group.commands import LeavingMember, Protocol
from penstock.coordinator.group.group_config import GroupConfig
from penstock.coordinator.group.records import GroupMetadata

from .support import SESSION_MS, World, subscription


def test_a_static_member_needs_no_member_id_first() -> None:
    world = World()
    token = world.send_join(instance_id="i1")
    world.advance(SESSION_MS)
    assert world.replies[token].member_id == "i1-id1"


def test_a_static_member_that_restarts_gets_its_assignment_without_a_rebalance() -> None:
    world = World()
    (leader, follower), generation = world.stable_static("i1", "i2")
    owned = (Protocol("range", subscription("t", owned=b"owns t-0")),)
    reply = world.join(instance_id="i2", protocols=owned)
    assert (reply.error_code, reply.generation_id, reply.leader) == (ErrorCode.none, generation, leader)
    assert reply.member_id != follower
    assert world.state() == "Stable"
    assert world.sync(reply.member_id, generation, instance_id="i2").assignment == follower.encode()


def test_the_new_member_id_is_stored_before_it_is_told() -> None:
    world = World()
    world.stable_static("i1", "i2")
    world.auto_commit = False
    token = world.send_join(instance_id="i2")
    (record,) = world.records
    assert isinstance(record, GroupMetadata)
    assert token not in world.replies
    world.commit()
    assert world.replies[token].member_id in {member.member_id for member in record.members}


def test_the_process_that_lost_its_seat_is_fenced() -> None:
    world = World()
    (_, old), generation = world.stable_static("i1", "i2")
    world.join(instance_id="i2")
    fenced = ErrorCode.fenced_instance_id
    assert world.heartbeat(old, generation, instance_id="i2") is fenced
    assert world.sync(old, generation, instance_id="i2").error_code is fenced
    assert world.join(old, instance_id="i2").error_code is fenced
    assert world.leave(LeavingMember(old, "i2")) == [fenced]
    assert world.commit_offset(member_id=old, generation_id=generation, instance_id="i2") is fenced
    assert world.heartbeat(old, generation) is ErrorCode.unknown_member_id


def test_a_seat_is_fenced_also_after_the_coordinator_moved() -> None:
    world = World()
    (_, old), generation = world.stable_static("i1", "i2")
    world.join(instance_id="i2")
    world.restart()
    assert world.heartbeat(old, generation, instance_id="i2") is ErrorCode.fenced_instance_id


def test_an_instance_id_that_nobody_has_is_unknown() -> None:
    world = World()
    (leader, _), generation = world.stable_static("i1", "i2")
    assert world.heartbeat(leader, generation, instance_id="i3") is ErrorCode.unknown_member_id


def test_a_leader_that_restarts_is_told_to_skip_the_assignment_from_v9_on() -> None:
    world = World()
    (_, follower), generation = world.stable_static("i1", "i2")
    reply = world.join(instance_id="i1", version=9)
    assert reply.skip_assignment
    assert reply.leader == reply.member_id
    assert {member.member_id for member in reply.members} == {reply.member_id, follower}
    assert world.sync(reply.member_id, generation, {}).assignment == b"i1-id1"


def test_a_leader_that_restarts_does_not_learn_that_it_leads_before_v9() -> None:
    world = World()
    (old_leader, _), _ = world.stable_static("i1", "i2")
    reply = world.join(instance_id="i1", version=8)
    assert (reply.leader, reply.members, reply.skip_assignment) == (old_leader, (), False)


def test_a_static_member_that_restarts_with_other_topics_rebalances() -> None:
    world = World()
    world.stable_static("i1", "i2")
    world.send_join(instance_id="i2", protocols=(Protocol("range", subscription("t", "u")),))
    assert world.state() == "PreparingRebalance"


def test_a_static_member_that_changes_the_chosen_protocol_rebalances() -> None:
    world = World()
    both = (Protocol("range", b""), Protocol("sticky", b""))
    token = world.send_join(instance_id="i1", protocols=both)
    world.advance(SESSION_MS)
    member_id, generation = world.replies[token].member_id, world.replies[token].generation_id
    world.sync_all([member_id], generation)
    world.send_join(instance_id="i1", protocols=both[::-1])
    assert world.state() != "Stable"


def test_a_static_member_that_restarts_while_the_leader_assigns_rebalances() -> None:
    world = World()
    members, generation = world.stable_static("i1", "i2")
    for member_id in members:
        world.send_join(member_id, instance_id="i1" if member_id == members[0] else "i2")
    assert world.state() == "CompletingRebalance"
    parked = world.send_sync(members[1], generation + 1)
    world.send_join(instance_id="i2")
    assert world.state() == "PreparingRebalance"
    assert world.replies[parked].error_code is ErrorCode.fenced_instance_id


def test_a_static_member_that_restarts_before_it_asked_for_its_assignment_must_still_ask() -> None:
    world = World()
    tokens = [world.send_join(instance_id=instance_id) for instance_id in ("i1", "i2")]
    world.advance_until_answered(tokens[0])
    leader, follower = (world.replies[token].member_id for token in tokens)
    world.sync(leader, 1, {follower: b"F"})
    successor = world.join(instance_id="i2").member_id
    assert world.shard.groups["g"].unsynced_ids == {successor}
    assert world.sync(successor, 1).assignment == b"F"
    assert world.shard.groups["g"].unsynced_ids == set()


def test_a_seat_that_cannot_be_stored_is_refused_and_the_group_rebalances() -> None:
    world = World()
    (leader, _), generation = world.stable_static("i1", "i2")
    reply = world.join(instance_id="i2", fail=ErrorCode.kafka_storage_error)
    assert (reply.error_code, reply.member_id) == (ErrorCode.not_coordinator, "")
    assert world.heartbeat(leader, generation, instance_id="i1") is ErrorCode.rebalance_in_progress
    token = world.send_join(instance_id="i2")
    world.send_join(leader, instance_id="i1")
    assert world.replies[token].generation_id == generation + 1


def test_a_parked_join_of_the_old_process_is_fenced() -> None:
    world = World()
    first = world.send_join(instance_id="i1")
    second = world.send_join(instance_id="i1")
    assert world.replies[first].error_code is ErrorCode.fenced_instance_id
    world.advance(SESSION_MS)
    assert world.replies[second].error_code is ErrorCode.none


def test_a_full_group_gives_a_static_member_its_seat_back() -> None:
    world = World(GroupConfig(max_size=2))
    world.stable_static("i1", "i2")
    assert world.join(instance_id="i2").error_code is ErrorCode.none
    assert world.join(instance_id="i3").error_code is ErrorCode.group_max_size_reached


def test_an_absent_static_member_keeps_its_seat_through_a_rebalance() -> None:
    world = World()
    (leader, absent), _ = world.stable_static("i1", "i2")
    world.shard.groups["g"].members[absent].rebalance_timeout_ms = 5_000
    token = world.send_join(leader, instance_id="i1", rebalance_timeout_ms=5_000)
    world.advance(5_000)
    assert {member.member_id for member in world.replies[token].members} == {leader, absent}


def test_a_rebalance_gives_an_absent_static_member_no_new_session() -> None:
    world = World()
    (leader, absent), _ = world.stable_static("i1", "i2")
    world.shard.groups["g"].members[absent].rebalance_timeout_ms = 8_000
    token = world.send_join(leader, instance_id="i1", rebalance_timeout_ms=8_000)
    world.advance(8_000)
    generation = world.replies[token].generation_id
    world.sync(leader, generation, instance_id="i1")
    world.advance(SESSION_MS - 8_001)
    assert world.heartbeat(leader, generation, instance_id="i1") is ErrorCode.none
    world.advance(1)
    assert world.heartbeat(leader, generation, instance_id="i1") is ErrorCode.rebalance_in_progress
    assert absent not in world.shard.groups["g"].members


@pytest.mark.parametrize("rebalance_timeout_ms", [0, 5_000])
def test_static_members_that_are_all_absent_go_with_their_sessions(rebalance_timeout_ms: int) -> None:
    world = World()
    (leader, _), _ = world.stable_static("i1", "i2")
    for member in world.shard.groups["g"].members.values():
        member.rebalance_timeout_ms = rebalance_timeout_ms
    world.leave(leader)
    assert world.state() == "PreparingRebalance"
    world.advance(SESSION_MS)
    assert world.state() == "Empty"
