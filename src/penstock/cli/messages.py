"""A message as JSON (both ways) and as text for people. Bytes in, bytes or text out; no I/O."""

import base64
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from penstock.cli.output import dump_json, printable

Headers = Sequence[tuple[str, bytes | None]]
Encode = Callable[["StoredMessage"], bytes]

NULL = "null"  # How text formats show a key or value that is not there (a tombstone), as Kafka's console consumer does.
NAMED_FORMATS = ("value", "key-value", "table", "json")


class StoredMessage(NamedTuple):
    topic: str
    partition: int
    offset: int
    timestamp: int | None  # Milliseconds since 1970.
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class NewMessage(NamedTuple):
    """A message to send; None leaves the choice of partition and timestamp to the client."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    partition: int | None = None
    timestamp: int | None = None


class BadMessage(ValueError):
    """The JSON does not describe a message."""


# JSON


def to_json(message: StoredMessage) -> dict[str, Any]:
    """The shape that `consume --json` prints and `produce --format json` reads."""
    shape: dict[str, Any] = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": message.timestamp,
    }
    shape.update(_text_field("key", message.key))
    shape.update(_text_field("value", message.value))
    shape["headers"] = [{"key": name, **_text_field("value", value)} for name, value in message.headers]
    return shape


def _text_field(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def from_json(line: bytes) -> NewMessage:
    """The message that one line of JSON describes; BadMessage says what is wrong with it."""
    try:
        shape = json.loads(line)
    except ValueError as error:
        raise BadMessage(f"not JSON: {error}") from error
    if not isinstance(shape, dict):
        raise BadMessage('not an object such as {"key": "k", "value": "v"}')
    return NewMessage(
        key=_read_field(shape, "key"),
        value=_read_field(shape, "value"),
        headers=_read_headers(shape.get("headers")),
        partition=_read_number(shape, "partition"),
        timestamp=_read_number(shape, "timestamp"),
    )


def _read_field(shape: dict[str, Any], name: str) -> bytes | None:
    encoded = shape.get(f"{name}_base64")
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except (ValueError, TypeError) as error:
            raise BadMessage(f"{name}_base64 is not base64") from error
    value = shape.get(name)
    if value is None:
        return None
    # A value that is itself JSON may be given as such: {"value": {"id": 7}}.
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise BadMessage(f"{name} holds half a surrogate pair; give the bytes as {name}_base64") from error


def _read_headers(headers: Any) -> Headers:
    if headers is None:
        return ()
    if isinstance(headers, dict):
        headers = [{"key": key, "value": value} for key, value in headers.items()]
    if not isinstance(headers, list) or not all(isinstance(h, dict) and isinstance(h.get("key"), str) for h in headers):
        raise BadMessage('headers is not a list such as [{"key": "k", "value": "v"}]')
    return [(header["key"], _read_field(header, "value")) for header in headers]


def _read_number(shape: dict[str, Any], name: str) -> int | None:
    number = shape.get(name)
    if number is None:
        return None
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 2**63:
        raise BadMessage(f"{name} is not a number")
    return number


# Text


def encoder(form: str, *, escape: bool) -> Encode:
    """How to write a message in a named format or a custom one with `%`; ValueError when it is neither."""
    shown = _escaped_bytes if escape else _raw_bytes
    if form == "value":
        return lambda message: shown(message.value) + b"\n"
    if form == "key-value":
        return lambda message: shown(message.key) + b"\t" + shown(message.value) + b"\n"
    if form == "json":
        return lambda message: (dump_json(to_json(message)) + "\n").encode()
    if "%" in form:
        return _custom_encoder(form, shown)
    raise ValueError(f"'{form}' is no format")


def _raw_bytes(data: bytes | None) -> bytes:
    return NULL.encode() if data is None else data


def _escaped_bytes(data: bytes | None) -> bytes:
    return shown_text(data).encode()


def shown_text(data: bytes | None) -> str:
    """Bytes as text on one line, safe for a terminal."""
    return NULL if data is None else printable(data.decode(errors="backslashreplace"))


_FIELDS: dict[str, Callable[[StoredMessage, Callable[[bytes | None], bytes]], bytes]] = {
    "t": lambda message, shown: message.topic.encode(),
    "p": lambda message, shown: str(message.partition).encode(),
    "o": lambda message, shown: str(message.offset).encode(),
    "T": lambda message, shown: str(-1 if message.timestamp is None else message.timestamp).encode(),
    "k": lambda message, shown: shown(message.key),
    "v": lambda message, shown: shown(message.value),
    "h": lambda message, shown: b",".join(
        shown(name.encode()) + b"=" + shown(value) for name, value in message.headers
    ),
    "%": lambda message, shown: b"%",
}


def _custom_encoder(form: str, shown: Callable[[bytes | None], bytes]) -> Encode:
    """%t topic, %p partition, %o offset, %T timestamp, %k key, %v value, %h headers, %%; \\n and \\t are understood."""
    template = form.replace("\\n", "\n").replace("\\t", "\t").replace("\\0", "\0")
    if not template.endswith(("\n", "\0")):
        template += "\n"
    literal, *rest = template.split("%")
    parts: list[bytes | Callable[[StoredMessage, Callable[[bytes | None], bytes]], bytes]] = [literal.encode()]
    pieces = iter(rest)
    for piece in pieces:
        letter, text = piece[:1], piece[1:]
        if not letter:  # Two signs with nothing between: split() made an empty piece of `%%`.
            letter, text = "%", next(pieces, "")
        if letter not in _FIELDS:
            raise ValueError(f"%{letter.strip()} is not one of %t %p %o %T %k %v %h %%")
        parts += [_FIELDS[letter], text.encode()]
    return lambda message: b"".join(part if isinstance(part, bytes) else part(message, shown) for part in parts)
