"""Decisions survive their note, and say exactly which transactions count."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.spark import sink_log

attempts = st.dictionaries(st.integers(0, 300), st.integers(0, 3), min_size=1).map(
    lambda drawn: [(task, drawn.get(task, 0)) for task in range(max(drawn) + 1)]
)


@given(attempts, st.integers(0, 2**40), st.integers(0, sink_log.SLOTS - 1))
def test_a_decision_is_read_as_it_was_made(drawn, batch_id, slot):
    decision = sink_log.decide(None, "query", batch_id, slot, drawn)
    assert sink_log.last_decision([(decision.number, decision.metadata())]) == decision
    names = {sink_log.transactional_id("sink", slot, task, attempt) for task, attempt in drawn}
    assert decision.transactional_ids("sink") == names
    assert all(name.startswith(sink_log.prefix("sink")) for name in names)


def test_a_decision_of_many_tasks_fits_a_note():
    decision = sink_log.decide(None, "8c5fb8a0-0d9f-4f0c-9c3c-6d8a2d2e7a10", 10**9, 31, [(n, 0) for n in range(10_000)])
    assert len(decision.metadata()) < 200


@given(st.lists(st.booleans(), max_size=200))
def test_ids_in_use_are_never_those_of_the_decided_or_of_the_last_batch(steps):
    """Each step opens a gate, and decides or does not."""
    last, before = None, None
    for epoch, decides in enumerate(steps):
        slot = sink_log.next_slot(epoch, last)
        assert 0 <= slot < sink_log.SLOTS
        assert slot != before
        assert last is None or slot != last.slot
        if decides:
            last = sink_log.decide(last, "query", epoch, slot, [(0, 0)])
        before = slot


def test_the_newest_note_counts_wherever_it_is():
    first = sink_log.decide(None, "query", 0, 1, [(0, 0)])
    second = sink_log.decide(first, "query", 1, 2, [(0, 0)])
    notes = [(each.number, each.metadata()) for each in (second, first)]
    assert sink_log.last_decision(notes) == second
    assert sink_log.last_decision([]) is None


def test_one_sinks_ids_are_not_anothers():
    name = sink_log.transactional_id("a-b", 0, 0, 0)
    assert not name.startswith(sink_log.prefix("a"))
    assert not sink_log.gate_id("x").startswith(sink_log.prefix("gate"))


def test_only_the_querys_own_batches_are_covered():
    decision = sink_log.decide(None, "query", 5, 0, [(0, 0)])
    assert decision.covers("query", 5) and decision.covers("query", 4)
    assert not decision.covers("query", 6)
    assert not decision.covers("its checkpoint was deleted", 0)
