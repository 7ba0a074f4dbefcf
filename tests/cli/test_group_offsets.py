import pytest

from penstock.cli.group_offsets import LagChange, PartitionLag, lag_change, total_lag


@pytest.mark.parametrize(
    ("before", "now", "elapsed_s", "expected"),
    [
        (100, 80, 2.0, LagChange(-10.0, 8.0)),
        (100, 100, 2.0, LagChange(0.0, None)),
        (100, 120, 2.0, LagChange(10.0, None)),
        (20, 0, 2.0, LagChange(-10.0, 0.0)),
        (0, 0, 2.0, LagChange(0.0, 0.0)),
        (100, 100, None, LagChange(None, None)),  # The first look.
        (0, 0, None, LagChange(None, 0.0)),
        (None, 5, 2.0, LagChange(None, None)),  # The first commit.
        (5, None, 2.0, LagChange(None, None)),  # The topic was deleted.
    ],
)
def test_change_and_time_left(
    before: int | None, now: int | None, elapsed_s: float | None, expected: LagChange
) -> None:
    assert lag_change(before, now, elapsed_s) == expected


def test_total_counts_what_is_known() -> None:
    lags = [PartitionLag("t", 0, 4, 10), PartitionLag("t", 1, None, 10), PartitionLag("t", 2, 4, None)]
    assert [lag.lag for lag in lags] == [6, None, None]
    assert total_lag(lags) == 6
