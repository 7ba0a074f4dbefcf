"""Subscriptions by regular expression: what they stand for, and patterns that are meant to hurt."""

import time
from uuid import UUID

import pytest

from penstock.base.errors import ErrorCode, Refused
from penstock.coordinator.group.consumer.records import ConsumerGroupRegularExpression
from penstock.coordinator.group.consumer.regex_subscription import PATTERN_BYTES_MAX, check_regex, matching

from .support import ConsumerWorld, T, U

NEW = UUID(int=9)


def test_a_name_matches_as_a_whole() -> None:
    assert matching("t|u.", ["t", "tt", "u", "ux", "xu"]) == {"t", "ux"}


@pytest.mark.parametrize("pattern", ["(a+)+$", "(x+x+)+y", "(.*)*(.*)*(.*)*(.*)*z", "(a|aa|aaa)+b"])
def test_patterns_that_hang_other_engines_are_done_in_no_time(pattern: str) -> None:
    before = time.thread_time()
    matching(pattern, ["a" * 249, "x" * 249, "a" * 248 + "!"] * 10)
    assert time.thread_time() - before < 0.5


def test_the_worst_pattern_that_is_taken_costs_milliseconds_a_name() -> None:
    pattern = "|".join(f"(a|b)*a(a|b){{{size}}}" for size in range(100, 117))
    names = [
        format(number * 0x9E3779B97F4A7C15 % 2**249, "0249b").translate({48: "a", 49: "b"}) for number in range(20)
    ]
    check_regex(pattern)
    before = time.thread_time()
    matching(pattern, names)
    assert (time.thread_time() - before) / len(names) < 0.05


@pytest.mark.parametrize(
    "pattern",
    [
        "[",
        "(",
        "(.*a.{90}){9}",
        "a{1000}{1000}",
        "((a{100}){100}){100}",
        r"\1",
        "(?=x)",
        "*",
        "a" * (PATTERN_BYTES_MAX + 1),
    ],
    ids=lambda pattern: pattern[:10],
)
def test_patterns_that_cannot_be_used_are_refused_with_a_reason(pattern: str) -> None:
    with pytest.raises(Refused) as refused:
        check_regex(pattern)
    assert refused.value.code is ErrorCode.invalid_regular_expression
    assert 50 < len(refused.value.message or "") < 400


def test_ten_megabytes_of_pattern_are_refused_at_once() -> None:
    pattern = "(a+)+" * 2_000_000
    before = time.thread_time()
    with pytest.raises(Refused, match="10000000 bytes"):
        check_regex(pattern)
    assert time.thread_time() - before < 0.5


def test_a_bad_pattern_leaves_nothing_behind() -> None:
    world = ConsumerWorld()
    reply = world.enter_new("a", topic_names=None, topic_regex="[")
    assert reply.error_code is ErrorCode.invalid_regular_expression
    assert not world.log and not world.shard.consumers.groups
    world.enter_new("a")
    end = len(world.log)
    assert world.beat("a", 1, topic_regex="(").error_code is ErrorCode.invalid_regular_expression
    assert len(world.log) == end


def test_topics_that_match_are_assigned_as_they_come_and_go() -> None:
    world = ConsumerWorld()
    reply = world.enter_new("a", topic_names=None, topic_regex="[tn].*")
    assert reply.assignment == {T: frozenset(range(6))}
    world.set_topic("new", 2, NEW)
    assert world.beat("a", 1).assignment == {T: frozenset(range(6)), NEW: frozenset({0, 1})}
    world.set_topic("t", 0)
    world.settle()
    assert world.assigned("a") == {NEW: frozenset({0, 1})}
    world.set_topic("other", 2)
    end = len(world.log)
    world.beat("a", world.group.members["a"].epoch)
    assert len(world.log) == end


def test_names_and_pattern_are_added_up_and_the_pattern_can_be_taken_back() -> None:
    world = ConsumerWorld()
    world.enter_new("a", topic_names=("u",), topic_regex="t")
    assert world.assigned("a").keys() == {T, U}
    world.beat("a", 1, topic_regex="")
    world.settle()
    assert world.assigned("a").keys() == {U}
    assert not world.group.regexes and not world.group.regex_counts


def test_a_pattern_goes_with_its_last_member() -> None:
    world = ConsumerWorld()
    world.enter_new("a", topic_names=None, topic_regex="t")
    world.enter_new("b", topic_names=None, topic_regex="t")
    world.beat("a", -1)
    assert set(world.group.regexes) == {"t"}
    world.beat("b", -1)
    assert not world.group.regexes


def test_members_with_the_same_pattern_share_what_it_stands_for() -> None:
    world = ConsumerWorld()
    world.enter_new("a", topic_names=None, topic_regex="t")
    world.enter_new("b", topic_names=None, topic_regex="t")
    resolved = list(world.group.regexes.values())
    assert len(resolved) == 1 and isinstance(resolved[0], ConsumerGroupRegularExpression)
    world.settle()
    assert len(world.numbers("a")) == len(world.numbers("b")) == 3


def test_a_pattern_is_resolved_anew_after_a_restart() -> None:
    world = ConsumerWorld()
    world.enter_new("a", topic_names=None, topic_regex="[tn].*")
    world.set_topic("new", 2, NEW)
    world.restart()
    assert world.beat("a", 1).assignment == {T: frozenset(range(6)), NEW: frozenset({0, 1})}
