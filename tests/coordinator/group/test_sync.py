"""SyncGroup: from the leader's assignment to everyone's."""

import pytest

from penstock.base.errors import ErrorCode
from penstock.coordinator.group.records import GroupMetadata

from .support import World, subscription


def test_everyone_gets_the_part_that_the_leader_assigned() -> None:
    world = World()
    (leader, follower), generation = world.joined()
    parked = world.send_sync(follower, generation)
    assert parked not in world.replies
    reply = world.sync(leader, generation, {leader: b"L", follower: b"F", "stranger": b"S"})
    assert reply.assignment == b"L"
    assert world.replies[parked].assignment == b"F"
    assert world.state() == "Stable"


def test_a_follower_that_asks_later_gets_it_too() -> None:
    world = World()
    (leader, follower), generation = world.joined()
    world.sync(leader, generation, {follower: b"F"})
    assert world.sync(follower, generation).assignment == b"F"


def test_who_was_left_out_has_an_empty_assignment() -> None:
    world = World()
    (leader, follower), generation = world.joined()
    world.sync(leader, generation, {leader: b"L"})
    assert world.sync(follower, generation).assignment == b""


def test_the_generation_is_stored_with_its_assignment() -> None:
    world = World()
    (leader, follower), generation = world.joined()
    world.sync(leader, generation, {leader: b"L", follower: b"F"})
    (record,) = world.records
    assert isinstance(record, GroupMetadata)
    assert (record.protocol_type, record.protocol, record.generation_id) == ("consumer", "range", generation)
    assert record.leader == leader
    assert [(member.member_id, member.subscription, member.assignment) for member in record.members] == [
        (leader, subscription("t"), b"L"),
        (follower, subscription("t"), b"F"),
    ]


def test_nobody_hears_of_an_assignment_before_it_is_committed() -> None:
    world = World(auto_commit=False)
    (leader, follower), generation = world.joined()
    early = world.send_sync(follower, generation)
    leaders = world.send_sync(leader, generation, {follower: b"F"})
    again = world.send_sync(follower, generation)
    assert world.replies.keys().isdisjoint({early, leaders, again})
    world.commit()
    assert world.replies[early].assignment == world.replies[again].assignment == b"F"
    assert leaders in world.replies


def test_an_assignment_that_cannot_be_stored_is_an_error_and_a_new_rebalance() -> None:
    world = World()
    (leader, follower), generation = world.joined()
    parked = world.send_sync(follower, generation)
    leaders = world.send_sync(leader, generation, {}, fail=ErrorCode.not_enough_replicas)
    assert world.replies[parked].error_code is ErrorCode.coordinator_not_available
    assert world.replies[leaders].error_code is ErrorCode.coordinator_not_available
    assert world.log == []
    assert world.heartbeat(leader, generation) is ErrorCode.rebalance_in_progress


@pytest.mark.parametrize(
    ("append_code", "code"),
    [
        (ErrorCode.not_leader_or_follower, ErrorCode.not_coordinator),
        (ErrorCode.kafka_storage_error, ErrorCode.not_coordinator),
        (ErrorCode.message_too_large, ErrorCode.unknown_server_error),
    ],
)
def test_errors_of_the_log_are_told_as_the_coordinators(append_code: ErrorCode, code: ErrorCode) -> None:
    world = World()
    (leader,), generation = world.joined(1)
    assert world.sync(leader, generation, {}, fail=append_code).error_code is code


def test_a_sync_that_is_sent_again_takes_the_place_of_the_first() -> None:
    world = World()
    (leader, follower), generation = world.joined()
    first, second = (world.send_sync(follower, generation) for _ in range(2))
    assert world.replies[first].error_code is ErrorCode.rebalance_in_progress
    world.sync(leader, generation, {follower: b"F"})
    assert world.replies[second].assignment == b"F"


# Refusals -------------------------------------------------------------------------------------------------------------


def test_an_empty_group_id_is_invalid() -> None:
    assert World().sync("m", 1, group_id="").error_code is ErrorCode.invalid_group_id


def test_a_group_that_is_not_there_has_no_members() -> None:
    assert World().sync("m", 1).error_code is ErrorCode.unknown_member_id


def test_a_stranger_is_unknown() -> None:
    world = World()
    _, generation = world.joined()
    assert world.sync("stranger", generation).error_code is ErrorCode.unknown_member_id


@pytest.mark.parametrize("step", [-1, 1])
def test_another_generation_is_illegal(step: int) -> None:
    world = World()
    (leader, _), generation = world.joined()
    assert world.sync(leader, generation + step).error_code is ErrorCode.illegal_generation


def test_a_rebalance_in_progress_is_told() -> None:
    world = World()
    (leader, follower), generation = world.stable()
    world.send_join(leader)
    assert world.sync(follower, generation).error_code is ErrorCode.rebalance_in_progress


def test_another_protocol_is_inconsistent() -> None:
    world = World()
    (leader, _), generation = world.joined()
    inconsistent = ErrorCode.inconsistent_group_protocol
    assert world.sync(leader, generation, protocol_type="connect").error_code is inconsistent
    assert world.sync(leader, generation, protocol_name="sticky").error_code is inconsistent
    reply = world.sync(leader, generation, protocol_type="consumer", protocol_name="range")
    assert (reply.protocol_type, reply.protocol_name) == ("consumer", "range")
