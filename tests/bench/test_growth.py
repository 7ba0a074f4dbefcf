"""How the cost at each step is told."""

from bench.growth import growth
from bench.workloads import is_lower_better


def test_growth_is_the_last_step_by_the_first():
    figures = growth("CPU µs", [1, 10, 1_000], [4.0, 3.0, 5.0])
    assert figures == {"CPU µs, 1": 4.0, "CPU µs, 10": 3.0, "CPU µs, 1,000": 5.0, "CPU µs, 1,000 by 1": 1.25}


def test_more_is_better_only_of_what_is_counted_by_the_second():
    assert not is_lower_better("produce MB/s")
    assert not is_lower_better("deliveries/s")
    assert all(map(is_lower_better, growth("CPU µs", [1, 10], [1.0, 1.0])))
