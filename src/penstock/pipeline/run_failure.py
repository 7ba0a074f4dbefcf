"""What Spark's error comes to, in a few words: the reason is mostly at the end of a long chain of its wrappings."""

import re
from collections.abc import Sequence

# A worker's traceback inside Spark's message ends with the error's class and text.
_PYTHON = re.compile(
    r"^(?:[\w.]+\.)?(?P<kind>\w*(?:Error|Exception|Refusal|Unreachable|Failed|Loss|Clash)): (?P<text>.+)$", re.M
)
_RAISED = re.compile(r"\[USER_RAISED_EXCEPTION\] (?P<text>.+?)(?: SQLSTATE: \w+)?$", re.M)
_TOPIC = re.compile(r"topic (?P<topic>[\w.-]+): unknown_topic_or_partition", re.I)
_WRAPPINGS = ("STREAM_FAILED", "PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR", "PYTHON_DATA_SOURCE_ERROR")


def explain(error: BaseException, events: Sequence[str] = ()) -> str:
    """One or two lines. `events` are the errors that Spark told of before it gave up."""
    texts = [str(error), *reversed(events)]
    for text in texts:
        raised = _RAISED.search(text)
        if raised:
            return raised["text"].strip()
    for text in texts:
        python = [found for found in _PYTHON.finditer(text) if not found["text"].startswith("[")]
        if python:
            return f"{python[-1]['text'].strip()} ({python[-1]['kind']})"
    for text in texts:
        first = text.strip().partition("\n")[0]
        if first and not any(f"[{name}" in first for name in _WRAPPINGS):
            return re.sub(r" SQLSTATE: \w+$", "", first)
    return texts[0].strip().partition("\n")[0] or type(error).__name__


def missing_topic(text: str) -> str | None:
    """The topic that `explain` says is not there."""
    found = _TOPIC.search(text)
    return found["topic"] if found else None
