import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cluster.topic_names import colliding, is_internal, why_illegal


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../../etc/x", "a/b", "a\0b", "x" * 250, "é", "a b", "a\n", "١", "a\\b"],  # noqa: RUF001
)
def test_illegal_names_have_a_reason_that_can_be_printed(name: str) -> None:
    reason = why_illegal(name)
    assert reason is not None
    assert reason.isprintable()


@pytest.mark.parametrize("name", ["a", "...", "x" * 249, "A-Z_0.9", "__consumer_offsets", "-"])
def test_legal_names(name: str) -> None:
    assert why_illegal(name) is None


@given(st.text(max_size=260))
def test_the_rule_is_kafkas(name: str) -> None:
    legal = re.fullmatch(r"[a-zA-Z0-9._-]{1,249}\Z", name) is not None and name not in (".", "..")
    assert (why_illegal(name) is None) == legal


def test_names_that_differ_in_dots_and_underscores_collide() -> None:
    assert colliding("a.b", ["x", "a_b"]) == "a_b"
    assert colliding("a_b", ["a.b"]) == "a.b"
    assert colliding("a.b", ["a.b", "ab", "a-b"]) is None
    assert colliding("ab", ["a.b"]) is None


def test_internal_topics_are_three() -> None:
    assert is_internal("__consumer_offsets")
    assert not is_internal("__mine")
