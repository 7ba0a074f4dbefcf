"""Each anomaly, in the smallest history that shows it, is found by its checker and by no other kind."""

from penstock.base.types import TopicPartition
from penstock.sim.checkers import check_all
from penstock.sim.history import History, Log, Poll, Polled, Send, Sent

LOG = Log(TopicPartition("t", 0), 0)


class Story:
    """A history written down operation by operation."""

    def __init__(self) -> None:
        self.history = History()

    def sent(self, *values: bytes, at: int, link: int = 1, log: Log = LOG) -> None:
        self.begin(*values, link=link, log=log)(at)

    def begin(self, *values: bytes, link: int = 1, log: Log = LOG):
        send = Send(log, link, values)
        number = self.history.invoke(send)
        return lambda at: self.history.ok(number, send, Sent(at))

    def refused(self, *values: bytes) -> None:
        send = Send(LOG, 1, values)
        self.history.fail(self.history.invoke(send), send, "CORRUPT_MESSAGE")

    def unknown(self, *values: bytes, link: int = 1) -> None:
        send = Send(LOG, link, values)
        self.history.info(self.history.invoke(send), send, "link lost")

    def polled(self, *records: tuple[int, bytes], start: int = 0, watermark: int = 100, log: Log = LOG) -> None:
        self.begin_poll(start, log)(watermark, *records)

    def begin_poll(self, start: int = 0, log: Log = LOG):
        poll = Poll(log, start)
        number = self.history.invoke(poll)
        return lambda watermark, *records: self.history.ok(number, poll, Polled(watermark, records))

    def kinds(self, *records: tuple[int, bytes], log: Log = LOG) -> list[str]:
        found = check_all(self.history.events, {log: records})
        assert all(str(violation) for violation in found)
        return sorted({violation.kind for violation in found})


def test_a_good_history_passes():
    story = Story()
    story.sent(b"a", b"b", at=0)
    story.unknown(b"c")
    story.refused(b"d")
    story.unknown(b"e")
    story.polled((0, b"a"), (1, b"b"), (2, b"c"))
    story.polled(start=3)
    assert story.kinds((0, b"a"), (1, b"b"), (2, b"c")) == []


def test_acked_and_lost():
    story = Story()
    story.sent(b"a", at=0)
    assert story.kinds() == ["acked-lost"]


def test_acked_at_another_offset_is_lost_too():
    story = Story()
    story.unknown(b"x")
    story.sent(b"a", at=1)
    assert story.kinds((0, b"x"), (1, b"y"), (2, b"a")) == ["acked-lost"]


def test_a_former_life_may_be_lost():
    story = Story()
    story.sent(b"a", at=0)
    assert story.kinds((0, b"b"), log=LOG._replace(life=1)) == []


def test_read_and_then_gone():
    story = Story()
    story.unknown(b"a")
    story.polled((0, b"a"))
    assert story.kinds() == ["shown-lost"]


def test_two_values_at_one_offset():
    story = Story()
    story.unknown(b"a", link=1)
    story.polled((0, b"a"))
    story.sent(b"b", at=0, link=2)
    story.polled((0, b"b"))
    assert story.kinds((0, b"b")) == ["inconsistent-offset", "shown-lost"]


def test_lives_may_differ_at_one_offset():
    story = Story()
    story.sent(b"a", at=0)
    story.sent(b"b", at=0, link=2, log=LOG._replace(life=1))
    assert story.kinds((0, b"b"), log=LOG._replace(life=1)) == []


def test_one_value_at_two_offsets():
    story = Story()
    story.sent(b"a", at=0)
    story.polled((0, b"a"), (1, b"a"))
    assert story.kinds((0, b"a"), (1, b"a")) == ["duplicate"]


def test_a_refused_value_is_seen():
    story = Story()
    story.refused(b"a")
    story.polled((0, b"a"))
    assert story.kinds((0, b"a")) == ["failed-write-visible"]


def test_a_value_out_of_nowhere():
    story = Story()
    story.polled((0, b"a"))
    assert story.kinds((0, b"a")) == ["phantom"]


def test_a_value_of_another_partition():
    story = Story()
    story.unknown(b"a")
    other = Log(TopicPartition("t", 1), 0)
    story.polled((0, b"a"), log=other)
    assert story.kinds((0, b"a"), log=other) == ["phantom"]


def test_a_later_send_gets_a_lower_offset():
    story = Story()
    story.unknown(b"x", link=2)
    story.sent(b"a", at=1)
    story.sent(b"b", at=0, link=3)
    assert story.kinds((0, b"b"), (1, b"a")) == ["nonmonotonic-send"]


def test_sends_at_the_same_time_may_get_any_order():
    story = Story()
    first = story.begin(b"a", link=1)
    second = story.begin(b"b", link=2)
    second(0)
    first(1)
    assert story.kinds((0, b"b"), (1, b"a")) == []


def test_pipelined_sends_on_one_link_keep_their_order():
    story = Story()
    first = story.begin(b"a")
    second = story.begin(b"b")
    first(1)
    second(0)
    assert story.kinds((0, b"b"), (1, b"a")) == ["nonmonotonic-send"]


def test_values_of_one_link_are_read_in_another_order():
    story = Story()
    story.unknown(b"a")
    story.unknown(b"b")
    story.polled((0, b"b"), (1, b"a"))
    assert story.kinds((0, b"b"), (1, b"a")) == ["reordered"]


def test_a_poll_that_skips_or_starts_elsewhere():
    story = Story()
    story.unknown(b"a", b"b", b"c")
    story.polled((0, b"a"), (2, b"c"))
    assert story.kinds((0, b"a"), (1, b"b"), (2, b"c")) == ["gap"]
    story = Story()
    story.unknown(b"a", b"b")
    story.polled((1, b"b"))
    assert story.kinds((0, b"a"), (1, b"b")) == ["gap"]


def test_a_gap_at_the_end_of_the_run():
    assert Story().kinds((0, b"a"), (2, b"b")) == ["gap"]


def test_a_record_above_the_watermark():
    story = Story()
    story.unknown(b"a")
    story.polled((0, b"a"), watermark=0)
    assert story.kinds((0, b"a")) == ["above-watermark"]


def test_a_watermark_that_goes_back():
    story = Story()
    story.polled(watermark=2)
    story.polled(watermark=1)
    assert story.kinds() == ["stale"]


def test_an_acked_record_that_a_later_poll_does_not_know():
    story = Story()
    poll = story.begin_poll()
    story.sent(b"a", at=0)
    poll(0)  # Began before: may not know.
    assert story.kinds((0, b"a")) == []
    story.polled(watermark=0)
    assert story.kinds((0, b"a")) == ["stale"]
