"""Steps: results and errors of what is done elsewhere come back, and what is returned is given."""

import pytest

from penstock.base.steps import Steps, run_now


def test_results_come_back_and_turns_give_nothing() -> None:
    def work() -> Steps[list[object]]:
        first = yield lambda: 1
        nothing = yield None
        second = yield lambda: first + 1
        return [first, nothing, second]

    assert run_now(work()) == [1, None, 2]


def test_an_error_is_raised_where_the_step_was_asked_for() -> None:
    def fail() -> None:
        raise ValueError("no")

    def work(handles: bool) -> Steps[str]:
        try:
            yield fail
        except ValueError as error:
            if not handles:
                raise KeyError from error
        return (yield lambda: "handled")

    assert run_now(work(handles=True)) == "handled"
    with pytest.raises(KeyError):
        run_now(work(handles=False))
