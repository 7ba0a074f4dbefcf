"""A replay goes as fast as asked for, all the way to the end, and never back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark import pace
from penstock.spark.pace import BURST_S, RealTime, RecordsPerSecond, Speed, Unbounded, read_speed

partitions = st.dictionaries(
    st.tuples(st.sampled_from(["orders", "payments"]), st.integers(0, 3)), st.integers(0, 2000), min_size=1
)
steps_s = st.lists(st.floats(0.1, 30), min_size=1, max_size=30)


@given(partitions, st.floats(0.5, 500), steps_s)
def test_records_per_second(ends, rate, steps):
    chosen = RecordsPerSecond(rate, step=10_000)
    position, now, previous = dict.fromkeys(ends, 0), 0.0, None
    for step in [0.0, *steps]:
        now += step
        reached = chosen.due(position, ends, now)
        assert all(position[key] <= reached[key] <= ends[key] for key in ends)
        # Each partition with something left moves by at least one, though the rate be lower: that is made up for later.
        assert sum(reached.values()) <= rate * now + len(ends) + 1
        if previous is not None:
            assert sum(reached.values()) - sum(position.values()) <= max(rate * BURST_S, 1) + len(ends)
        position, previous = reached, now
    for _ in range(100_000):
        if position == ends:
            break
        now += 1.0
        position = chosen.due(position, ends, now)
    assert position == ends


@given(partitions, st.integers(1, 500))
def test_without_a_pace_only_the_batch_is_bounded(ends, step):
    position = dict.fromkeys(ends, 0)
    while position != ends:
        reached = Unbounded(step).due(position, ends, 0.0)
        assert pace.is_further(position, reached)
        assert sum(reached.values()) - sum(position.values()) <= step + len(ends)
        position = reached


histories = st.lists(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 100_000)), max_size=20), min_size=1, max_size=3
)


def records_of(history):
    """By partition the records as (offset, timestamp); and where they end. `history` has the gap before each."""
    records, ends = {}, {}
    for number, rows in enumerate(history):
        offset, found = -1, []
        for gap, timestamp in rows:
            offset += gap
            found.append((offset, timestamp))
        records["orders", number], ends["orders", number] = found, offset + 1
    return records, ends


def upcoming_of(records, window):
    def upcoming(key, start, end):
        known = min(end, start + window)
        rows = [row for row in records[key] if start <= row[0] < known]
        return [offset for offset, _ in rows], [timestamp for _, timestamp in rows], known

    return upcoming


@given(histories, st.floats(0.1, 100), steps_s)
def test_as_they_came(history, speed, steps):
    records, ends = records_of(history)
    chosen = RealTime(speed, upcoming_of(records, 1000))
    first_ms = min((rows[0][1] for rows in records.values() if rows), default=0)
    position, now = dict.fromkeys(ends, 0), 0.0
    for step in [0.0, *steps]:
        now += step
        now_ms = first_ms + now * 1000 * speed
        reached = chosen.due(position, ends, now)
        for key in ends:
            assert position[key] <= reached[key] <= ends[key]
            for offset, timestamp in records[key]:
                if position[key] <= offset < reached[key]:
                    assert timestamp <= now_ms
                if offset == reached[key]:
                    assert timestamp > now_ms  # The next waits with good reason.
        position = reached


@given(histories, st.integers(1, 10))
def test_as_they_came_whatever_is_known_at_a_time(history, window):
    records, ends = records_of(history)
    chosen = RealTime(1.0, upcoming_of(records, window))
    position = dict.fromkeys(ends, 0)
    for number in range(100):
        position = chosen.due(position, ends, number * 1000.0)
    assert position == ends


def test_what_a_speed_is():
    assert read_speed("max") == Speed()
    assert read_speed(" 1000/s") == Speed(records_per_second=1000.0)
    assert read_speed("0.5X") == Speed(multiple=0.5)
    for text in ("", "fast", "0x", "-1/s", "10", "nan/s"):
        with pytest.raises(ValueError, match="1000/s"):
            read_speed(text)
