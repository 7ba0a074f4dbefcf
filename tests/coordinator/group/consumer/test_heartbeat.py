"""ConsumerGroupHeartbeat: joining, living, being fenced, leaving."""

from typing import Any
from uuid import UUID

import pytest

from penstock.base.errors import ErrorCode
from penstock.coordinator.group.consumer.member_state import MemberState
from penstock.coordinator.group.group_config import GroupConfig

from ..support import REBALANCE_MS
from .support import SESSION_MS, ConsumerWorld, T, U

ALL = frozenset(range(6))


def test_the_first_member_has_everything_at_once() -> None:
    world = ConsumerWorld()
    reply = world.enter_new("a")
    assert (reply.error_code, reply.member_id, reply.member_epoch) == (ErrorCode.none, "a", 1)
    assert reply.assignment == {T: ALL}
    assert reply.heartbeat_interval_ms == 5_000
    assert world.consumer_state() == "Stable"


def test_a_plain_heartbeat_writes_nothing_and_tells_nothing() -> None:
    world = ConsumerWorld()
    world.enter_new("a")
    end = len(world.log)
    reply = world.beat("a", 1)
    assert (reply.member_epoch, reply.assignment) == (1, None)
    assert len(world.log) == end


def test_the_second_member_gets_its_half_when_the_first_has_given_it_up() -> None:
    world = ConsumerWorld()
    world.enter_new("a")
    second = world.enter_new("b")
    assert (second.member_epoch, second.assignment) == (2, {})
    first = world.beat("a", 1)
    assert first.member_epoch == 1
    assert first.assignment is not None and len(first.assignment[T]) == 3
    assert world.beat("b", 2).assignment is None, "the first still owns all"
    assert world.beat("a", 1).assignment is None, "it did not say what it owns"
    done = world.beat("a", 1, owned=first.assignment)
    assert done.member_epoch == 2
    given = world.beat("b", 2).assignment
    assert given is not None and given[T] == ALL - first.assignment[T]
    assert world.consumer_state() == "Stable"


def test_who_did_not_hear_the_answer_may_ask_again_with_the_epoch_before() -> None:
    world = ConsumerWorld()
    world.enter_new("a")
    world.enter_new("b")
    kept = world.beat("a", 1).assignment
    world.beat("a", 1, owned=kept)
    again = world.beat("a", 1, owned=kept, rebalance_timeout_ms=1, topic_names=("t",))
    assert (again.error_code, again.member_epoch, again.assignment) == (ErrorCode.none, 2, kept)


def test_another_epoch_is_fenced() -> None:
    world = ConsumerWorld()
    world.enter_new("a")
    world.enter_new("b")
    assert world.beat("b", 3).error_code is ErrorCode.fenced_member_epoch
    assert world.beat("b", 1).error_code is ErrorCode.fenced_member_epoch
    assert world.beat("b", 1, owned={T: ALL}).error_code is ErrorCode.fenced_member_epoch


def test_who_was_fenced_comes_back_with_empty_hands_and_has_what_is_its() -> None:
    world = ConsumerWorld()
    world.enter_new("a")
    reply = world.enter_new("a")
    assert (reply.error_code, reply.member_epoch, reply.assignment) == (ErrorCode.none, 1, {T: ALL})


def test_an_unknown_member_is_told_so() -> None:
    world = ConsumerWorld()
    assert world.beat("a", 1).error_code is ErrorCode.unknown_member_id
    world.enter_new("a")
    assert world.beat("b", 1).error_code is ErrorCode.unknown_member_id
    assert world.beat("b", -1).error_code is ErrorCode.unknown_member_id


def test_who_leaves_frees_its_partitions_for_the_others() -> None:
    world = ConsumerWorld()
    world.enter_new("a")
    world.enter_new("b")
    world.settle()
    reply = world.beat("a", -1)
    assert (reply.error_code, reply.member_epoch) == (ErrorCode.none, -1)
    assert world.consumer_state() == "Assigning"
    world.settle()
    assert world.numbers("b") == ALL
    world.beat("b", -1)
    assert world.consumer_state() == "Empty"


def test_a_session_ends_without_heartbeats_and_not_with_them() -> None:
    world = ConsumerWorld()
    world.enter_new("a")
    world.enter_new("b")
    world.settle()
    for _ in range(3):
        world.advance(SESSION_MS - 1)
        world.settle("a") if "b" not in world.group.members else world.settle("a", "b")
    world.advance(SESSION_MS - 1)
    world.beat("a", world.group.members["a"].epoch)
    world.advance(1)
    assert list(world.group.members) == ["a"]
    world.settle()
    assert world.numbers("a") == ALL


def test_several_sessions_that_end_together_are_one_decision() -> None:
    world = ConsumerWorld()
    for member_id in "abc":
        world.enter_new(member_id)
    world.settle()
    epoch = world.group.epoch
    world.advance(SESSION_MS)
    assert world.consumer_state() == "Empty"
    assert world.group.epoch == epoch + 3
    assert not world.group.topics and not world.group.owners


def test_who_does_not_give_up_in_time_is_removed() -> None:
    world = ConsumerWorld()
    world.enter_new("a")
    world.enter_new("b")
    world.beat("a", 1)
    for _ in range(REBALANCE_MS // 5_000):
        world.advance(5_000)
        world.beat("b", 2)
        if "a" in world.group.members:
            world.beat("a", 1)
    assert list(world.group.members) == ["b"]


def test_the_rebalance_timeout_ends_with_the_confirmation() -> None:
    world = ConsumerWorld()
    world.enter_new("a")
    world.enter_new("b")
    world.beat("a", 1, owned=world.beat("a", 1).assignment)
    for _ in range(20):
        world.advance(5_000)
        world.settle()
    assert len(world.group.members) == 2


@pytest.mark.parametrize(
    ("fields", "epoch"),
    [
        ({"group_id": ""}, 0),
        ({"rebalance_timeout_ms": -1}, 0),
        ({"owned": None}, 0),
        ({"owned": {T: frozenset({1})}}, 0),
        ({"topic_names": None}, 0),
        ({"instance_id": ""}, 0),
        ({"rack_id": ""}, 0),
        ({}, -2),
        ({}, -3),
        ({"client_id": "x" * 40_000}, 0),
        ({"topic_names": ("x" * 200,) * 5_000}, 0),
    ],
)
def test_requests_that_are_not_sound_are_refused(fields: dict[str, Any], epoch: int) -> None:
    world = ConsumerWorld()
    values = {"rebalance_timeout_ms": 1, "topic_names": ("t",), "owned": {}, **fields}
    assert world.beat("a", epoch, **values).error_code is ErrorCode.invalid_request
    assert not world.shard.consumers.groups and not world.log


def test_member_ids_are_made_by_the_broker_in_v0_and_by_the_client_since() -> None:
    world = ConsumerWorld()
    assert world.enter_new("", version=1).error_code is ErrorCode.invalid_request
    reply = world.enter_new("", version=0)
    assert reply.error_code is ErrorCode.none and reply.member_id
    assert world.beat(reply.member_id, 1, version=0).error_code is ErrorCode.none


def test_an_unknown_assignor_is_not_supported() -> None:
    world = ConsumerWorld()
    reply = world.enter_new("a", server_assignor="sticky")
    assert reply.error_code is ErrorCode.unsupported_assignor
    assert reply.error_message is not None and "uniform, range" in reply.error_message


def test_members_choose_the_assignor_by_majority() -> None:
    world = ConsumerWorld()
    world.enter_new("a", "t", "u", server_assignor="range")
    world.enter_new("b", "t", "u", server_assignor="range")
    world.settle()
    assert world.assigned("a") == {T: frozenset({0, 1, 2}), U: frozenset({0})}
    assert world.assigned("b") == {T: frozenset({3, 4, 5}), U: frozenset({1})}


def test_a_full_group_takes_nobody_but_the_seat_of_a_static_member() -> None:
    world = ConsumerWorld(GroupConfig(consumer_max_size=1))
    world.enter_new("a", instance_id="i")
    assert world.enter_new("b").error_code is ErrorCode.group_max_size_reached
    world.beat("a", -2, instance_id="i")
    assert world.enter_new("b", instance_id="i").error_code is ErrorCode.none


def test_a_changed_subscription_is_a_new_epoch() -> None:
    world = ConsumerWorld()
    world.enter_new("a")
    world.beat("a", 1, topic_names=("u",))
    assert world.group.epoch == 2
    world.settle()
    assert world.assigned("a") == {U: frozenset({0, 1})}


def test_the_order_of_topics_does_not_matter() -> None:
    world = ConsumerWorld()
    world.enter_new("a", "t", "u")
    world.beat("a", 1, topic_names=("u", "t"))
    assert world.group.epoch == 1


def test_topics_that_do_not_exist_are_taken_up_when_they_do() -> None:
    world = ConsumerWorld()
    assert world.enter_new("a", "later").assignment == {}
    end = len(world.log)
    world.set_topic("later", 3, UUID(int=7))
    reply = world.beat("a", 1)
    assert len(world.log) > end
    assert reply.assignment == {UUID(int=7): frozenset({0, 1, 2})}


def test_new_partitions_are_assigned_with_the_next_heartbeat() -> None:
    world = ConsumerWorld()
    world.enter_new("a")
    world.set_topic("t", 8)
    assert world.beat("a", 1).assignment == {T: frozenset(range(8))}


def test_a_deleted_topic_is_taken_away() -> None:
    world = ConsumerWorld()
    world.enter_new("a", "t", "u")
    world.set_topic("t", 0)
    world.settle()
    assert world.assigned("a") == {U: frozenset({0, 1})}


def test_changes_of_other_topics_do_not_concern_a_group() -> None:
    world = ConsumerWorld()
    world.enter_new("a")
    end = len(world.log)
    world.set_topic("u", 9)
    assert world.beat("a", 1).member_epoch == 1
    assert len(world.log) == end


def test_a_member_is_not_told_before_its_records_are_committed() -> None:
    world = ConsumerWorld(auto_commit=False)
    joined = world.send_enter("a")
    plain = world.send_beat("a", 1)
    assert joined not in world.replies and plain not in world.replies
    world.commit()
    assert world.replies[joined].member_epoch == 1 and world.replies[plain].error_code is ErrorCode.none


def test_a_member_whose_join_could_not_be_appended_is_not_there() -> None:
    world = ConsumerWorld()
    token = world.send_enter("a", fail=ErrorCode.not_leader_or_follower)
    assert world.replies[token].error_code is ErrorCode.not_coordinator
    assert not world.shard.consumers.groups
    world.advance(SESSION_MS * 2)


def test_a_member_whose_removal_could_not_be_appended_is_waited_for_again() -> None:
    world = ConsumerWorld()
    world.enter_new("a")
    world.timer_ms += SESSION_MS
    world.run(world.shard.on_tick(world.now), fail=ErrorCode.not_enough_replicas)
    assert "a" in world.group.members
    world.advance(SESSION_MS)
    assert world.consumer_state() == "Empty"


def test_members_have_a_session_to_show_up_in_after_a_restart() -> None:
    world = ConsumerWorld()
    world.enter_new("a")
    world.enter_new("b")
    world.settle()
    world.restart()
    world.advance(SESSION_MS - 1)
    assert world.beat("a", 2).error_code is ErrorCode.none
    world.advance(1)
    assert list(world.group.members) == ["a"]


def test_topics_that_changed_while_nobody_looked_are_seen_after_a_restart() -> None:
    world = ConsumerWorld()
    world.enter_new("a")
    world.set_topic("t", 7)
    world.restart()
    assert world.beat("a", 1).assignment == {T: frozenset(range(7))}


def test_who_had_to_give_up_has_time_for_it_after_a_restart() -> None:
    world = ConsumerWorld()
    world.enter_new("a")
    world.enter_new("b")
    world.beat("a", 1)
    assert world.group.members["a"].current.state is MemberState.UNREVOKED_PARTITIONS
    world.restart()
    world.settle()
    assert len(world.group.members) == 2
    world.enter_new("c")
    world.settle()
    assert sorted(len(world.numbers(one)) for one in "abc") == [2, 2, 2]


def test_a_large_group_is_not_assigned_anew_for_each_of_many_members() -> None:
    world = ConsumerWorld()
    world.set_topic("t", 5_000)
    for number in range(20):
        world.enter_new(f"m{number:02}")
    assert world.group.epoch == 20
    assert world.group.target_epoch <= 2
    world.advance(600)
    world.settle()
    assert world.group.target_epoch == 20
    assert {len(world.numbers(f"m{number:02}")) for number in range(20)} == {250}
