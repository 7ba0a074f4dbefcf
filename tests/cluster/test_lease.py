"""When the holder of a lease must stop, against a model of how ZooKeeper ends sessions."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from penstock.cluster.lease import LeaseTerm

SECONDS = st.floats(0, 5, allow_nan=False)


def test_nothing_may_be_done_before_the_first_answer() -> None:
    assert not LeaseTerm(6).may_act(-1e9)


def test_a_lease_runs_from_when_the_heartbeat_was_sent() -> None:
    term = LeaseTerm(6)
    term.on_heartbeat_answered(10)
    assert term.may_act_until == 14
    assert (term.may_act(13.9), term.may_act(14)) == (True, False)


def test_an_answer_that_was_overtaken_takes_nothing_back() -> None:
    term = LeaseTerm(6)
    term.on_heartbeat_answered(10)
    term.on_heartbeat_answered(8)
    assert term.may_act_until == 14


def test_a_lease_that_is_lost_stays_lost() -> None:
    term = LeaseTerm(6)
    term.on_heartbeat_answered(10)
    term.on_lost()
    term.on_heartbeat_answered(11)
    assert (term.may_act_until, term.is_lost) == (-inf, True)


@given(
    ticks_per_session=st.integers(2, 20),
    heartbeats=st.lists(
        st.tuples(
            SECONDS,  # After the one before it was sent.
            SECONDS,  # How long it takes to the server.
            st.floats(0, 1),  # How long, in half ticks, until the server tells the leader.
            st.booleans(),  # Whether the answer comes back.
        ),
        max_size=20,
    ),
)
def test_reliability_rule_3_a_leader_stops_before_its_session_can_end(
    ticks_per_session: int, heartbeats: list[tuple[float, float, float, bool]]
) -> None:
    """The ensemble's leader counts from the last report; a report is of what was heard half a tick ago or later."""
    tick = 0.5
    timeout = ticks_per_session * tick
    term = LeaseTerm(timeout)
    now = leader_heard_at = 0.0
    for pause, way, report, is_answered in heartbeats:
        now += pause
        if leader_heard_at and now > leader_heard_at + timeout:
            break  # The session is over: no heartbeat of it is answered any more.
        if is_answered:
            # The answer passed through the leader, behind all reports that were under way when it was sent: the latest
            # thing that is reported was heard at most half a tick before.
            term.on_heartbeat_answered(now)
            leader_heard_at = max(leader_heard_at, now + way - report * tick / 2)
        session_ends_at = leader_heard_at + timeout
        assert term.may_act_until < session_ends_at


@given(st.lists(st.floats(0, 1000), max_size=30))
def test_the_end_never_comes_nearer(sent: list[float]) -> None:
    term = LeaseTerm(3)
    last = -inf
    for at in sent:
        term.on_heartbeat_answered(at)
        assert term.may_act_until >= last
        last = term.may_act_until
