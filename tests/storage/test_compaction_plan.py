from penstock.base.config_key import LONG_MAX
from penstock.base.topic_config import TopicConfig
from penstock.base.types import Offset
from penstock.storage.compaction_plan import Closed, dirty_part, groups_of

NOW_MS = 1_700_000_000_000


def closed(*sizes, ages_ms=None):
    """Segments of ten offsets each."""
    ages_ms = ages_ms or [0] * len(sizes)
    return [
        Closed(Offset(number * 10), Offset(number * 10 + 10), size, NOW_MS - age_ms, NOW_MS - age_ms)
        for number, (size, age_ms) in enumerate(zip(sizes, ages_ms, strict=True))
    ]


def dirty(segments, *, cleaned_to=None, log_start=0, limit=LONG_MAX, **config):
    return dirty_part(
        segments,
        TopicConfig(**config),
        cleaned_to=cleaned_to,
        log_start=Offset(log_start),
        limit=Offset(limit),
        now_ms=NOW_MS,
    )


def test_a_log_that_was_never_cleaned_is_all_dirty():
    found = dirty(closed(100, 50))
    assert (found.first_dirty, found.end, found.clean_bytes, found.dirty_bytes) == (0, 20, 0, 150)
    assert found.ratio == 1.0


def test_what_was_cleaned_is_clean():
    found = dirty(closed(100, 50, 50), cleaned_to=Offset(10))
    assert (found.first_dirty, found.end, found.clean_bytes, found.dirty_bytes) == (10, 30, 100, 100)
    assert found.ratio == 0.5


def test_a_segment_that_was_cleaned_in_part_is_dirty():
    found = dirty(closed(100, 50), cleaned_to=Offset(15))
    assert (found.first_dirty, found.clean_bytes, found.dirty_bytes) == (15, 100, 50)


def test_a_cleaner_offset_outside_the_log_is_not_believed():
    assert dirty(closed(100, 100), cleaned_to=Offset(21)).first_dirty == 0
    assert dirty(closed(100, 100), cleaned_to=Offset(5), log_start=10).first_dirty == 10


def test_nothing_above_the_high_watermark_is_cleaned():
    assert dirty(closed(100, 100, 100), limit=20).end == 20
    assert dirty(closed(100, 100, 100), limit=19).end == 10
    assert dirty(closed(100, 100, 100), limit=0).dirty_bytes == 0


def test_records_younger_than_the_lag_and_all_behind_them_stay():
    segments = closed(100, 100, 100, ages_ms=[5000, 100, 5000])
    assert dirty(segments, min_compaction_lag_ms=1000).end == 10
    assert dirty(segments, min_compaction_lag_ms=100).end == 30
    assert dirty(segments).end == 30


def test_a_log_is_due_when_it_is_dirtier_than_the_ratio():
    half = dirty(closed(100, 100), cleaned_to=Offset(10))
    assert not half.is_due(TopicConfig(min_cleanable_dirty_ratio=0.5))
    assert half.is_due(TopicConfig(min_cleanable_dirty_ratio=0.49))
    assert not dirty([]).is_due(TopicConfig(min_cleanable_dirty_ratio=0.0))
    assert not dirty(closed(100), cleaned_to=Offset(10)).is_due(TopicConfig(min_cleanable_dirty_ratio=0.0))


def test_a_log_is_due_when_records_have_waited_for_too_long():
    segments = closed(1000, 10, ages_ms=[9000, 5000])
    late = dirty(segments, cleaned_to=Offset(10), max_compaction_lag_ms=4000)
    assert late.is_due(TopicConfig())
    assert not dirty(segments, cleaned_to=Offset(10), max_compaction_lag_ms=5000).is_due(TopicConfig())


def test_small_neighbours_become_one_segment():
    config = TopicConfig(segment_bytes=1024)
    groups = groups_of(closed(500, 400, 124, 1, 1024, 10, 0), config)
    assert [[segment.size for segment in group] for group in groups] == [[500, 400, 124], [1], [1024], [10, 0]]


def test_segments_too_far_apart_for_one_index_stay_apart():
    near = Closed(Offset(0), Offset(10), 10, 0, 0)
    far = Closed(Offset(2**31), Offset(2**31 + 10), 10, 0, 0)
    assert len(groups_of([near, far], TopicConfig())) == 2
    assert len(groups_of([near, far._replace(size=0)], TopicConfig())) == 1
