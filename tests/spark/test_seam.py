"""Every record that was ever in the topic is in the lake or read live, none in both; or there is an error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.seam import Gap, live_starts

KEY = ("orders", 0)


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
def test_lake_and_live_are_all_and_do_not_overlap(lake_end, earliest, length):
    latest = earliest + length
    try:
        start = live_starts({KEY: lake_end}, {KEY: earliest}, {KEY: latest})[KEY]
    except Gap:
        assert not earliest <= lake_end <= latest
        return
    in_lake, live = set(range(lake_end)), set(range(start, latest))
    assert not in_lake & live
    assert in_lake | live == set(range(latest))


def test_a_new_partition_is_read_from_its_beginning_and_one_that_is_gone_is_in_the_lake_only():
    ends = {("orders", 0): 7, ("orders", 2): 9}
    assert live_starts(ends, {("orders", 0): 3, ("orders", 1): 5}, {("orders", 0): 8, ("orders", 1): 5}) == {
        ("orders", 0): 7,
        ("orders", 1): 5,
    }


def test_what_was_deleted_before_it_was_archived_is_named():
    with pytest.raises(Gap, match="orders-0: the lake ends at offset 5, and the topic begins at 8"):
        live_starts({KEY: 5}, {KEY: 8}, {KEY: 10})
    with pytest.raises(Gap, match="made anew"):
        live_starts({KEY: 5}, {KEY: 0}, {KEY: 3})
