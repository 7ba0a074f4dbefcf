"""Which limit of the machine a figure is held against, and how much of it was reached."""

import pytest
from bench.ceiling import Ceiling

CEILING = Ceiling(
    loopback_mb_per_s=2_000,
    write_mb_per_s=1_000,
    copy_mb_per_s=10_000,
    checksum_mb_per_s=10_000,
    syncs_per_s=500,
    round_trips_per_s=20_000,
)


@pytest.mark.parametrize(
    ("figure", "value", "limit", "share"),
    [
        ("produce MB/s", 250, "write", 0.25),
        ("consume MB/s", 500, "loopback", 0.25),
        ("synced MB/s", 8.192, "fdatasync", 1.0),
        ("requests/s", 5_000, "round trips", 0.25),
        ("p50 ms", 0.5, "round trip", 0.1),
        ("mean ms", 0.5, "2 round trips", 0.2),
    ],
)
def test_a_figure_has_its_fitting_limit(figure, value, limit, share):
    fitting = CEILING.fitting(figure)
    assert fitting and fitting.name == limit
    assert CEILING.share(figure, value) == pytest.approx(share)


def test_producing_is_held_against_whatever_is_slower():
    fitting = CEILING._replace(loopback_mb_per_s=100).fitting("produce MB/s")
    assert fitting == ("loopback", 100)


def test_cost_and_memory_have_no_limit():
    assert CEILING.fitting("CPU s per GB") is None
    assert CEILING.share("peak MB", 100) is None


def test_a_latency_too_short_to_tell_has_no_share():
    assert CEILING.share("p50 ms", 0) is None
