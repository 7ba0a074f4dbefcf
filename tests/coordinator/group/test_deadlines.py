"""Deadlines against the simplest thing that could work: a dict and a sort."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.coordinator.group.deadlines import COMPACT_FROM, Deadlines, Key, Kind

keys = st.sampled_from([Key(Kind.SESSION, "g", str(number)) for number in range(6)])
steps = st.one_of(
    st.tuples(st.just("set"), keys, st.integers(0, 50)),
    st.tuples(st.just("cancel"), keys, st.just(0)),
    st.tuples(st.just("pop"), keys, st.integers(0, 50)),
)


@given(st.lists(steps, max_size=300))
def test_the_earliest_deadline_is_next_and_fires_once(script: list[tuple[str, Key, int]]) -> None:
    deadlines, model = Deadlines(), dict[Key, int]()
    for step, key, at_ms in script:
        if step == "set":
            deadlines.set(key, at_ms)
            model[key] = at_ms
        elif step == "cancel":
            deadlines.cancel(key)
            model.pop(key, None)
        else:
            earliest = min(model.values(), default=None)
            popped = deadlines.pop_due(at_ms)
            if popped is None:
                assert earliest is None or earliest > at_ms
            else:
                assert model.pop(popped) == earliest
        assert deadlines.next_ms == min(model.values(), default=None)
        assert len(deadlines) == len(model)


def test_deadlines_that_were_cancelled_are_not_kept() -> None:
    deadlines = Deadlines()
    for number in range(10_000):
        key = Key(Kind.SESSION, "g", str(number))
        deadlines.set(key, 1_000_000)
        deadlines.cancel(key)
    assert len(deadlines._heap) <= COMPACT_FROM + 1
