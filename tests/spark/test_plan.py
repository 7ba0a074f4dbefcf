"""Every offset of a query is read by exactly one task, and a limited batch takes from all partitions."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.spark import plan
from penstock.spark.plan import OffsetRange

partition_keys = st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 9))
offsets = st.integers(0, 2**62)
sizes = st.one_of(st.integers(0, 50), st.integers(0, 2**40))


@st.composite
def bounds(draw):
    start = draw(st.dictionaries(partition_keys, offsets, max_size=8))
    return start, {key: offset + draw(sizes) for key, offset in start.items()}


@given(bounds(), st.none() | st.integers(1, 40), st.none() | st.integers(1, 40))
def test_the_parts_cover_the_ranges_without_gap_or_overlap(start_and_end, parts_min, parts_wanted):
    start, end = start_and_end
    whole = list(plan.ranges(start, end))
    largest = max((each.size for each in whole), default=0)
    records_max = None if parts_wanted is None else largest // parts_wanted + 1  # Else there were 2**40 parts.
    parts = plan.split(whole, parts_min=parts_min, records_max=records_max)
    for key, first in start.items():
        mine = sorted(part for part in parts if (part.topic, part.partition) == key)
        position = first
        for part in mine:
            assert part.start == position < part.end
            position = part.end
        assert position == end[key]
    assert records_max is None or all(part.size <= records_max for part in parts)


@given(bounds(), st.integers(1, 40))
def test_about_as_many_parts_as_asked_for(start_and_end, parts_min):
    whole = list(plan.ranges(*start_and_end))
    parts = plan.split(whole, parts_min=parts_min, records_max=None)
    assert len(parts) >= min(len(whole), parts_min)
    assert len(parts) <= max(len(whole), parts_min) + len(whole)


def test_without_options_a_partition_is_a_part():
    whole = [OffsetRange("a", 0, 5, 10**9), OffsetRange("a", 1, 0, 1)]
    assert plan.split(whole, parts_min=None, records_max=None) == whole


def test_the_large_partition_is_cut_and_the_small_one_is_not():
    parts = plan.split([OffsetRange("a", 0, 0, 900), OffsetRange("a", 1, 0, 9)], parts_min=4, records_max=None)
    assert [part.size for part in parts] == [300, 300, 300, 9]


@given(bounds(), st.integers(1, 2**40))
def test_a_limited_batch_starves_nobody_and_ends_within_the_limit(start_and_end, rows_max):
    start, latest = start_and_end
    end = plan.admit(start, latest, rows_max)
    waiting = [key for key in latest if latest[key] > start[key]]
    assert end.keys() == latest.keys()
    assert all(start[key] < end[key] <= latest[key] for key in waiting)
    assert sum(end[key] - start[key] for key in waiting) <= rows_max + len(waiting)


@given(bounds(), st.integers(1, 2**40))
def test_limited_batches_reach_the_end(start_and_end, rows_max):
    position, latest = start_and_end
    steps = 0
    while position != latest and steps < 100:
        rows_max *= 2  # Else it could take 2**40 of them.
        position, steps = plan.admit(position, latest, rows_max), steps + 1
    assert position == latest


@given(st.dictionaries(partition_keys, offsets))
def test_offsets_survive_the_checkpoint(known):
    text = plan.to_json(known)
    assert plan.from_json(text) == known
    assert list(text) == sorted(text)
