import pytest

from penstock.cli.reset_plan import Move, NothingToShift, Shift, parse_partitions, plan_reset
from penstock.cli.start_at import Kind, StartAt

P0 = ("t", 0)


def plan(target: StartAt | Shift, committed: int | None = 30, at_time: int | None = None) -> Move:
    """For a partition that holds 10 to 50."""
    (move,) = plan_reset(
        target,
        [P0],
        committed={} if committed is None else {P0: committed},
        starts={P0: 10},
        ends={P0: 50},
        at_time={} if at_time is None else {P0: at_time},
    )
    assert move[:3] == ("t", 0, committed)
    return move


@pytest.mark.parametrize(
    ("target", "at_time", "to", "clamped_from"),
    [
        (StartAt(Kind.EARLIEST), None, 10, None),
        (StartAt(Kind.LATEST), None, 50, None),
        (StartAt(Kind.OFFSET, 50), None, 50, None),
        (StartAt(Kind.OFFSET, 51), None, 50, 51),
        (StartAt(Kind.OFFSET, 9), None, 10, 9),
        (StartAt(Kind.LAST, 5), None, 45, None),
        (StartAt(Kind.LAST, 99), None, 10, None),  # All there are.
        (StartAt(Kind.TIME, 1), 20, 20, None),
        (StartAt(Kind.TIME, 1), -1, 50, None),  # No record is that new.
        (Shift(20), None, 50, None),
        (Shift(21), None, 50, 51),
        (Shift(-21), None, 10, 9),
        (Shift(0), None, 30, None),
    ],
)
def test_target(target: StartAt | Shift, at_time: int | None, to: int, clamped_from: int | None) -> None:
    move = plan(target, at_time=at_time)
    assert (move.to, move.clamped_from) == (to, clamped_from)


def test_only_a_shift_needs_something_committed() -> None:
    assert plan(StartAt(Kind.EARLIEST), committed=None).to == 10
    with pytest.raises(NothingToShift) as error:
        plan(Shift(1), committed=None)
    assert error.value.partition == P0


def test_committed_offset_that_retention_has_overtaken_is_clamped() -> None:
    assert plan(Shift(0), committed=3)[3:] == (10, 3)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("t", ("t", None)), ("t:0", ("t", [0])), ("t:2,0,2", ("t", [0, 2])), ("a.b-c", ("a.b-c", None))],
)
def test_partitions(text: str, expected: tuple[str, list[int] | None]) -> None:
    assert parse_partitions(text) == expected


@pytest.mark.parametrize("text", ["", ":0", "t:", "t:a", "t:0,", "t:-1", "t:٣"])
def test_what_is_no_list_of_partitions(text: str) -> None:
    with pytest.raises(ValueError):
        parse_partitions(text)
