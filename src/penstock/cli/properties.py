"""Kafka's configuration files: Java properties as text in, a mapping out."""

from collections.abc import Iterator

_BLANK = " \t\f"
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """Keys and values of a .properties text; a key given twice has its last value. ValueError on a bad escape."""
    properties = {}
    for number, line in _logical_lines(text):
        try:
            key, value = _split(line)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
        properties[key] = value
    return properties


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines without comments, continued lines joined; each with the number of its first line."""
    joined, start = "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.lstrip(_BLANK)
        if not joined:
            if not line or line[0] in "#!":
                continue
            start = number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            joined += line[:-1]
            continue
        yield start, joined + line
        joined = ""
    if joined:
        yield start, joined


def _split(line: str) -> tuple[str, str]:
    """Key and value, split at the first `=`, `:` or blank that no backslash protects."""
    end = 0
    while end < len(line) and line[end] not in "=:" + _BLANK:
        end += 2 if line[end] == "\\" else 1
    rest = line[end:].lstrip(_BLANK)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANK)
    return _unescape(line[:end]), _unescape(rest).rstrip(_BLANK)


def _unescape(text: str) -> str:
    parts = []
    position = 0
    while (at := text.find("\\", position)) >= 0:
        parts.append(text[position:at])
        letter = text[at + 1 : at + 2]
        if letter == "u":
            digits = text[at + 2 : at + 6]
            if len(digits) != 4:
                raise ValueError("\\u needs four hexadecimal digits")
            parts.append(chr(int(digits, 16)))
            position = at + 6
        else:
            parts.append(_ESCAPES.get(letter, letter))
            position = at + 2
    return "".join(parts) + text[position:]
