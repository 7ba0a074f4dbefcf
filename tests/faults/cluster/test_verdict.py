"""The verdict finds every anomaly that it is there for: histories made by hand, each with one of them."""

from pathlib import Path

import pytest

from penstock.sim.history import Log, Poll, Polled, Send, Sent
from penstock.wire.batch import Record, build_batch

from .timed_history import TimedHistory, log_of
from .verdict import Verdict, batches_of, check_replicas, judge, write_gaps

LOG = log_of("t", 0)


class Run:
    """A history in the making; `contents` is what is in the log at the end."""

    def __init__(self) -> None:
        self.history = TimedHistory()
        self.contents: list[tuple[int, bytes]] = []
        self.seen: set[int] = set()

    def send(self, value: bytes, link: int = 0) -> tuple[int, Send]:
        operation = Send(LOG, link, (value,))
        return self.history.invoke(operation), operation

    def ack(self, sent: tuple[int, Send], offset: int) -> None:
        self.history.ok(*sent, Sent(offset))

    def acked(self, value: bytes, offset: int, link: int = 0) -> None:
        self.ack(self.send(value, link), offset)

    def read(self, start: int, *records: tuple[int, bytes]) -> None:
        self.seen.update(offset for offset, _ in records)
        operation = Poll(LOG, start)
        self.history.ok(self.history.invoke(operation), operation, Polled(records[-1][0] + 1, records))

    def question(self, answer: int, log: Log = LOG) -> None:
        operation = Poll(log, 0)
        self.history.ok(self.history.invoke(operation), operation, Polled(answer, ()))

    def verdict(self) -> Verdict:
        return judge(*self.history.snapshot(), {LOG: self.contents}, {"auditor": {LOG: self.seen}})

    def kinds(self) -> set[str]:
        return {violation.kind for violation in self.verdict().violations}


@pytest.fixture
def run() -> Run:
    """Two records, acked and read."""
    run = Run()
    run.acked(b"a", 0)
    run.acked(b"b", 1)
    run.read(0, (0, b"a"), (1, b"b"))
    run.question(2)
    run.contents = [(0, b"a"), (1, b"b")]
    return run


def test_a_run_in_which_nothing_went_wrong(run: Run) -> None:
    lost = run.send(b"c")
    run.history.info(*lost, "_MSG_TIMED_OUT")
    refused = run.send(b"d")
    run.history.fail(*refused, "MSG_SIZE_TOO_LARGE")
    verdict = run.verdict()
    verdict.check()
    assert (verdict.acked_count, verdict.unknown_count) == (2, 1)
    # Of what became of "c" nobody was told: it may be there.
    run.contents.append((2, b"c"))
    run.verdict().check()


def test_lost(run: Run) -> None:
    run.contents.pop()
    assert {"acked-lost", "shown-lost"} <= run.kinds()
    with pytest.raises(AssertionError, match="2 acked, 0 unknown, A=2 B=0"):
        run.verdict().check()


def test_another_record_in_its_place(run: Run) -> None:
    run.send(b"x")
    run.contents[1] = (1, b"x")
    assert "acked-lost" in run.kinds()


def test_duplicate_that_a_reader_was_shown(run: Run) -> None:
    run.read(2, (2, b"b"))
    run.contents.append((2, b"b"))
    assert run.kinds() == {"duplicate"}


def test_duplicate_that_nobody_has_read(run: Run) -> None:
    run.contents.append((2, b"a"))
    assert run.kinds() == {"duplicate", "reordered"}


def test_two_records_at_one_offset(run: Run) -> None:
    run.send(b"x")
    run.read(1, (1, b"x"))
    assert "inconsistent-offset" in run.kinds()


def test_two_acks_for_one_offset(run: Run) -> None:
    run.acked(b"x", 1)
    assert "inconsistent-offset" in run.kinds()


def test_an_auditor_that_skips(run: Run) -> None:
    run.acked(b"c", 2)
    run.acked(b"d", 3)
    run.contents += [(2, b"c"), (3, b"d")]
    run.read(2, (3, b"d"))
    assert run.kinds() == {"gap", "unseen"}


def test_records_of_one_producer_in_another_order() -> None:
    run = Run()
    first, second = run.send(b"a"), run.send(b"b")
    run.ack(second, 0)
    run.ack(first, 1)
    run.contents = [(0, b"b"), (1, b"a")]
    run.read(0, *run.contents)
    assert "reordered" in run.kinds()


def test_an_offset_below_one_that_was_acked_before(run: Run) -> None:
    run.history.events.clear()
    run.history.times.clear()
    run.acked(b"b", 1)
    run.acked(b"a", 0, link=1)
    run.read(0, (0, b"a"), (1, b"b"))
    assert run.kinds() == {"nonmonotonic-send"}


def test_refused_and_there_all_the_same(run: Run) -> None:
    run.history.fail(*run.send(b"c"), "refused")
    run.contents.append((2, b"c"))
    assert run.kinds() == {"failed-write-visible"}


def test_a_record_that_nobody_sent(run: Run) -> None:
    run.contents.append((2, b"?"))
    assert "phantom" in run.kinds()


def test_acked_and_never_shown(run: Run) -> None:
    run.acked(b"c", 2)
    run.contents.append((2, b"c"))
    assert run.kinds() == {"unseen"}


def test_an_end_offset_that_goes_back(run: Run) -> None:
    run.question(1)
    assert run.kinds() == {"stale"}


def test_an_end_offset_below_what_was_acked_before_it_was_asked_for(run: Run) -> None:
    run.acked(b"c", 2)
    run.read(2, (2, b"c"))
    run.contents.append((2, b"c"))
    run.question(2)
    assert run.kinds() == {"stale"}


def test_a_committed_offset_that_goes_back(run: Run) -> None:
    committed = log_of("readers@t", 0)
    run.question(2, committed)
    run.question(1, committed)
    assert run.kinds() == {"stale"}


def test_a_reader_that_lags_is_not_stale(run: Run) -> None:
    run.acked(b"c", 2)
    run.contents.append((2, b"c"))
    run.read(0, (0, b"a"))
    run.read(2, (2, b"c"))
    run.verdict().check()


def test_the_longest_write_gap_is_of_one_partition() -> None:
    run = Run()
    for value in (b"a", b"b", b"c"):
        run.acked(value, 0)
    events, _ = run.history.snapshot()
    gaps = write_gaps(events, [0.0, 1.0, 1.5, 4.0, 4.1, 4.5])
    assert gaps[LOG] == (3.0, 1.0)


def segment(directory: Path, *batches: bytes) -> Path:
    directory.mkdir()
    (directory / "00000000000000000000.log").write_bytes(b"".join(batches))
    return directory


def batch(offset: int, value: bytes, epoch: int = 0) -> bytes:
    return bytes(
        build_batch([Record(offset=offset, timestamp=1, key=None, value=value)], base_offset=offset, leader_epoch=epoch)
    )


def test_replicas_that_differ_below_the_high_watermark_only(tmp_path: Path) -> None:
    same = [batch(0, b"a"), batch(1, b"b")]
    replicas = {
        1: batches_of(segment(tmp_path / "1", *same, batch(2, b"c", epoch=1))),
        2: batches_of(segment(tmp_path / "2", *same, batch(2, b"x"))),
        3: batches_of(segment(tmp_path / "3", *same, batch(2, b"c", epoch=1)[:-1])),  # Being written.
    }
    assert list(check_replicas(LOG, replicas, 2)) == []
    found = list(check_replicas(LOG, replicas, 3))
    assert [violation.detail for violation in found] == [
        "from offset 2 on, brokers 1 and 2",
        "from offset 2 on, brokers 1 and 3",
    ]
