"""The bucket: what passes at once, how long one waits, and that nobody gets more than the limit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.token_bucket import TokenBucket

BURST_S = 10.0

steps = st.lists(st.tuples(st.floats(0, 20), st.floats(0, 1e9)), max_size=60)
limits = st.floats(0.1, 1e9)


def test_nothing_used_is_nothing_to_wait_for() -> None:
    bucket = TokenBucket()
    assert bucket.level(1000.0, limit=1.0) == 0
    assert bucket.wait_s(1000.0, limit=1.0, burst_s=BURST_S) == 0


def test_a_burst_passes_at_once_and_more_waits() -> None:
    bucket = TokenBucket()
    assert bucket.take(1000, 50.0, limit=100.0, burst_s=BURST_S) == 0
    assert bucket.take(250, 50.0, limit=100.0, burst_s=BURST_S) == 2.5
    assert bucket.wait_s(51.0, limit=100.0, burst_s=BURST_S) == 1.5
    assert bucket.level(60.0, limit=100.0) == 250
    assert bucket.level(62.5, limit=100.0) == 0


def test_what_is_given_back_was_not_used() -> None:
    bucket = TokenBucket()
    bucket.take(500, 50.0, limit=100.0, burst_s=BURST_S)
    bucket.take(800, 51.0, limit=100.0, burst_s=BURST_S)
    bucket.give_back(800)
    assert bucket.level(51.0, limit=100.0) == 400


def test_what_was_used_stays_used_under_another_limit() -> None:
    bucket = TokenBucket()
    bucket.take(1000, 50.0, limit=100.0, burst_s=BURST_S)
    assert bucket.wait_s(50.0, limit=50.0, burst_s=BURST_S) == 10


@given(steps, limits)
def test_waiting_as_told_is_enough(steps: list[tuple[float, float]], limit: float) -> None:
    bucket, now_s = TokenBucket(), 1000.0
    for pause_s, amount in steps:
        now_s += pause_s
        told_s = bucket.take(amount, now_s, limit=limit, burst_s=BURST_S)
        assert bucket.wait_s(now_s + told_s, limit=limit, burst_s=BURST_S) <= 1e-9 * (now_s + told_s)


@given(steps, limits)
def test_who_waits_as_told_gets_the_limit_and_no_more(steps: list[tuple[float, float]], limit: float) -> None:
    """In whatever portions: over any time since the start, the burst, the limit, and the last portion."""
    bucket, now_s, used = TokenBucket(), 1000.0, 0.0
    for pause_s, portion_s in steps:
        amount = limit * portion_s / 1e7
        allowed = limit * (now_s - 1000.0 + BURST_S)
        assert used <= allowed * (1 + 1e-6)
        used += amount
        now_s += bucket.take(amount, now_s, limit=limit, burst_s=BURST_S) + pause_s


@given(st.lists(st.floats(0.01, 5), max_size=60), limits)
def test_below_the_limit_nobody_waits(pauses_s: list[float], limit: float) -> None:
    bucket, now_s = TokenBucket(), 1000.0
    for pause_s in pauses_s:
        now_s += pause_s
        assert bucket.take(limit * pause_s, now_s, limit=limit, burst_s=BURST_S) == 0


@given(st.floats(0.01, 50), limits)
def test_a_greedy_client_gets_all_of_its_limit(portion_s: float, limit: float) -> None:
    bucket, now_s, used = TokenBucket(), 1000.0, 0.0
    for _ in range(200):
        used += limit * portion_s
        now_s += bucket.take(limit * portion_s, now_s, limit=limit, burst_s=BURST_S)
    if 200 * portion_s > BURST_S:
        assert used == pytest.approx(limit * (now_s - 1000.0 + BURST_S), rel=1e-3)
    else:
        assert now_s == 1000.0
