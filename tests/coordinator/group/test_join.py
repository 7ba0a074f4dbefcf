"""JoinGroup: who gets in, who has to wait, who is refused."""

from typing import Any

import pytest

from penstock.base.errors import ErrorCode
from penstock.coordinator.group.commands import Protocol
from penstock.coordinator.group.group_config import GroupConfig
from penstock.coordinator.group.replies import JoinedMember

from .support import DELAY_MS, RANGE, REBALANCE_MS, SESSION_MS, World, subscription


def protocols(*names: str) -> tuple[Protocol, ...]:
    return tuple(Protocol(name, b"") for name in names)


# Requests that are refused for themselves -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group_id": ""}, ErrorCode.invalid_group_id),
        ({"group_id": "g" * 32_768}, ErrorCode.invalid_group_id),
        ({"session_timeout_ms": 1}, ErrorCode.invalid_session_timeout),
        ({"session_timeout_ms": 5_999}, ErrorCode.invalid_session_timeout),
        ({"session_timeout_ms": 1_800_001}, ErrorCode.invalid_session_timeout),
        ({"protocol_type": ""}, ErrorCode.inconsistent_group_protocol),
        ({"protocols": ()}, ErrorCode.inconsistent_group_protocol),
        ({"protocols": protocols("range", "range")}, ErrorCode.inconsistent_group_protocol),
        ({"protocols": (Protocol("range", bytes(10 << 20)),)}, ErrorCode.invalid_request),
        ({"protocols": protocols(*(str(number) for number in range(101)))}, ErrorCode.invalid_request),
        ({"instance_id": "i" * 32_768}, ErrorCode.invalid_request),
        ({"client_id": "c" * 32_768}, ErrorCode.invalid_request),
        ({"member_id": "stranger"}, ErrorCode.unknown_member_id),
    ],
)
def test_a_refused_join_leaves_no_group_behind(fields: dict[str, Any], code: ErrorCode) -> None:
    world = World()
    reply = world.join(**fields)
    assert reply.error_code is code
    assert reply.member_id == fields.get("member_id", "")
    assert world.shard.groups == {}
    assert world.shard.next_deadline_ms is None


@pytest.mark.parametrize("session_timeout_ms", [6_000, 1_800_000])
def test_the_bounds_of_the_session_timeout_are_allowed(session_timeout_ms: int) -> None:
    assert World().join(session_timeout_ms=session_timeout_ms).error_code is ErrorCode.member_id_required


def test_another_protocol_type_is_refused_while_there_are_members() -> None:
    world = World()
    world.stable()
    assert world.join(protocol_type="connect").error_code is ErrorCode.inconsistent_group_protocol


def test_a_member_that_shares_no_protocol_with_all_others_is_refused() -> None:
    world = World()
    world.stable(1, protocols=protocols("a", "b"))
    assert world.join(protocols=protocols("c")).error_code is ErrorCode.inconsistent_group_protocol
    assert world.join(protocols=protocols("c", "b")).error_code is ErrorCode.member_id_required


def test_an_empty_group_can_change_its_protocol_type() -> None:
    world = World()
    (member_id,), _ = world.stable(1)
    world.leave(member_id)
    _, token = world.enter(protocol_type="connect", protocols=protocols("default"))
    world.advance(DELAY_MS)
    assert world.replies[token].protocol_type == "connect"


# Member ids -----------------------------------------------------------------------------------------------------------


def test_a_new_member_is_told_its_id_first_from_v4_on() -> None:
    world = World()
    reply = world.join(version=4)
    assert reply.error_code is ErrorCode.member_id_required
    assert reply.member_id == "c-id1"
    assert world.send_join(reply.member_id, version=4) not in world.replies


def test_a_new_member_is_taken_at_once_before_v4() -> None:
    world = World()
    token = world.send_join(version=3)
    assert token not in world.replies
    world.advance(DELAY_MS)
    assert world.replies[token].error_code is ErrorCode.none


def test_a_member_id_that_was_given_out_is_forgotten_with_the_session_timeout() -> None:
    world = World()
    reply = world.join()
    world.advance(SESSION_MS - 1)
    assert world.state() == "Empty"
    world.advance(1)
    assert world.shard.groups == {}
    assert world.join(reply.member_id).error_code is ErrorCode.unknown_member_id


def test_a_member_id_that_was_given_out_cannot_be_used_with_an_instance_id() -> None:
    world = World()
    reply = world.join()
    assert world.join(reply.member_id, instance_id="i").error_code is ErrorCode.unknown_member_id


def test_the_oldest_ids_go_when_too_many_were_given_out() -> None:
    world = World(GroupConfig(pending_ids_max=3))
    first = world.join(group_id="first").member_id
    for number in range(3):
        world.join(group_id=f"other{number}")
    assert "first" not in world.shard.groups
    assert world.join(first, group_id="first").error_code is ErrorCode.unknown_member_id
    assert len(world.shard.groups) == 3


def test_a_rebalance_waits_for_members_that_were_given_an_id() -> None:
    world = World()
    (member_id,), _ = world.stable(1)
    pending = world.join()
    token = world.send_join(member_id)
    assert token not in world.replies
    world.send_join(pending.member_id)
    assert world.replies[token].error_code is ErrorCode.none


def test_a_long_client_id_gives_a_member_id_that_fits_a_record() -> None:
    world = World()
    (member_id,), _ = world.stable(1, client_id="é" * 16_000)
    assert len(member_id) < 300


# The group's size -----------------------------------------------------------------------------------------------------


def test_a_full_group_takes_no_new_member() -> None:
    world = World(GroupConfig(max_size=2))
    world.stable(2)
    reply = world.join()
    assert (reply.error_code, reply.member_id) == (ErrorCode.group_max_size_reached, "")


def test_a_full_group_takes_its_members_back() -> None:
    world = World(GroupConfig(max_size=2))
    (leader, follower), _ = world.stable(2)
    token = world.send_join(leader)
    world.send_join(follower)
    assert world.replies[token].error_code is ErrorCode.none


def test_only_so_many_joins_are_parked_as_the_group_may_have_members() -> None:
    world = World(GroupConfig(max_size=2))
    first, second, third = (world.join().member_id for _ in range(3))
    world.send_join(first)
    world.send_join(second)
    assert world.join(third).error_code is ErrorCode.group_max_size_reached


def test_a_group_that_was_loaded_above_its_limit_keeps_those_who_rejoin_first() -> None:
    world = World()
    (first, second, third), generation = world.stable(3)
    world.config = GroupConfig(max_size=2)
    world.restart()
    assert world.state() == "PreparingRebalance"
    assert world.heartbeat(first, generation) is ErrorCode.rebalance_in_progress
    tokens = [world.send_join(member_id) for member_id in (third, second)]
    assert world.join(first).error_code is ErrorCode.group_max_size_reached
    assert [world.replies[token].error_code for token in tokens] == [ErrorCode.none, ErrorCode.none]
    assert world.heartbeat(first, generation + 1) is ErrorCode.unknown_member_id


# What the first generation looks like ---------------------------------------------------------------------------------


def test_members_that_start_together_meet_in_one_generation() -> None:
    world = World()
    first, first_token = world.enter()
    world.advance(DELAY_MS - 1)
    second, second_token = world.enter()
    world.advance(DELAY_MS)
    assert first_token not in world.replies
    world.advance(1)
    leader, follower = world.replies[first_token], world.replies[second_token]
    assert (leader.generation_id, leader.leader, leader.member_id) == (1, first, first)
    assert leader.members == tuple(JoinedMember(member_id, None, subscription("t")) for member_id in (first, second))
    assert (follower.generation_id, follower.leader, follower.member_id) == (1, first, second)
    assert follower.members == ()
    assert {leader.protocol_type, follower.protocol_type} == {"consumer"}
    assert {leader.protocol_name, follower.protocol_name} == {"range"}


def test_the_initial_delay_ends_with_the_rebalance_timeout() -> None:
    world = World()
    _, token = world.enter(rebalance_timeout_ms=8_000)
    for _ in range(7):
        world.advance(1_000)
        world.enter(rebalance_timeout_ms=8_000)
    assert token not in world.replies
    world.advance(1_000)
    assert len(world.replies[token].members) == 8


def test_without_an_initial_delay_the_first_member_is_answered_at_once() -> None:
    world = World(GroupConfig(initial_rebalance_delay_ms=0))
    assert world.join(version=3).generation_id == 1


def test_v0_has_no_rebalance_timeout_and_uses_the_sessions() -> None:
    world = World()
    world.send_join(version=0, rebalance_timeout_ms=-1)
    (member,) = world.shard.groups["g"].members.values()
    assert member.rebalance_timeout_ms == SESSION_MS


def test_the_protocol_that_most_members_prefer_and_all_support_is_chosen() -> None:
    world = World()
    preferences = [("a", "b", "c"), ("c", "b"), ("b", "c"), ("c", "b"), ("c", "b", "a")]
    tokens = [world.enter(protocols=protocols(*names))[1] for names in preferences]
    world.advance(DELAY_MS * 2)
    assert {world.replies[token].protocol_name for token in tokens} == {"c"}


# Rejoining ------------------------------------------------------------------------------------------------------------


def test_a_follower_that_did_not_change_is_answered_without_a_rebalance() -> None:
    world = World()
    (leader, follower), generation = world.stable()
    reply = world.join(follower)
    assert (reply.generation_id, reply.leader, reply.members) == (generation, leader, ())
    assert world.state() == "Stable"


def test_the_leader_rejoins_to_rebalance() -> None:
    world = World()
    (leader, _), _ = world.stable()
    assert world.send_join(leader) not in world.replies
    assert world.state() == "PreparingRebalance"


def test_a_follower_that_changed_rebalances() -> None:
    world = World()
    (_, follower), _ = world.stable()
    world.send_join(follower, protocols=(Protocol("range", subscription("t", "u")),))
    assert world.state() == "PreparingRebalance"


def test_a_member_that_lost_its_answer_gets_it_again_while_the_assignment_is_awaited() -> None:
    world = World()
    (leader, follower), generation = world.joined()
    again = world.join(leader)
    assert (again.generation_id, len(again.members)) == (generation, 2)
    assert world.join(follower).members == ()
    assert world.state() == "CompletingRebalance"


def test_a_new_member_sends_those_back_who_wait_for_their_assignment() -> None:
    world = World()
    (_, follower), generation = world.joined()
    token = world.send_sync(follower, generation)
    world.enter()
    assert world.replies[token].error_code is ErrorCode.rebalance_in_progress


def test_a_join_that_is_sent_again_takes_the_place_of_the_first() -> None:
    world = World()
    member_id, first = world.enter()
    second = world.send_join(member_id)
    assert world.replies[first].error_code is ErrorCode.rebalance_in_progress
    world.advance(DELAY_MS)
    assert world.replies[second].generation_id == 1


def test_a_rebalance_completes_when_all_have_rejoined() -> None:
    world = World()
    members, generation = world.stable(3)
    tokens = [world.send_join(member_id) for member_id in members]
    replies = [world.replies[token] for token in tokens]
    assert [reply.generation_id for reply in replies] == [generation + 1] * 3
    assert [len(reply.members) for reply in replies] == [3, 0, 0]


def test_members_that_do_not_rejoin_in_time_are_removed() -> None:
    world = World()
    (leader, absent, present), generation = world.stable(3, session_timeout_ms=1_800_000)
    token = world.send_join(present, protocols=(Protocol("range", subscription("u")),), session_timeout_ms=1_800_000)
    world.advance(REBALANCE_MS - 1)
    assert token not in world.replies
    world.advance(1)
    reply = world.replies[token]
    assert (reply.leader, len(reply.members)) == (present, 1)
    assert world.heartbeat(leader, generation) is ErrorCode.unknown_member_id
    assert world.heartbeat(absent, generation) is ErrorCode.unknown_member_id


def test_the_rebalance_timeout_is_the_longest_of_all_members() -> None:
    world = World()
    (leader,), _ = world.stable(1, session_timeout_ms=1_800_000, rebalance_timeout_ms=200_000)
    _, token = world.enter(rebalance_timeout_ms=10_000)
    world.advance(199_999)
    assert token not in world.replies
    world.advance(1)
    assert world.replies[token].error_code is ErrorCode.none
    assert leader not in world.shard.groups["g"].members


def test_generations_only_grow() -> None:
    world = World()
    (leader, follower), generation = world.stable()
    world.leave(leader, follower)
    _, token = world.enter(protocols=RANGE)
    world.advance(DELAY_MS)
    assert world.replies[token].generation_id == generation + 2  # Becoming empty was one, too.
