"""LeaveGroup: by member id, by instance id, several at once."""

from penstock.base.errors import ErrorCode
from penstock.coordinator.group.commands import LeavingMember
from penstock.coordinator.group.records import GroupMetadata

from .support import DELAY_MS, World

NONE, UNKNOWN = ErrorCode.none, ErrorCode.unknown_member_id


def test_an_empty_group_id_is_invalid() -> None:
    assert World().leave("m", group_id="") == [ErrorCode.invalid_group_id]


def test_in_a_group_that_is_not_there_everyone_is_unknown() -> None:
    assert World().leave("m", "n") == [UNKNOWN, UNKNOWN]


def test_those_who_stay_rebalance() -> None:
    world = World()
    (leader, follower), generation = world.stable()
    assert world.leave(leader) == [NONE]
    assert world.heartbeat(leader, generation) is UNKNOWN
    assert world.heartbeat(follower, generation) is ErrorCode.rebalance_in_progress
    reply = world.join(follower)
    assert (reply.leader, reply.generation_id) == (follower, generation + 1)


def test_each_member_is_answered_for_itself() -> None:
    world = World()
    (leader, follower), _ = world.stable()
    assert world.leave(leader, "stranger", follower, follower) == [NONE, UNKNOWN, NONE, UNKNOWN]
    assert world.state() == "Empty"


def test_a_static_member_is_removed_by_its_instance_id_alone() -> None:
    world = World()
    world.stable_static("i1", "i2")
    assert world.leave(LeavingMember("", "i2"), LeavingMember("", "i3"), LeavingMember("", None)) == [
        NONE,
        UNKNOWN,
        UNKNOWN,
    ]
    assert world.state() == "PreparingRebalance"


def test_a_static_member_does_not_leave_under_another_member_id() -> None:
    world = World()
    world.stable_static("i1", "i2")
    assert world.leave(LeavingMember("other", "i2")) == [ErrorCode.fenced_instance_id]
    assert world.state() == "Stable"


def test_an_id_that_was_given_out_leaves_without_a_rebalance() -> None:
    world = World()
    world.stable()
    pending = world.join().member_id
    assert world.leave(pending) == [NONE]
    assert world.state() == "Stable"


def test_an_id_that_leaves_is_waited_for_no_longer() -> None:
    world = World()
    (member_id,), _ = world.stable(1)
    pending = world.join().member_id
    token = world.send_join(member_id)
    world.leave(pending)
    assert world.replies[token].error_code is NONE


def test_a_parked_join_of_a_member_that_leaves_is_answered() -> None:
    world = World()
    (leader, follower), _ = world.stable()
    token = world.send_join(leader)
    world.leave(leader)
    assert world.replies[token].error_code is UNKNOWN
    assert world.join(follower).error_code is NONE


def test_a_parked_sync_of_a_member_that_leaves_is_answered() -> None:
    world = World()
    (_, follower), generation = world.joined()
    token = world.send_sync(follower, generation)
    world.leave(follower)
    assert world.replies[token].error_code is UNKNOWN


def test_a_group_that_became_empty_is_stored_so_and_keeps_counting() -> None:
    world = World()
    (member_id,), generation = world.stable(1)
    world.leave(member_id)
    assert world.records == [
        GroupMetadata(
            group_id="g",
            protocol_type="consumer",
            generation_id=generation + 1,
            state_timestamp_ms=world.wall_ms,
        )
    ]


def test_a_group_of_which_nothing_came_is_forgotten_without_a_record() -> None:
    world = World()
    member_id, token = world.enter()
    world.advance(DELAY_MS - 1)
    assert world.leave(member_id) == [NONE]
    assert world.replies[token].error_code is UNKNOWN
    assert world.log == []
    assert world.shard.groups == {}
    assert world.shard.next_deadline_ms is None
