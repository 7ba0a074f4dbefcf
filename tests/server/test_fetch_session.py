"""Fetch sessions (KIP-227): numbering, eviction, and what counts as news."""

from random import Random

import pytest

from penstock.base.errors import ErrorCode, Refused
from penstock.server.fetch_session import EPOCH_MAX, EVICT_AFTER_S, FetchSession, FetchSessionCache
from penstock.wire.fetch_request import WantedPartition


def wanted(topic: str, partition: int = 0, offset: int = 0) -> WantedPartition:
    return WantedPartition(topic, partition, offset, 1000, -1)


def cache(slots: int = 2) -> FetchSessionCache:
    return FetchSessionCache(slots=slots, random=Random(1))


def opened(sessions: FetchSessionCache, now_s: float = 0.0) -> FetchSession:
    session = sessions.open(now_s)
    assert session is not None
    return session


def test_each_fetch_carries_the_next_epoch() -> None:
    sessions = cache()
    session = opened(sessions)
    assert sessions.resume(session.session_id, 1, 1.0) is session
    assert sessions.resume(session.session_id, 2, 2.0) is session
    for wrong in (1, 2, 4):
        with pytest.raises(Refused) as refused:
            sessions.resume(session.session_id, wrong, 3.0)
        assert refused.value.code is ErrorCode.invalid_fetch_session_epoch


def test_an_unknown_session_is_refused() -> None:
    with pytest.raises(Refused) as refused:
        cache().resume(99, 1, 0.0)
    assert refused.value.code is ErrorCode.fetch_session_id_not_found


def test_the_epoch_wraps_to_one() -> None:
    sessions = cache()
    session = opened(sessions)
    session.epoch = EPOCH_MAX
    sessions.resume(session.session_id, EPOCH_MAX, 0.0)
    assert session.epoch == 1


def test_a_full_cache_evicts_only_what_was_not_used_for_two_minutes() -> None:
    sessions = cache(slots=2)
    first, second = opened(sessions, 0.0), opened(sessions, 0.0)
    sessions.resume(first.session_id, 1, 100.0)
    assert sessions.open(EVICT_AFTER_S - 1) is None
    third = opened(sessions, EVICT_AFTER_S + 1)
    assert len(sessions) == 2
    sessions.resume(first.session_id, 2, 130.0)
    sessions.resume(third.session_id, 1, 130.0)
    with pytest.raises(Refused):
        sessions.resume(second.session_id, 1, 130.0)


def test_a_cache_without_slots_opens_no_session() -> None:
    assert cache(slots=0).open(0.0) is None


def test_partitions_are_added_changed_and_forgotten() -> None:
    session = FetchSession(1)
    session.update([wanted("a"), wanted("b")], [])
    session.update([wanted("a", offset=5), wanted("c")], [("b", 0)])
    assert [(item.wanted.topic, item.wanted.fetch_offset) for item in session.partitions.values()] == [
        ("a", 5),
        ("c", 0),
    ]


def test_a_partition_that_had_records_goes_to_the_end_of_the_line() -> None:
    session = FetchSession(1)
    session.update([wanted("a"), wanted("b")], [])
    session.on_sent(("a", 0), (1, 1, 0), has_records=True)
    assert [topic for topic, _ in session.partitions] == ["b", "a"]


def test_only_changed_offsets_are_news() -> None:
    session = FetchSession(1)
    session.update([wanted("a")], [])
    assert session.is_news(("a", 0), (1, 1, 0))
    session.on_sent(("a", 0), (1, 1, 0), has_records=False)
    assert not session.is_news(("a", 0), (1, 1, 0))
    assert session.is_news(("a", 0), (2, 2, 0))
