"""Rates of new connections: who is served, who waits, who is turned away, and what is remembered."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.base.config import BrokerConfig
from penstock.server.connection_rates import IPS_MAX, SERVED_AT_ONCE, ConnectionRates

NOW_S = 1000.0


def test_without_a_limit_all_are_served_at_once_and_nothing_is_remembered() -> None:
    rates = ConnectionRates(BrokerConfig())
    assert {rates.on_connection(f"10.0.0.{number % 256}", NOW_S) for number in range(5000)} == {SERVED_AT_ONCE}
    assert not rates._by_ip


def test_above_the_rate_of_all_connections_wait_for_their_turn() -> None:
    rates = ConnectionRates(BrokerConfig(max_connection_creation_rate=20))
    holds_s = [rates.on_connection("10.0.0.1", NOW_S) for _ in range(260)]
    assert set(holds_s[:200]) == {SERVED_AT_ONCE}
    for number, (hold_s, is_refused) in enumerate(holds_s[200:], 1):
        assert abs(hold_s - number / 20) < 1e-9
        assert not is_refused


@given(st.lists(st.floats(0, 0.2), min_size=300, max_size=300), st.integers(1, 100))
def test_connections_are_taken_up_at_the_rate(pauses_s: list[float], limit: int) -> None:
    """However they come: in their order, and never more than the rate allows, with ten seconds of it in advance."""
    rates = ConnectionRates(BrokerConfig(max_connection_creation_rate=limit))
    now_s, served_s = NOW_S, []
    for pause_s in pauses_s:
        now_s += pause_s
        served_s.append(now_s + rates.on_connection("10.0.0.1", now_s).hold_s)
    assert served_s == sorted(served_s)
    for first in range(0, len(served_s), 10):
        for count, at_s in enumerate(served_s[first:], 1):
            assert count <= limit * (at_s - served_s[first] + 10) + 1.001


def test_above_the_rate_of_an_address_connections_are_turned_away_and_do_not_count() -> None:
    rates = ConnectionRates(BrokerConfig())
    rates._ip_limits["10.0.0.1"] = 2.0
    assert [rates.on_connection("10.0.0.1", NOW_S) for _ in range(20)] == [SERVED_AT_ONCE] * 20
    for _ in range(1000):
        hold_s, is_refused = rates.on_connection("10.0.0.1", NOW_S)
        assert is_refused
        assert 0 < hold_s <= 1
    assert rates.on_connection("::ffff:10.0.0.1", NOW_S).is_refused
    assert rates.on_connection("10.0.0.2", NOW_S) == SERVED_AT_ONCE
    assert rates.on_connection("10.0.0.1", NOW_S + 0.51) == SERVED_AT_ONCE


def test_addresses_are_remembered_up_to_a_limit() -> None:
    rates = ConnectionRates(BrokerConfig())
    rates._ip_limit = 1.0
    for number in range(IPS_MAX + 100):
        rates.on_connection(f"address {number}", NOW_S)
        rates.on_connection("loud", NOW_S)
    assert len(rates._by_ip) == IPS_MAX
    assert "loud" in rates._by_ip
