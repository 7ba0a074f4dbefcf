from penstock.base.topic_config import TopicConfig
from penstock.base.types import Offset
from penstock.storage.retention import CLOCK_JUMP_MS, JumpGuard, SegmentAge, expired_count

NOW_MS = 1_700_000_000_000


def ages(*sizes_and_ages_ms):
    """Segments of ten records each, with their size and the age of their newest record."""
    return [
        SegmentAge(Offset(number * 10), Offset(number * 10 + 10), size, NOW_MS - age_ms, NOW_MS)
        for number, (size, age_ms) in enumerate(sizes_and_ages_ms)
    ]


def count(segments, *, log_start=0, high_watermark=10_000, policy=("delete",), **config):
    options = {"retention_ms": -1, "cleanup_policy": policy, **config}
    return expired_count(
        segments,
        TopicConfig(**options),
        now_ms=NOW_MS,
        log_start=Offset(log_start),
        high_watermark=Offset(high_watermark),
    )


def test_segments_whose_newest_record_is_too_old_go():
    segments = ages((100, 3000), (100, 2000), (100, 1000), (100, 0))
    assert count(segments, retention_ms=1500) == 2
    assert count(segments, retention_ms=2000) == 1
    assert count(segments, retention_ms=-1) == 0


def test_a_newer_segment_keeps_the_older_ones_behind_it():
    assert count(ages((100, 10), (100, 9000), (100, 0)), retention_ms=1000) == 0


def test_the_active_segment_goes_when_all_of_it_is_too_old():
    assert count(ages((100, 3000), (100, 2000)), retention_ms=1000) == 2


def test_an_empty_active_segment_stays():
    assert count(ages((100, 3000), (0, 3000)), retention_ms=1000) == 1


def test_a_segment_that_compaction_emptied_does_not_keep_the_others():
    assert count(ages((0, 9000), (100, 9000), (100, 0)), retention_ms=1000) == 2


def test_a_segment_without_timestamps_counts_from_its_file():
    segment = SegmentAge(Offset(0), Offset(10), 100, -1, NOW_MS - 500)
    active = SegmentAge(Offset(10), Offset(20), 100, NOW_MS, NOW_MS)
    assert count([segment, active], retention_ms=499) == 1
    assert count([segment, active], retention_ms=500) == 0


def test_size_deletes_only_what_is_wholly_too_much():
    segments = ages((100, 0), (100, 0), (100, 0), (100, 0))
    assert count(segments, retention_bytes=400) == 0
    assert count(segments, retention_bytes=301) == 0
    assert count(segments, retention_bytes=300) == 1
    assert count(segments, retention_bytes=150) == 2
    assert count(segments, retention_bytes=0) == 3  # The active one is never too much.


def test_segments_below_the_start_go_whatever_the_policy():
    segments = ages((100, 0), (100, 0), (100, 0))
    for policy in (("delete",), ("compact",), ()):
        assert count(segments, log_start=9, policy=policy) == 0
        assert count(segments, log_start=10, policy=policy) == 1
        assert count(segments, log_start=30, policy=policy) == 2


def test_only_the_delete_policy_deletes_by_age_and_size():
    segments = ages((100, 9000), (100, 9000), (100, 0))
    options = {"retention_ms": 1000, "retention_bytes": 0}
    assert count(segments, policy=("compact",), **options) == 0
    assert count(segments, policy=(), **options) == 0
    assert count(segments, policy=("compact", "delete"), **options) == 2


def test_nothing_above_the_high_watermark_goes():
    segments = ages((100, 9000), (100, 9000), (100, 9000))
    assert count(segments, retention_ms=1000, high_watermark=25) == 2
    assert count(segments, retention_ms=1000, high_watermark=19) == 1
    assert count(segments, retention_ms=1000, high_watermark=0) == 0


def test_a_clock_that_jumped_is_noticed_once():
    for jump_ms in (CLOCK_JUMP_MS + 1, -CLOCK_JUMP_MS - 1, 10 * 365 * 86_400_000):
        guard = JumpGuard()
        assert not guard.has_jumped(NOW_MS, 0.0)
        assert not guard.has_jumped(NOW_MS + 300_000, 300.0)
        assert guard.has_jumped(NOW_MS + 600_000 + jump_ms, 600.0)
        assert not guard.has_jumped(NOW_MS + 900_000 + jump_ms, 900.0)


def test_time_that_passes_is_no_jump():
    guard = JumpGuard()
    assert not guard.has_jumped(NOW_MS, 0.0)
    assert not guard.has_jumped(NOW_MS + 86_400_000, 86_400.0)
