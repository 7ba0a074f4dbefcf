"""A message as received, and the receipt for one that was published."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import confluent_kafka

Content = bytes | str | None  # Text is sent as UTF-8.
Headers = Mapping[str, Content] | Sequence[tuple[str, Content]]


@dataclass(frozen=True, slots=True)
class Message:
    topic: str
    partition: int
    offset: int
    timestamp: int | None  # Milliseconds since 1970; None when the broker has none.
    key: bytes | None
    value: bytes | None
    header_pairs: tuple[tuple[str, bytes | None], ...] = ()  # As sent: in order, and a name may come twice.

    @property
    def headers(self) -> dict[str, bytes | None]:
        """Headers by name; of those with one name, the last."""
        return dict(self.header_pairs)


@dataclass(frozen=True, slots=True)
class Receipt:
    """Where a message was stored."""

    topic: str
    partition: int
    offset: int | None  # None with at-most-once: the broker was not asked.


def message_of(raw: confluent_kafka.Message) -> Message:
    topic, partition, offset = _place(raw)
    kind, timestamp = raw.timestamp()
    pairs: Any = raw.headers() or ()
    return Message(
        topic=topic,
        partition=partition,
        offset=offset,
        timestamp=timestamp if kind != confluent_kafka.TIMESTAMP_NOT_AVAILABLE else None,
        key=raw.key(),
        value=raw.value(),
        header_pairs=tuple(pairs),
    )


def receipt_of(raw: confluent_kafka.Message) -> Receipt:
    topic, partition, offset = _place(raw)
    return Receipt(topic, partition, offset if offset >= 0 else None)


def header_list(headers: Headers | None) -> list[tuple[str, Any]] | None:
    """Headers the way librdkafka takes them."""
    if not headers:
        return None
    return list(headers.items() if isinstance(headers, Mapping) else headers)


def _place(raw: confluent_kafka.Message) -> tuple[str, int, int]:
    topic, partition, offset = raw.topic(), raw.partition(), raw.offset()
    assert topic is not None, "only errors have no topic"
    return topic, -1 if partition is None else partition, -1 if offset is None else offset
