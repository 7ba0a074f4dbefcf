"""Who is in sync and what is committed, as the leader sees it: rules 5 to 8 of the reliability reference."""

from collections.abc import Mapping

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.base.types import LeaderEpoch, NodeId, Offset
from penstock.partition.replica_state import ReplicaState

LEADER, A, B = NodeId(1), NodeId(2), NodeId(3)
LAG_S = 10.0
ALIVE: Mapping[NodeId, int] = {LEADER: 100, A: 200, B: 300}


def leader(isr: tuple[NodeId, ...] = (LEADER, A, B), log_end: int = 10, high_watermark: int = 10) -> ReplicaState:
    return ReplicaState(
        node_id=LEADER,
        leader_epoch=LeaderEpoch(4),
        partition_epoch=7,
        replicas=(LEADER, A, B),
        isr=isr,
        log_end=Offset(log_end),
        high_watermark=Offset(high_watermark),
        now_s=0.0,
    )


def append(state: ReplicaState, end: int, *, isr_min: int = 1) -> bool:
    state.on_appended(Offset(end))
    return state.on_safe(Offset(end), isr_min=isr_min)


def fetch(state: ReplicaState, node_id: NodeId, offset: int, now_s: float = 1.0, *, isr_min: int = 1) -> bool:
    return state.on_fetch(node_id, ALIVE[node_id], Offset(offset), now_s, isr_min=isr_min)


def decide(state: ReplicaState, *isr: NodeId, isr_min: int = 1) -> bool:
    return state.on_decided(
        partition_epoch=state.partition_epoch + 1, replicas=(LEADER, A, B), isr=isr, now_s=2.0, isr_min=isr_min
    )


def test_committed_is_what_every_in_sync_replica_has() -> None:
    state = leader()
    assert not append(state, 20)
    assert not fetch(state, A, 20)
    assert fetch(state, B, 15)
    assert state.high_watermark == 15
    assert fetch(state, B, 20)
    assert state.high_watermark == 20


def test_a_leader_counts_like_the_others_what_it_has_synced_itself() -> None:
    state = leader()
    state.on_appended(Offset(20))
    fetch(state, A, 20)
    assert not fetch(state, B, 20)
    assert state.on_safe(Offset(18), isr_min=1)
    assert state.high_watermark == 18


def test_a_follower_that_is_not_in_sync_holds_nobody_back() -> None:
    state = leader(isr=(LEADER, A))
    append(state, 20)
    assert fetch(state, A, 20)
    assert state.high_watermark == 20


def test_rule_7_a_follower_joins_once_it_has_what_is_committed_and_has_begun_with_this_epoch() -> None:
    state = leader(
        isr=(LEADER, A), log_end=30, high_watermark=12
    )  # Two epochs: 12 is committed, the new one begins at 30.
    fetch(state, A, 12)
    for offset in (11, 12, 29):
        fetch(state, B, offset)
        assert state.isr_change(1.0, lag_max_s=LAG_S, eligible_epochs=ALIVE) is None
    fetch(state, B, 30)
    change = state.isr_change(1.0, lag_max_s=LAG_S, eligible_epochs=ALIVE)
    assert change is not None
    assert (change.isr, change.leader_epoch, change.partition_epoch) == ({LEADER, A, B}, 4, 7)
    assert change.broker_epochs == {A: 200, B: 300}


@pytest.mark.parametrize("registered", [{}, {B: 301}, {B: 299}])
def test_rule_5_only_the_present_life_of_a_broker_may_join(registered: dict[NodeId, int]) -> None:
    state = leader(isr=(LEADER, A))
    fetch(state, A, 10)
    fetch(state, B, 10)
    assert state.isr_change(1.0, lag_max_s=LAG_S, eligible_epochs={A: 200, **registered}) is None
    assert state.isr_change(1.0, lag_max_s=LAG_S, eligible_epochs=ALIVE) is not None


def test_rule_6_while_a_change_is_under_way_both_sets_count() -> None:
    state = leader(isr=(LEADER, A))
    fetch(state, A, 10)
    fetch(state, B, 10)
    assert state.isr_change(1.0, lag_max_s=LAG_S, eligible_epochs=ALIVE) is not None
    append(state, 20)
    assert not fetch(state, A, 20)  # B may be in sync already.
    assert state.high_watermark == 10
    assert state.isr_change(1.0, lag_max_s=LAG_S, eligible_epochs=ALIVE) is None  # One at a time.
    state.on_refused()
    assert state.advance(isr_min=1)
    assert state.high_watermark == 20


def test_rule_6_one_who_is_being_removed_counts_until_the_controller_has_decided() -> None:
    state = leader()
    append(state, 20)
    fetch(state, A, 20, now_s=30.0)
    change = state.isr_change(30.0, lag_max_s=LAG_S, eligible_epochs=ALIVE)
    assert change is not None
    assert change.isr == {LEADER, A}
    assert state.high_watermark == 10
    assert decide(state, LEADER, A)
    assert state.high_watermark == 20


def test_rule_9_a_leader_that_was_not_in_sync_tells_the_controller_once() -> None:
    state = leader(isr=(LEADER,))
    state.is_recovering = True
    change = state.isr_change(1.0, lag_max_s=LAG_S, eligible_epochs=ALIVE)
    assert change is not None
    assert change.isr == {LEADER}
    decide(state, LEADER)
    assert state.isr_change(1.0, lag_max_s=LAG_S, eligible_epochs=ALIVE) is None


def test_a_decision_of_the_past_changes_nothing() -> None:
    state = leader()
    append(state, 20)
    fetch(state, A, 20)
    assert not state.on_decided(partition_epoch=7, replicas=(LEADER, A), isr=(LEADER, A), now_s=2.0, isr_min=1)
    assert state.isr == {LEADER, A, B}


def test_rule_8_nothing_is_committed_while_too_few_are_in_sync() -> None:
    state = leader()
    append(state, 20, isr_min=2)
    assert not decide(state, LEADER, isr_min=2)
    assert state.high_watermark == 10
    fetch(state, A, 20, isr_min=2)
    assert state.isr_change(2.0, lag_max_s=LAG_S, eligible_epochs=ALIVE) is not None
    assert not state.advance(isr_min=2)  # Asked for is not decided.
    assert decide(state, LEADER, A, isr_min=2)
    assert state.high_watermark == 20


def test_a_follower_that_keeps_up_with_a_busy_leader_stays_in_sync() -> None:
    state = leader(isr=(LEADER, A))
    for second in range(1, 60):
        end = 10 + 100 * second
        append(state, end)
        fetch(state, A, end - 100, now_s=float(second))  # Always what there was a second ago.
        assert state.isr_change(float(second), lag_max_s=LAG_S, eligible_epochs={LEADER: 100, A: 200}) is None


def test_a_follower_that_falls_further_and_further_behind_is_removed_in_time() -> None:
    state = leader(isr=(LEADER, A))
    removed_at = None
    for second in range(1, 60):
        append(state, 10 + 100 * second)
        fetch(state, A, 10 + 50 * second, now_s=float(second))
        if state.isr_change(float(second), lag_max_s=LAG_S, eligible_epochs=ALIVE) is not None:
            removed_at = second
            break
    assert removed_at is not None and LAG_S < removed_at <= LAG_S + 2


def test_a_follower_that_has_everything_may_be_silent() -> None:
    state = leader(isr=(LEADER, A))
    fetch(state, A, 10, now_s=0.0)
    assert state.isr_change(1e6, lag_max_s=LAG_S, eligible_epochs=ALIVE) is None


class Replicas(RuleBasedStateMachine):
    """Any events in any order: what is committed never goes back, and is on every replica that may be in sync."""

    def __init__(self) -> None:
        super().__init__()
        self.state = leader()
        self.now_s = 0.0
        self.safe = {LEADER: 10, A: 10, B: 10}  # What each replica really has.
        self.isr_min = 2
        self.seen = 10

    @rule(count=st.integers(1, 5))
    def the_leader_appends(self, count: int) -> None:
        self.state.on_appended(Offset(self.state.log_end + count))

    @rule()
    def the_leader_syncs(self) -> None:
        self.safe[LEADER] = self.state.log_end
        self.state.on_safe(self.state.log_end, isr_min=self.isr_min)

    @rule(node_id=st.sampled_from([A, B]), share=st.floats(0, 1))
    def a_follower_copies_and_fetches(self, node_id: NodeId, share: float) -> None:
        missing = self.state.log_end - self.safe[node_id]
        self.safe[node_id] += round(missing * share)
        fetch(self.state, node_id, self.safe[node_id], self.now_s, isr_min=self.isr_min)

    @rule(seconds=st.floats(0, 20))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @rule()
    def the_leader_asks(self) -> None:
        self.state.isr_change(self.now_s, lag_max_s=LAG_S, eligible_epochs=ALIVE)

    @precondition(lambda self: self.state.pending is not None)
    @rule(taken=st.booleans())
    def the_controller_answers(self, taken: bool) -> None:
        pending = self.state.pending
        assert pending is not None
        if taken:
            decide(self.state, *pending, isr_min=self.isr_min)
        else:
            self.state.on_refused()

    @rule(without=st.sampled_from([A, B]))
    def the_controller_removes_a_dead_broker(self, without: NodeId) -> None:
        decide(self.state, *(self.state.isr - {without}), isr_min=self.isr_min)

    @invariant()
    def committed_never_goes_back(self) -> None:
        assert self.state.high_watermark >= self.seen
        if self.state.high_watermark > self.seen:
            assert len(self.state.isr) >= self.isr_min
            for node_id in self.state.maximal_isr:
                assert self.safe[node_id] >= self.state.high_watermark
        self.seen = self.state.high_watermark

    @invariant()
    def whoever_may_be_in_sync_has_what_is_committed(self) -> None:
        for node_id in self.state.maximal_isr:
            assert self.safe[node_id] >= self.state.high_watermark


TestReplicas = Replicas.TestCase
TestReplicas.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
