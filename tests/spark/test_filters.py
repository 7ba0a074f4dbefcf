"""A row that meets the filters is never left out, and the filters that are taken over leave out all others."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from penstock.spark.filters import Narrowed

MEANING = {
    EqualTo: lambda value, bound: value == bound,
    GreaterThan: lambda value, bound: value > bound,
    GreaterThanOrEqual: lambda value, bound: value >= bound,
    LessThan: lambda value, bound: value < bound,
    LessThanOrEqual: lambda value, bound: value <= bound,
    In: lambda value, bound: value in bound,
    StringStartsWith: lambda value, bound: value.startswith(bound),
}
topics = st.sampled_from(["orders", "order", "payments"])
small = st.integers(-2, 6)
comparisons = st.sampled_from([EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual])
conditions = st.one_of(
    st.builds(EqualTo, st.just(("topic",)), topics),
    st.builds(In, st.just(("topic",)), st.lists(topics).map(tuple)),
    st.builds(StringStartsWith, st.just(("topic",)), st.sampled_from(["", "ord", "orders"])),
    st.builds(In, st.just(("partition",)), st.lists(small).map(tuple)),
    st.builds(
        lambda kind, column, value: kind((column,), value), comparisons, st.sampled_from(["partition", "offset"]), small
    ),
)


@given(st.lists(conditions, max_size=5), topics, st.integers(0, 5), st.integers(0, 5))
def test_topic_partition_and_offset_are_met_exactly(filters, topic, partition, offset):
    row = {"topic": topic, "partition": partition, "offset": offset}
    narrowed, left = Narrowed.by(filters)
    is_read = narrowed.has_partition(topic, partition) and narrowed.offset_min <= offset < narrowed.offset_end
    assert left == []
    assert is_read == all(MEANING[type(each)](row[each.attribute[0]], each.value) for each in filters)


def test_a_time_gives_the_start_and_spark_looks_again():
    filters = [GreaterThanOrEqual(("timestamp",), datetime(2026, 1, 1, 0, 0, 0, 1500, tzinfo=UTC))]
    narrowed, left = Narrowed.by(filters)
    assert narrowed.timestamp_ms_min == 1_767_225_600_001
    assert left == filters


def test_the_rest_is_sparks():
    filters = [EqualTo(("value",), b"x"), Not(EqualTo(("partition",), 3)), IsNotNull(("key",)), IsNotNull(("topic",))]
    narrowed, left = Narrowed.by(filters)
    assert narrowed == Narrowed()
    assert left == filters[:3]
