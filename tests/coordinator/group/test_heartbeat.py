"""Heartbeat: what each state answers."""

from penstock.base.errors import ErrorCode

from .support import SESSION_MS, World


def test_an_empty_group_id_is_invalid() -> None:
    assert World().heartbeat("m", 1, group_id="") is ErrorCode.invalid_group_id


def test_a_group_that_is_not_there_has_no_members() -> None:
    assert World().heartbeat("m", 1) is ErrorCode.unknown_member_id


def test_an_empty_group_has_no_members() -> None:
    world = World()
    (member_id,), generation = world.stable(1)
    world.leave(member_id)
    assert world.state() == "Empty"
    assert world.heartbeat(member_id, generation + 1) is ErrorCode.unknown_member_id


def test_another_generation_is_illegal() -> None:
    world = World()
    (leader, _), generation = world.stable()
    assert world.heartbeat(leader, generation - 1) is ErrorCode.illegal_generation


def test_members_are_told_to_rejoin_and_live_on() -> None:
    world = World()
    (leader, follower), generation = world.stable()
    world.send_join(leader)
    for _ in range(3):
        world.advance(SESSION_MS - 1)
        assert world.heartbeat(follower, generation) is ErrorCode.rebalance_in_progress


def test_members_live_by_their_heartbeats_while_the_assignment_is_awaited_and_after() -> None:
    world = World()
    (leader, follower), generation = world.joined()
    world.advance(SESSION_MS - 1)
    assert world.heartbeat(leader, generation) is ErrorCode.none
    assert world.heartbeat(follower, generation) is ErrorCode.none
    world.advance(SESSION_MS - 1)
    world.sync_all([leader, follower], generation)
    world.advance(SESSION_MS - 1)
    assert world.heartbeat(leader, generation) is ErrorCode.none


def test_an_id_that_was_given_out_is_not_a_member_yet() -> None:
    world = World()
    reply = world.join()
    assert world.heartbeat(reply.member_id, 0) is ErrorCode.unknown_member_id
