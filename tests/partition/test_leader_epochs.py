"""Which offset each leader epoch began at, and where it ended (KIP-101, KIP-279)."""

from penstock.base.types import LeaderEpoch as E
from penstock.base.types import Offset as O
from penstock.partition.leader_epochs import LeaderEpochs


def epochs(*entries: tuple[int, int]) -> LeaderEpochs:
    return LeaderEpochs([(E(epoch), O(start)) for epoch, start in entries])


def test_an_epoch_ends_where_the_next_known_one_begins() -> None:
    assert epochs((0, 0), (2, 10), (5, 30)).end_offset_for(E(2), O(50)) == (2, 30)


def test_the_latest_epoch_ends_at_the_end_of_the_log() -> None:
    assert epochs((0, 0), (2, 10)).end_offset_for(E(2), O(50)) == (2, 50)


def test_an_unknown_epoch_in_between_is_answered_with_the_largest_below_it() -> None:
    assert epochs((0, 0), (2, 10), (5, 30)).end_offset_for(E(4), O(50)) == (2, 30)


def test_an_epoch_from_the_future_has_no_end() -> None:
    assert epochs((0, 0)).end_offset_for(E(3), O(50)) == (-1, -1)


def test_an_epoch_older_than_all_we_know_ended_before_the_first_we_know() -> None:
    assert epochs((3, 20), (4, 30)).end_offset_for(E(1), O(50)) == (1, 20)


def test_an_empty_log_knows_no_epoch() -> None:
    assert LeaderEpochs().end_offset_for(E(0), O(0)) == (-1, -1)


def test_an_epoch_is_assigned_once_and_never_goes_back() -> None:
    known = LeaderEpochs()
    assert known.assign(E(1), O(0))
    assert not known.assign(E(1), O(5))
    assert not known.assign(E(0), O(9))
    assert known.entries == [(1, 0)]


def test_an_epoch_without_records_gives_way_to_the_next_at_the_same_offset() -> None:
    known = epochs((1, 0))
    assert known.assign(E(2), O(10))
    assert known.assign(E(3), O(10))
    assert known.entries == [(1, 0), (3, 10)]


def test_truncation_forgets_epochs_that_begin_at_or_after_the_new_end() -> None:
    known = epochs((0, 0), (1, 10), (2, 20))
    assert known.truncate_end(O(10))
    assert known.entries == [(0, 0)]
    assert not known.truncate_end(O(10))
