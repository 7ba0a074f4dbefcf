"""Lag by a query's progress; test_source.py has that of a real one."""

import json

from penstock.spark import lag


def source(end, latest):
    return {"description": "…", "startOffset": None, "endOffset": end, "latestOffset": latest, "metrics": {}}


def test_what_is_between_the_offsets():
    offsets = json.dumps({"a": {"0": 5, "1": 7}}), json.dumps({"a": {"0": 5, "1": 10, "2": 4}, "b": {"0": 1}})
    assert lag({"sources": [source(*offsets)]}) == {("a", 0): 0, ("a", 1): 3, ("a", 2): 4, ("b", 0): 1}


def test_a_topic_that_was_made_anew_is_not_negative():
    assert lag({"sources": [source({"a": {"0": 9}}, {"a": {"0": 2}})]}) == {("a", 0): 0}


def test_two_sources_of_the_same_topic_add_up():
    assert lag({"sources": [source({"a": {"0": 1}}, {"a": {"0": 2}})] * 2}) == {("a", 0): 2}


def test_nothing_of_other_sources_or_before_the_first_batch():
    assert lag(None) == {}
    assert lag({"sources": [source("7", "9"), source(None, None), source("[0]", '{"x": 1}')]}) == {}
