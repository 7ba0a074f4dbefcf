import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.messages import BadMessage, NewMessage, StoredMessage, encoder, from_json, to_json

MESSAGE = StoredMessage("t", 3, 7, 1_700_000_000_000, b"k", b"v", [("h", b"1"), ("n", None)])
HOSTILE = MESSAGE._replace(key=b"\x1b[31mred", value="a\nb\u202e\x9b".encode() + b"\xff")

data = st.none() | st.binary(max_size=20)


@given(key=data, value=data, headers=st.lists(st.tuples(st.text(max_size=5), data), max_size=3))
def test_json_gives_back_every_message(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    message = MESSAGE._replace(key=key, value=value, headers=headers)
    line = encoder("json", escape=False)(message)
    assert from_json(line) == NewMessage(key, value, headers, 3, 1_700_000_000_000)


def test_json_shape_has_base64_only_for_bytes_that_are_no_text() -> None:
    shape = to_json(MESSAGE._replace(value=b"\xff"))
    assert shape == {
        "topic": "t",
        "partition": 3,
        "offset": 7,
        "timestamp": 1_700_000_000_000,
        "key": "k",
        "value_base64": "/w==",
        "headers": [{"key": "h", "value": "1"}, {"key": "n", "value": None}],
    }


def test_json_input_may_be_written_by_hand() -> None:
    assert from_json(b'{"value": {"id": 7}, "headers": {"a": "b"}}') == NewMessage(None, b'{"id":7}', [("a", b"b")])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[1]", "not an object"),
        (b'{"value_base64": "%"}', "not base64"),
        (b'{"value_base64": 5}', "not base64"),
        (b'{"headers": [1]}', "headers is not a list"),
        (b'{"headers": [{"value": "no key"}]}', "headers is not a list"),
        (b'{"partition": "0"}', "partition is not a number"),
        (b'{"partition": -1}', "partition is not a number"),
        (b'{"value": "\\ud800"}', "surrogate"),
    ],
)
def test_json_that_is_no_message_is_refused_with_the_reason(line: bytes, reason: str) -> None:
    with pytest.raises(BadMessage, match=reason):
        from_json(line)


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("value", b"v\n"),
        ("key-value", b"k\tv\n"),
        ("%t %p %o %T %k=%v [%h] 100%%", b"t 3 7 1700000000000 k=v [h=1,n=null] 100%\n"),
        (r"%k\t%v\n", b"k\tv\n"),
        (r"%v\0", b"v\0"),
    ],
)
def test_text_formats(form: str, expected: bytes) -> None:
    assert encoder(form, escape=False)(MESSAGE) == expected


def test_nothing_in_a_message_can_steer_a_terminal() -> None:
    assert encoder("%k %v", escape=True)(HOSTILE) == rb"\x1b[31mred a\nb\u202e\x9b\xff" + b"\n"
    shown = encoder("json", escape=True)(HOSTILE._replace(value="\x9b\u202e\x7f".encode())).decode()
    assert shown.strip().isprintable()
    assert json.loads(shown)["value"] == "\x9b\u202e\x7f"


def test_bytes_are_left_alone_when_not_escaped() -> None:
    assert encoder("value", escape=False)(HOSTILE) == (HOSTILE.value or b"") + b"\n"


@pytest.mark.parametrize("form", ["", "yaml", "%q", "%"])
def test_unknown_formats_are_refused(form: str) -> None:
    with pytest.raises(ValueError, match=r"no format|is not one of"):
        encoder(form, escape=False)
