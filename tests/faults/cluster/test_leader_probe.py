"""The probe's arithmetic: what counts as two leaders at a time, and what as lost."""

from .leader_probe import Answer, lost, overlap_s

OLD, NEW, REFUSED = 1, 2, 6


def answer(node_id: int, sent_at: float, received_at: float, code: int = 0, offset: int = 0) -> Answer:
    return Answer(node_id, sent_at, received_at, code, offset, b"%d:%d" % (node_id, offset))


def test_one_leader_after_the_other() -> None:
    answers = [answer(OLD, 0, 1), answer(NEW, 0, 1, REFUSED), answer(NEW, 2, 3), answer(OLD, 4, 5, REFUSED)]
    assert overlap_s(answers, OLD) == 0


def test_two_leaders_at_a_time() -> None:
    answers = [answer(OLD, 0, 1), answer(NEW, 2, 3), answer(OLD, 4.5, 5)]
    assert overlap_s(answers, OLD) == 1.5


def test_an_answer_that_came_late_proves_nothing() -> None:
    assert overlap_s([answer(NEW, 2, 3), answer(OLD, 2.5, 9)], OLD) == 0


def test_lost() -> None:
    answers = [answer(OLD, 0, 1, offset=0), answer(OLD, 1, 2, offset=1), answer(NEW, 1, 2, REFUSED, offset=7)]
    assert lost(answers, [(0, b"1:0"), (1, b"1:1")]) == []
    assert lost(answers, [(0, b"1:0")]) == [answers[1]]
    assert lost(answers, [(0, b"1:0"), (1, b"2:1")]) == [answers[1]]
