from penstock.cli.live import Frame, _fitting

ROWS = [(number,) for number in range(10)]
TOTALS = [(-number,) for number in range(4)]


def test_all_rows_that_fit() -> None:
    assert _fitting(Frame(["N"], ROWS, {}, TOTALS), 10) == (ROWS, "")


def test_totals_when_all_do_not_fit() -> None:
    assert _fitting(Frame(["N"], ROWS, {}, TOTALS), 9) == (TOTALS, ", totals only: the terminal is too low")


def test_what_is_left_out_is_said() -> None:
    rows, left_out = _fitting(Frame(["N"], ROWS, {}), 7)
    assert (rows, left_out) == (ROWS[:7], ", 3 more rows: the terminal is too low")
    rows, left_out = _fitting(Frame(["N"], ROWS, {}, TOTALS), 3)
    assert (rows, left_out) == (TOTALS[:3], ", totals only, 1 more row: the terminal is too low")
