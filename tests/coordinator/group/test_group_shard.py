"""The shard as a whole: deletion, views, loading, unloading, and what a rebalance costs."""

import sys
from types import FrameType
from typing import Any

import pytest

from penstock.base.errors import ErrorCode
from penstock.coordinator.group.commands import DeleteGroups
from penstock.coordinator.group.records import GroupDeleted, GroupMetadata, MemberMetadata, OffsetDeleted
from penstock.coordinator.group.views import GroupView, ListedGroup, MemberView

from .support import DELAY_MS, SESSION_MS, World, subscription

# DeleteGroups ---------------------------------------------------------------------------------------------------------


def test_an_empty_group_is_deleted_with_its_offsets() -> None:
    world = World()
    (member_id,), generation = world.stable(1)
    world.commit_offset(1, member_id=member_id, generation_id=generation)
    world.leave(member_id)
    assert world.delete_group() is ErrorCode.none
    assert world.records == [OffsetDeleted(group_id="g", topic="t", partition=0), GroupDeleted(group_id="g")]
    assert (world.state(), world.offset()) == (None, -1)
    world.restart()
    assert (world.state(), world.offset()) == (None, -1)


def test_a_group_with_members_cannot_be_deleted() -> None:
    world = World()
    world.enter()
    assert world.delete_group() is ErrorCode.non_empty_group
    world.advance(DELAY_MS)
    assert world.delete_group() is ErrorCode.non_empty_group


def test_a_group_that_is_not_there_cannot_be_deleted() -> None:
    assert World().delete_group() is ErrorCode.group_id_not_found


def test_each_group_is_answered_for_itself_once() -> None:
    world = World()
    world.commit_offset(1)
    decision = world.shard.delete_groups(DeleteGroups(group_ids=("g", "none", "g")), 999)
    world.run(decision)
    assert [tuple(group) for group in world.replies[999].groups] == [
        ("g", ErrorCode.none),
        ("none", ErrorCode.group_id_not_found),
    ]
    failed = decision.failed(ErrorCode.not_leader_or_follower)[0].response
    assert [group.error_code for group in failed.groups] == [  # type: ignore[attr-defined]
        ErrorCode.not_coordinator,
        ErrorCode.group_id_not_found,
    ]


def test_an_id_that_was_given_out_goes_with_its_group() -> None:
    world = World()
    world.commit_offset(1)
    pending = world.join().member_id
    assert world.delete_group() is ErrorCode.none
    assert world.shard.next_deadline_ms is None
    assert world.join(pending).error_code is ErrorCode.unknown_member_id


# Views ----------------------------------------------------------------------------------------------------------------


def test_a_stable_group_is_described_with_its_assignment() -> None:
    world = World()
    (member_id,), _ = world.stable(1)
    assert world.shard.describe("g") == GroupView(
        "g",
        "Stable",
        "consumer",
        "range",
        (MemberView(member_id, None, "c", "/127.0.0.1", subscription("t"), member_id.encode()),),
    )
    assert world.shard.list_groups() == [ListedGroup("g", "consumer", "Stable", "classic")]


def test_a_group_that_rebalances_is_described_without_its_protocol() -> None:
    world = World()
    (first, _), _ = world.stable()
    world.send_join(first)
    view = world.shard.describe("g")
    assert view is not None
    assert (view.state, view.protocol_name) == ("PreparingRebalance", "")
    assert [member.metadata for member in view.members] == [b"", b""]


def test_a_group_that_only_commits_is_listed() -> None:
    world = World()
    world.commit_offset(1)
    assert world.shard.list_groups() == [ListedGroup("g", "", "Empty", "classic")]
    assert world.shard.describe("none") is None


# Loading and unloading ------------------------------------------------------------------------------------------------


def test_members_go_on_with_the_coordinator_that_takes_over() -> None:
    world = World()
    (leader, follower), generation = world.stable()
    world.restart()
    assert world.state() == "Stable"
    assert world.heartbeat(leader, generation) is ErrorCode.none
    assert world.sync(follower, generation).assignment == follower.encode()
    assert world.commit_offset(3, member_id=leader, generation_id=generation) is ErrorCode.none


def test_members_have_a_session_to_find_the_coordinator_that_takes_over() -> None:
    world = World()
    (leader, follower), generation = world.stable()
    world.advance(SESSION_MS - 1)
    world.restart()
    world.advance(SESSION_MS - 1)
    assert world.heartbeat(leader, generation) is ErrorCode.none
    world.advance(1)
    assert world.heartbeat(follower, generation) is ErrorCode.unknown_member_id


def test_a_rebalance_that_was_not_stored_is_forgotten_and_members_rejoin() -> None:
    world = World()
    members, generation = world.stable()
    for member_id in members:
        world.send_join(member_id)
    world.restart()
    assert world.heartbeat(members[0], generation + 1) is ErrorCode.illegal_generation
    tokens = [world.send_join(member_id) for member_id in members]
    assert {world.replies[token].generation_id for token in tokens} == {generation + 1}


def test_an_empty_group_goes_on_counting_after_a_restart() -> None:
    world = World()
    (member_id,), generation = world.stable(1)
    world.leave(member_id)
    world.restart()
    assert world.state() == "Empty"
    _, token = world.enter()
    world.advance(DELAY_MS)
    assert world.replies[token].generation_id == generation + 2


def test_a_group_tombstone_leaves_offsets_that_were_not_deleted() -> None:
    world = World()
    world.commit_offset(1)
    world.shard.apply(GroupDeleted(group_id="g"))
    assert world.state() == "Empty"
    assert world.offset() == 1


def test_tombstones_of_what_is_not_there_are_harmless() -> None:
    world = World()
    world.shard.apply(GroupDeleted(group_id="g"))
    world.shard.apply(OffsetDeleted(group_id="g", topic="t", partition=0))
    assert world.shard.groups == {}


def test_a_record_with_a_member_twice_is_loaded_once() -> None:
    world = World()
    first, second = (
        MemberMetadata(member_id="m", instance_id=name, rebalance_timeout_ms=1, session_timeout_ms=SESSION_MS)
        for name in ("i", "j")
    )
    third = MemberMetadata(member_id="n", instance_id="i", rebalance_timeout_ms=1, session_timeout_ms=SESSION_MS)
    record = GroupMetadata(group_id="g", generation_id=2**31 - 1, leader="gone", members=(first, second, third))
    world.run(world.shard.load([record], world.now))
    view = world.shard.describe("g")
    assert view is not None
    assert [(member.member_id, member.instance_id) for member in view.members] == [("m", "i")]
    world.advance(SESSION_MS)
    assert world.state() == "Empty"


def test_everyone_who_waits_is_told_when_the_coordinator_moves() -> None:
    world = World()
    (_, follower), generation = world.joined()
    sync = world.send_sync(follower, generation)
    _, join = world.enter(group_id="h")
    world.run(world.shard.unload())
    assert world.replies[sync].error_code is ErrorCode.not_coordinator
    assert world.replies[join].error_code is ErrorCode.not_coordinator
    assert world.shard.next_deadline_ms is None


def test_a_dead_group_sends_its_members_to_find_the_coordinator() -> None:
    world = World()
    (member_id,), generation = world.stable(1)
    world.run(world.shard.unload())
    not_available = ErrorCode.coordinator_not_available
    assert world.join().error_code is not_available
    assert world.join(member_id).error_code is not_available
    assert world.sync(member_id, generation).error_code is not_available
    assert world.heartbeat(member_id, generation) is not_available
    assert world.leave(member_id) == [not_available]
    assert world.commit_offset(member_id=member_id, generation_id=generation) is not_available
    assert world.delete_group() is ErrorCode.group_id_not_found
    assert world.delete_offsets() is ErrorCode.group_id_not_found
    assert world.state() == "Dead"


# Costs ----------------------------------------------------------------------------------------------------------------


def calls_during_a_rebalance(number: int) -> int:
    """Python calls and line events of one whole rebalance: joins, assignment, syncs."""
    world = World()
    members, generation = world.stable(number)
    steps = 0

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal steps
        steps += 1
        return count

    sys.settrace(count)
    try:
        for member_id in members:
            world.send_join(member_id)
        for member_id in members[1:]:
            world.send_sync(member_id, generation + 1)
        world.sync(members[0], generation + 1, dict.fromkeys(members, b""))
    finally:
        sys.settrace(None)
    assert world.state() == "Stable"
    return steps


@pytest.mark.skipif(sys.gettrace() is not None, reason="a debugger or a coverage tool is tracing")
def test_a_rebalance_of_four_times_the_members_takes_four_times_the_steps() -> None:
    assert calls_during_a_rebalance(200) < 4.5 * calls_during_a_rebalance(50)
