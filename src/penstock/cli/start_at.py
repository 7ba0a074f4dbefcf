"""Where `consume --from` begins: text in, a starting point out, and its offset in one partition. No I/O, no clock."""

import re
from datetime import datetime
from enum import Enum
from typing import NamedTuple

MILLISECONDS_FROM = (
    10**12
)  # A number this large is a time (2001 in milliseconds since 1970); no offset gets there soon.
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_RELATIVE = re.compile(r"(\d+)\s*(ms|s|m|h|d|w)")


class Kind(Enum):
    EARLIEST = "earliest"  # The oldest message that is kept.
    LATEST = "latest"  # After the newest message.
    OFFSET = "offset"  # The message with that offset.
    LAST = "last"  # That many messages before the end.
    TIME = "time"  # The first message of that time or later.


class StartAt(NamedTuple):
    kind: Kind
    number: int = 0


def parse_start(text: str, now_ms: int) -> StartAt:
    """The starting point; ValueError, with the forms there are, when the text is none."""
    if text in ("earliest", "beginning"):
        return StartAt(Kind.EARLIEST)
    if text in ("latest", "end"):
        return StartAt(Kind.LATEST)
    if text.isascii() and text.isdigit():
        number = int(text)
        return StartAt(Kind.TIME if number >= MILLISECONDS_FROM else Kind.OFFSET, number)
    if text.startswith("-") and text[1:].isascii() and text[1:].isdigit():
        return StartAt(Kind.LAST, int(text[1:]))
    relative = _RELATIVE.fullmatch(text)
    if relative is not None:
        return StartAt(Kind.TIME, max(0, now_ms - int(relative[1]) * _UNITS_MS[relative[2]]))
    try:
        return StartAt(Kind.TIME, int(datetime.fromisoformat(text).timestamp() * 1000))
    except (ValueError, OverflowError):
        raise ValueError(
            f"'{text}' is no place to start: give earliest, latest, an offset (42), messages before the end "
            "(-10), a time (2026-01-31, 2026-01-31T08:00:00Z, milliseconds since 1970) or an age (15m, 1h, 2d)"
        ) from None


def start_offset(start: StartAt, low: int, high: int, at_time: int | None) -> int:
    """The first offset to read of a partition that holds [low, high); `at_time` is its answer for a time."""
    if start.kind is Kind.EARLIEST:
        return low
    if start.kind is Kind.LAST:
        return max(low, high - start.number)
    if start.kind is Kind.OFFSET:
        return min(max(start.number, low), high)
    if start.kind is Kind.TIME and at_time is not None and at_time >= 0:
        return at_time
    return high
