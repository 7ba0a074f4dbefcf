"""What is read out of the words of Kafka's tools."""

import pytest
from bench.java_load import RoundTrips, check_count


def test_round_trips_are_read_from_the_last_lines():
    out = "0\t3.5\n1000\t0.9\nAvg latency: 1.2345 ms\nPercentiles: 50th = 1, 99th = 2, 99.9th = 5\n"
    assert RoundTrips.parse(out) == (1.2345, 2.0, 5.0)


def test_a_record_that_is_missing_from_the_count_fails_the_workload():
    check_count(10, 10, "10 records sent")
    with pytest.raises(RuntimeError, match="1 of 10 records failed"):
        check_count(9, 10, "9 records sent")
