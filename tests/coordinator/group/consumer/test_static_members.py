"""Static members of the new protocol: a seat that outlives its process."""

from penstock.base.errors import ErrorCode

from .support import SESSION_MS, ConsumerWorld, T

ALL = frozenset(range(6))


def test_who_comes_back_has_what_it_had_without_a_new_epoch() -> None:
    world = ConsumerWorld()
    world.enter_new("a", instance_id="i")
    world.enter_new("b", instance_id="j")
    world.settle()
    had = world.assigned("a")
    reply = world.beat("a", -2, instance_id="i")
    assert (reply.error_code, reply.member_epoch) == (ErrorCode.none, -2)
    back = world.enter_new("a2", instance_id="i")
    assert (back.member_epoch, back.assignment) == (2, had)
    assert world.group.epoch == 2
    assert world.numbers("b") == ALL - had[T]


def test_a_seat_that_was_not_released_is_not_given_to_another() -> None:
    world = ConsumerWorld()
    world.enter_new("a", instance_id="i")
    assert world.enter_new("b", instance_id="i").error_code is ErrorCode.unreleased_instance_id
    assert world.enter_new("a", instance_id="i").error_code is ErrorCode.none, "its own first request, again"


def test_a_seat_is_given_away_when_its_session_ended() -> None:
    world = ConsumerWorld()
    world.enter_new("a", instance_id="i")
    world.beat("a", -2, instance_id="i")
    world.advance(SESSION_MS)
    assert world.consumer_state() == "Empty"
    assert world.enter_new("b", instance_id="i").error_code is ErrorCode.none


def test_who_lost_its_seat_is_fenced() -> None:
    world = ConsumerWorld()
    world.enter_new("a", instance_id="i")
    world.beat("a", -2, instance_id="i")
    assert world.beat("a", 1, instance_id="i").error_code is ErrorCode.fenced_member_epoch
    world.enter_new("b", instance_id="i")
    assert world.beat("a", 1, instance_id="i").error_code is ErrorCode.fenced_instance_id
    assert world.beat("a", 1, instance_id="k").error_code is ErrorCode.unknown_member_id
    assert world.beat("a", 1).error_code is ErrorCode.unknown_member_id


def test_a_static_member_can_leave_for_good() -> None:
    world = ConsumerWorld()
    world.enter_new("a", instance_id="i")
    world.beat("a", -1, instance_id="i")
    assert world.consumer_state() == "Empty"


def test_seats_survive_a_restart() -> None:
    world = ConsumerWorld()
    world.enter_new("a", instance_id="i")
    world.beat("a", -2, instance_id="i")
    world.restart()
    assert world.enter_new("b", instance_id="i").assignment == {T: ALL}
