"""What happens when nothing happens."""

from penstock.base.errors import ErrorCode

from .support import DELAY_MS, REBALANCE_MS, SESSION_MS, World

FIVE_MINUTES_MS = 300_000


def test_a_silent_member_is_removed_and_the_others_rebalance() -> None:
    world = World()
    (leader, silent), generation = world.stable()
    world.advance(SESSION_MS - 1)
    world.heartbeat(leader, generation)
    assert world.heartbeat(leader, generation) is ErrorCode.none
    world.advance(1)
    assert world.heartbeat(leader, generation) is ErrorCode.rebalance_in_progress
    assert world.heartbeat(silent, generation) is ErrorCode.unknown_member_id


def test_a_group_whose_members_all_fell_silent_is_empty_and_stored_so() -> None:
    world = World()
    world.stable()
    world.advance(SESSION_MS)
    assert world.state() == "Empty"
    world.restart()
    assert world.state() == "Empty"


def test_a_member_that_waits_for_a_rebalance_needs_no_heartbeat() -> None:
    world = World()
    (leader, follower), generation = world.stable()
    token = world.send_join(leader)
    for _ in range(10):
        world.advance(SESSION_MS // 2)
        world.heartbeat(follower, generation)
    assert token not in world.replies
    assert leader in world.shard.groups["g"].members


def test_a_member_that_waits_for_the_assignment_needs_no_heartbeat() -> None:
    world = World()
    (leader, follower), generation = world.joined()
    token = world.send_sync(follower, generation)
    for _ in range(5):
        world.advance(SESSION_MS - 1)
        assert world.heartbeat(leader, generation) is ErrorCode.none
    world.sync(leader, generation, {follower: b"F"})
    assert world.replies[token].assignment == b"F"
    world.advance(SESSION_MS - 1)
    assert world.heartbeat(follower, generation) is ErrorCode.none


def test_a_silent_member_does_not_hold_up_a_rebalance_beyond_its_session() -> None:
    world = World()
    (leader, _), _ = world.stable()
    token = world.send_join(leader)
    world.advance(SESSION_MS)
    assert world.replies[token].error_code is ErrorCode.none


def test_a_new_member_that_waits_for_too_long_is_told_to_join_anew() -> None:
    world = World()
    (leader,), generation = world.stable(1, rebalance_timeout_ms=2**31 - 1)
    _, token = world.enter()
    for _ in range(FIVE_MINUTES_MS // SESSION_MS * 2):
        assert token not in world.replies
        world.advance(SESSION_MS // 2)
        world.heartbeat(leader, generation)
    reply = world.replies[token]
    assert (reply.error_code, reply.member_id) == (ErrorCode.unknown_member_id, "")


def test_members_that_never_ask_for_their_assignment_are_removed() -> None:
    world = World()
    (leader, lazy), generation = world.joined()
    world.sync(leader, generation, {})
    for _ in range(REBALANCE_MS // 5_000):
        assert world.state() == "Stable"
        world.heartbeat(leader, generation)
        world.heartbeat(lazy, generation)
        world.advance(5_000)
    assert world.heartbeat(leader, generation) is ErrorCode.rebalance_in_progress
    assert world.heartbeat(lazy, generation) is ErrorCode.unknown_member_id


def test_followers_that_asked_are_sent_back_when_the_leader_never_assigns() -> None:
    world = World()
    (leader, follower), generation = world.joined()
    token = world.send_sync(follower, generation)
    for _ in range(REBALANCE_MS // 5_000):
        assert token not in world.replies
        world.heartbeat(leader, generation)
        world.advance(5_000)
    assert world.replies[token].error_code is ErrorCode.rebalance_in_progress
    assert world.join(follower).leader == follower


def test_a_group_that_is_in_use_costs_one_deadline_per_member() -> None:
    world = World()
    members, generation = world.stable(3)
    for _ in range(1_000):
        world.advance(10)
        for member_id in members:
            world.heartbeat(member_id, generation)
    assert len(world.shard.deadlines) == 3
    assert len(world.shard.deadlines._heap) < 100


def test_nothing_is_scheduled_for_groups_without_members() -> None:
    world = World()
    members, _ = world.stable()
    world.leave(*members)
    assert world.shard.next_deadline_ms is None


def test_joins_that_come_at_the_deadline_are_in_time_for_the_next_one() -> None:
    world = World()
    _, first = world.enter()
    world.advance(DELAY_MS)
    assert world.replies[first].generation_id == 1
    _, second = world.enter()
    assert world.state() == "PreparingRebalance"
    assert second not in world.replies
