"""The options of Spark's Kafka connector, read once and checked. ValueError says what is wrong with which.

Names are the connector's, case does not matter. See docs/spark.md for those that mean nothing here.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal

from penstock.spark.plan import TopicPartition

LATEST = -1  # As Kafka's connector writes them in JSON, and as ListOffsets takes them.
EARLIEST = -2

POLL_TIMEOUT_MS = 120_000  # Spark's network timeout, which is the connector's default.
TRIGGER_DELAY_MS = 15 * 60 * 1000

_KINDS = ("subscribe", "subscribepattern", "assign")
_UNITS_MS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_UNSUPPORTED = {
    "kafka.auto.offset.reset": "use startingOffsets",
    "kafka.key.deserializer": "keys are bytes; use DataFrame operations to read them",
    "kafka.value.deserializer": "values are bytes; use DataFrame operations to read them",
    "kafka.enable.auto.commit": "the checkpoint holds the offsets",
    "kafka.interceptor.classes": "they could change what is read",
}


class Isolation(IntEnum):
    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


@dataclass(frozen=True)
class Bound:
    """Where to begin or to end: one place for all partitions, or one for each."""

    kind: Literal["offset", "timestamp"]
    everywhere: int | None = None  # EARLIEST, LATEST or, as a timestamp, milliseconds since 1970.
    each: Mapping[TopicPartition, int] | None = None


@dataclass(frozen=True)
class SourceOptions:
    bootstrap_servers: str
    topics: tuple[str, ...]  # Of `subscribe`.
    pattern: str | None
    assigned: tuple[TopicPartition, ...]
    start: Bound
    end: Bound
    parts_min: int | None
    records_max: int | None  # In one task.
    offsets_per_trigger_max: int | None
    offsets_per_trigger_min: int | None
    trigger_delay_ms_max: int
    has_headers: bool
    fails_on_data_loss: bool
    no_match_is_latest: bool  # Of startingOffsetsByTimestampStrategy: nothing so late means the end, not an error.
    isolation: Isolation
    poll_timeout_ms: int


def read_source_options(options: Mapping[str, str], *, is_streaming: bool) -> SourceOptions:
    given = {name.lower(): value for name, value in options.items()}
    check_kafka_options(given)
    kinds = [kind for kind in _KINDS if kind in given]
    if len(kinds) != 1:
        raise ValueError("give exactly one of the options subscribe, subscribePattern and assign")
    if is_streaming:
        for name in ("endingoffsets", "endingoffsetsbytimestamp", "endingtimestamp"):
            if name in given:
                raise ValueError(f"a streaming query has no end: {name} is for batch queries")
    topics = tuple(topic.strip() for topic in given.get("subscribe", "").split(",") if topic.strip())
    pattern = given["subscribepattern"].strip() if "subscribepattern" in given else None
    assigned = _assigned(given["assign"]) if "assign" in given else ()
    if not (topics or pattern or assigned):
        raise ValueError(f"option {kinds[0]} names no topic: {given[kinds[0]]!r}")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"subscribePattern {pattern!r} is no regular expression: {error}") from error
    start = _bound(given, "starting", LATEST if is_streaming else EARLIEST)
    end = _bound(given, "ending", LATEST)
    if not is_streaming:
        _check_places(start, LATEST, "a batch query cannot start at the latest offset")
        _check_places(end, EARLIEST, "a batch query cannot end at the earliest offset")
        _check_order(start, end)
    per_trigger_max, per_trigger_min = (
        _positive(given, "maxOffsetsPerTrigger"),
        _positive(given, "minOffsetsPerTrigger"),
    )
    if per_trigger_max is not None and per_trigger_min is not None and per_trigger_min > per_trigger_max:
        raise ValueError(f"minOffsetsPerTrigger {per_trigger_min} is above maxOffsetsPerTrigger {per_trigger_max}")
    return SourceOptions(
        bootstrap_servers=given["kafka.bootstrap.servers"],
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        start=start,
        end=end,
        parts_min=_positive(given, "minPartitions"),
        records_max=_positive(given, "maxRecordsPerPartition"),
        offsets_per_trigger_max=per_trigger_max,
        offsets_per_trigger_min=per_trigger_min,
        trigger_delay_ms_max=_duration_ms(given.get("maxtriggerdelay"), TRIGGER_DELAY_MS),
        has_headers=_flag(given, "includeHeaders", False),
        fails_on_data_loss=_flag(given, "failOnDataLoss", True),
        no_match_is_latest=_choice(given, "startingOffsetsByTimestampStrategy", ("error", "latest")) == "latest",
        isolation=Isolation(
            ("read_uncommitted", "read_committed").index(
                _choice(given, "kafka.isolation.level", ("read_uncommitted", "read_committed"))
            )
        ),
        poll_timeout_ms=_positive(given, "kafkaConsumer.pollTimeoutMs") or POLL_TIMEOUT_MS,
    )


def check_kafka_options(given: Mapping[str, str]) -> None:
    """What a source and a sink have in common. `given` has names in small letters."""
    if not given.get("kafka.bootstrap.servers"):
        raise ValueError("option kafka.bootstrap.servers is missing, such as localhost:9092")
    for name, advice in _UNSUPPORTED.items():
        if name in given:
            raise ValueError(f"option {name} is not supported: {advice}")
    protocol = given.get("kafka.security.protocol", "PLAINTEXT")
    if protocol.upper() != "PLAINTEXT":
        raise ValueError(f"kafka.security.protocol {protocol} is not supported, only PLAINTEXT is")


def _assigned(text: str) -> tuple[TopicPartition, ...]:
    chosen = _json(text, "assign", '{"orders": [0, 1]}')
    return tuple(sorted((topic, int(partition)) for topic, partitions in chosen.items() for partition in partitions))


def _bound(given: Mapping[str, str], word: str, default: int) -> Bound:
    """In the connector's order of preference: a timestamp, timestamps by partition, offsets."""
    if f"{word}timestamp" in given:
        text = given[f"{word}timestamp"].strip()
        if not text.lstrip("-").isdigit():
            raise ValueError(f"{word}Timestamp is milliseconds since 1970, not {text!r}")
        return Bound("timestamp", everywhere=int(text))
    if f"{word}offsetsbytimestamp" in given:
        return Bound("timestamp", each=_places(given[f"{word}offsetsbytimestamp"], f"{word}OffsetsByTimestamp"))
    text = given.get(f"{word}offsets", "").strip()
    if not text:
        return Bound("offset", everywhere=default)
    if text.lower() in ("latest", "earliest"):
        return Bound("offset", everywhere=LATEST if text.lower() == "latest" else EARLIEST)
    return Bound("offset", each=_places(text, f"{word}Offsets"))


def _places(text: str, name: str) -> dict[TopicPartition, int]:
    return {
        (topic, int(partition)): int(place)
        for topic, partitions in _json(text, name, '{"orders": {"0": 42}}').items()
        for partition, place in partitions.items()
    }


def _json(text: str, name: str, example: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"{name} must look like {example}, not {text!r}")
    return found


def _check_places(bound: Bound, forbidden: int, message: str) -> None:
    if bound.kind == "offset" and (bound.everywhere == forbidden or forbidden in (bound.each or {}).values()):
        raise ValueError(message)


def _check_order(start: Bound, end: Bound) -> None:
    if start.each is None or end.each is None or start.kind != end.kind:
        return
    if start.each.keys() != end.each.keys():
        raise ValueError("start and end must name the same partitions")
    for key, place in start.each.items():
        if place > end.each[key] >= 0:
            raise ValueError(f"the start of {key[0]}-{key[1]}, {place}, is after its end, {end.each[key]}")


def _positive(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    if not text.strip().isdigit() or int(text) == 0:
        raise ValueError(f"{name} must be a positive number, not {text!r}")
    return int(text)


def _flag(given: Mapping[str, str], name: str, default: bool) -> bool:
    return _choice(given, name, ("true", "false") if default else ("false", "true")) == "true"


def _choice(given: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    """The first of `choices` is the default."""
    text = given.get(name.lower(), choices[0]).strip().lower()
    if text not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, not {text!r}")
    return text


def _duration_ms(text: str | None, default: int) -> int:
    if text is None:
        return default
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip().lower())
    if not found or found[2] not in _UNITS_MS:
        raise ValueError(f"{text!r} is no time such as 15m")
    return int(found[1]) * _UNITS_MS[found[2]]
