"""Rates over windows: what is remembered, what is forgotten, and that waiting for the told time is enough."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.base.rate import Rate, Windows

KAFKA = Windows()

steps = st.lists(st.tuples(st.floats(0, 5), st.floats(0, 1e9)), max_size=60)
limits = st.floats(0.1, 1e9)


def test_nothing_recorded_is_no_rate() -> None:
    assert Rate(KAFKA).total(1000.0) == 0
    assert Rate(KAFKA).throttle_s(1, 1000.0) == 0


def test_ten_windows_worth_passes_at_once_and_more_waits() -> None:
    rate = Rate(KAFKA)
    rate.record(1000, 50.0)
    assert rate.throttle_s(100, 50.0) == 0
    rate.record(250, 50.0)
    assert rate.throttle_s(100, 50.0) == 2.5


def test_what_is_older_than_the_windows_is_forgotten() -> None:
    rate = Rate(KAFKA)
    rate.record(7, 50.9)
    assert rate.total(60.99) == 7
    assert rate.total(61.0) == 0


@given(steps, limits)
def test_after_the_wait_and_one_round_of_windows_nobody_waits(steps: list[tuple[float, float]], limit: float) -> None:
    """The wait alone may be too short: windows leave as a whole, also in Kafka."""
    rate, now_s = Rate(KAFKA), 1000.0
    for pause_s, amount in steps:
        now_s += pause_s
        rate.record(amount, now_s)
    wait_s = rate.throttle_s(limit, now_s)
    assert rate.throttle_s(limit, now_s + max(wait_s, KAFKA.number * KAFKA.seconds)) == 0


@given(steps, limits)
def test_the_total_is_that_of_a_list_of_everything(steps: list[tuple[float, float]], limit: float) -> None:
    rate, now_s, everything = Rate(KAFKA), 1000.0, []
    for pause_s, amount in steps:
        now_s += pause_s
        rate.record(amount, now_s)
        everything.append((int(now_s), amount))
        expected = sum(amount for second, amount in everything if second > int(now_s) - KAFKA.number)
        assert abs(rate.total(now_s) - expected) <= 1e-9 * max(1.0, expected)


@given(st.floats(0, 1), st.floats(10, 1e6))
def test_who_waits_as_told_stays_at_the_limit(start_s: float, limit: float) -> None:
    """A greedy client: sends a tenth of a second's worth, waits as told, and sends again."""
    rate, now_s, sent = Rate(KAFKA), start_s, 0.0
    for _ in range(400):
        rate.record(limit / 10, now_s)
        sent += limit / 10
        now_s += rate.throttle_s(limit, now_s)
    allowed_at_once = limit * (KAFKA.number - 1) * KAFKA.seconds
    assert allowed_at_once + 0.9 * limit * (now_s - start_s - 1) <= sent
    assert sent <= allowed_at_once + limit * (now_s - start_s + 1.2)


@given(steps)
def test_memory_is_one_sum_for_each_window(steps: list[tuple[float, float]]) -> None:
    rate, now_s = Rate(KAFKA), 0.0
    for pause_s, amount in steps * 3:
        now_s += pause_s
        rate.record(amount, now_s)
        assert len(rate._sums) <= KAFKA.number
