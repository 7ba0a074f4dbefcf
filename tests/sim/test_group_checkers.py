"""Each checker finds its anomaly in a small history, and nothing in an honest one."""

from penstock.base.errors import ErrorCode
from penstock.base.types import TopicPartition
from penstock.sim.group_checkers import check_groups
from penstock.sim.group_history import (
    NEVER,
    Acked,
    Beat,
    Committed,
    Delivered,
    GroupEvent,
    Joined,
    Looked,
    Span,
    Synced,
)
from penstock.sim.group_requests import assigned, assignment_of

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def synced(at: int, generation: int, member: str, *partitions: TopicPartition, seat: str | None = None) -> Synced:
    return Synced(Span(at, at + 1), "g", seat or member, member, generation, frozenset(partitions))


def committed(
    at: int,
    generation: int,
    member: str,
    offset: int,
    code: ErrorCode | None = ErrorCode.none,
    *,
    seat: str | None = None,
    is_out: bool = False,
) -> Committed:
    span = Span(at, NEVER if code is None else at + 1)
    return Committed(span, "g", seat or member, member, generation, ((P0, offset),), code, is_out)


def looked(at: int, offset: int) -> Looked:
    return Looked(Span(at, at + 1), "g", ((P0, offset),))


def kinds(*events: GroupEvent) -> list[str]:
    return [violation.kind for violation in check_groups(events)]


HONEST: tuple[GroupEvent, ...] = (
    Joined(Span(1, 2), "g", 1),
    synced(3, 1, "a", P0),
    synced(5, 1, "b", P1),
    looked(6, -1),
    Acked(P0, 0, (b"x", b"y")),
    Delivered("g", P0, ((0, b"x"), (1, b"y"))),
    committed(10, 1, "a", 2),
    Beat(Span(12, 13), "g", "a", 1),
    synced(20, 2, "b", P0, P1),
    looked(22, 2),
    committed(30, 1, "a", 1, ErrorCode.unknown_member_id),
)


def test_an_honest_history_shows_nothing() -> None:
    assert kinds(*HONEST) == []


def test_a_partition_with_two_owners() -> None:
    assert kinds(synced(1, 1, "a", P0), synced(3, 1, "b", P0)) == ["two-owners"]


def test_a_static_member_that_restarts_keeps_its_seat() -> None:
    assert kinds(synced(1, 1, "a", P0, seat="s"), synced(3, 1, "b", P0, seat="s")) == []


def test_a_member_with_two_parts_in_one_generation() -> None:
    assert kinds(synced(1, 1, "a", P0), synced(3, 1, "a", P1)) == ["two-parts"]


def test_a_generation_that_goes_back() -> None:
    assert kinds(synced(1, 2, "a", P0), synced(3, 1, "b", P0)) == ["generation-went-back"]
    assert kinds(synced(1, 2, "a", P0), Joined(Span(5, 6), "g", 1)) == ["generation-went-back"]
    assert kinds(synced(1, 2, "a", P0), Beat(Span(5, 6), "g", "b", 1)) == ["generation-went-back"]


def test_what_overlaps_with_the_next_generation_may_still_be_of_the_last() -> None:
    assert kinds(synced(5, 2, "a", P0), Beat(Span(4, 9), "g", "b", 1)) == []


def test_a_commit_that_is_taken_from_a_zombie() -> None:
    assert kinds(synced(1, 2, "b", P0), committed(5, 1, "a", 1)) == ["zombie-commits"]
    assert kinds(committed(5, 1, "a", 1, is_out=True)) == ["zombie-commits"]


def test_a_zombie_that_is_refused_for_the_wrong_reason() -> None:
    new = synced(1, 2, "b", P0)
    assert kinds(new, committed(5, 1, "a", 1, ErrorCode.illegal_generation)) == ["zombie-commits"]
    assert kinds(new, committed(5, 1, "a", 1, ErrorCode.illegal_generation, seat="s")) == []
    assert kinds(new, committed(5, 1, "a", 1, ErrorCode.fenced_instance_id, seat="s")) == []
    assert kinds(new, committed(5, 1, "a", 1, ErrorCode.not_coordinator)) == []
    assert kinds(committed(5, 1, "a", 1, ErrorCode.unknown_server_error)) == ["unexpected-code"]


def test_a_committed_offset_that_goes_back() -> None:
    first = committed(1, 1, "a", 5)
    assert kinds(first, committed(3, 1, "a", 4)) == ["offset-went-back"]
    assert kinds(first, looked(3, -1)) == ["offset-went-back"]
    assert kinds(first, committed(3, 1, "a", 4, None)) == []


def test_a_committed_offset_out_of_nowhere() -> None:
    assert kinds(looked(3, 7)) == ["phantom-offset"]
    assert kinds(committed(1, 1, "a", 7, None), looked(3, 7)) == []
    assert kinds(committed(1, 1, "a", 7, ErrorCode.not_coordinator), looked(3, 7)) == []
    assert kinds(committed(1, 1, "a", 7, ErrorCode.unknown_member_id), looked(3, 7)) == ["phantom-offset"]


def test_a_record_that_is_not_delivered_or_changed() -> None:
    member, acked = synced(1, 1, "a", P0), Acked(P0, 0, (b"x", b"y"))
    assert kinds(member, acked, Delivered("g", P0, ((0, b"x"),))) == ["not-delivered"]
    both = (Delivered("g", P0, ((0, b"x"), (1, b"y"))), Delivered("g", P0, ((1, b"z"),)))
    assert kinds(member, acked, *both) == ["changed-record"]


def test_an_assignment_can_be_read_back() -> None:
    assert assigned(assignment_of([P0, P1])) == {P0, P1}
    assert assigned(assignment_of([])) == assigned(b"") == frozenset()
