import pytest

from penstock.cli.properties import parse_properties


def test_keys_and_values_with_each_separator() -> None:
    text = "a=1\nb: 2\nc 3\n  d = 4  \nlisteners=PLAINTEXT://localhost:9092\nempty=\nalone"
    assert parse_properties(text) == {
        "a": "1",
        "b": "2",
        "c": "3",
        "d": "4",
        "listeners": "PLAINTEXT://localhost:9092",
        "empty": "",
        "alone": "",
    }


def test_comments_blank_lines_and_the_last_of_two_values() -> None:
    assert parse_properties("# no\n\n  ! no\na=1\na=2 # part of the value\n") == {"a": "2 # part of the value"}


def test_lines_go_on_after_a_backslash() -> None:
    assert parse_properties("a=1,\\\n    2,\\\n    3\nb=x\\\\\nc=y") == {"a": "1,2,3", "b": "x\\", "c": "y"}


def test_escapes() -> None:
    assert parse_properties(r"a\=b=tab\there" + "\n" + r"c=\u00fc\:") == {"a=b": "tab\there", "c": "ü:"}


def test_bad_escape_names_its_line() -> None:
    with pytest.raises(ValueError, match="line 3"):
        parse_properties("a=1\n\nb=\\u12\n")
