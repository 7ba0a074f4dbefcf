"""The topics that a regular expression stands for. The pattern is a stranger's, so the engine is RE2: linear in time.

Python's own engine can take years for `(a+)+$`. RE2 has no back references and no look-around, which is what Kafka's
clients are told, too. A name matches as a whole.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from penstock.base.errors import ErrorCode, Refused

PATTERN_BYTES_MAX = 4_096  # A hundred topic names of 40 characters, as alternatives.
# Linear in the name's length times this: the worst pattern takes 3 ms for the longest name, usual ones a microsecond.
PROGRAM_SIZE_MAX = 2_048
PROGRAM_BYTES_MAX = 1 << 20  # Of a compiled pattern with what it remembers while it matches.
COMPILED_MAX = 32  # Kept, in all: 32 MiB at worst. Patterns are compiled again when topics come and go.
MESSAGE_LENGTH_MAX = 200


def check_regex(pattern: str) -> None:
    """Refused when it cannot be used."""
    _compile(pattern)


def matching(pattern: str, names: Iterable[str]) -> frozenset[str]:
    """Those of `names` that match."""
    matches = _compile(pattern).fullmatch
    return frozenset(name for name in names if matches(name) is not None)


@lru_cache(maxsize=COMPILED_MAX)
def _compile(pattern: str) -> Any:
    # Here, as most brokers never see one: it takes 10 ms and 3 MB.
    import re2

    size = len(pattern.encode())
    if size > PATTERN_BYTES_MAX:
        raise _invalid(f"it has {size} bytes, allowed are {PATTERN_BYTES_MAX}")
    options = re2.Options()
    options.max_mem = PROGRAM_BYTES_MAX
    options.log_errors = False
    options.never_capture = True
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        why = error.args[0] if error.args else b""
        raise _invalid(why.decode(errors="replace") if isinstance(why, bytes) else str(why)) from None
    if compiled.programsize > PROGRAM_SIZE_MAX:
        raise _invalid(f"it needs {compiled.programsize} instructions, allowed are {PROGRAM_SIZE_MAX}")
    return compiled


def _invalid(why: str) -> Refused:
    message = f"SubscribedTopicRegex is not a valid regular expression: {why[:MESSAGE_LENGTH_MAX]}"
    return Refused(ErrorCode.invalid_regular_expression, message)
