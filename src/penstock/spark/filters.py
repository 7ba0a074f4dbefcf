"""What of a query's conditions need not even be read. Pure: Spark's filters in, bounds out.

Conditions on topic, partition and offset are met exactly, and Spark need not look again. One on the timestamp gives
the offset to start at; since times may go up and down within a partition, Spark still looks at every row.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

OFFSET_END = (1 << 63) - 1

_NEVER_NULL = {"topic", "partition", "offset", "timestamp", "timestampType"}


@dataclass(frozen=True)
class Narrowed:
    """Bounds that hold together."""

    topics: frozenset[str] | None = None  # None: all.
    prefixes: tuple[str, ...] = ()
    partitions: frozenset[int] | None = None
    partition_min: int = 0
    partition_end: int = field(default=1 << 31)
    offset_min: int = 0
    offset_end: int = OFFSET_END
    timestamp_ms_min: int | None = None

    def has_partition(self, topic: str, partition: int) -> bool:
        return (
            (self.topics is None or topic in self.topics)
            and all(topic.startswith(prefix) for prefix in self.prefixes)
            and (self.partitions is None or partition in self.partitions)
            and self.partition_min <= partition < self.partition_end
        )

    @classmethod
    def by(cls, filters: Iterable[Filter]) -> tuple["Narrowed", list[Filter]]:
        """Bounds that meet the filters, and those that Spark has to look at all the same."""
        narrowed, left = cls(), []
        for each in filters:
            column = ".".join(getattr(each, "attribute", ()))
            narrower = narrowed._by(each, column, getattr(each, "value", None))
            if narrower is None or column == "timestamp":
                left.append(each)
            narrowed = narrower or narrowed
        return narrowed, left

    def _by(self, filter: Filter, column: str, value: Any) -> "Narrowed | None":
        """Bounds that hold for `filter` as well; None when it says nothing about them."""
        match filter, column:
            case IsNotNull(), _ if column in _NEVER_NULL:
                return self
            case EqualTo(), "topic":
                return replace(self, topics=_both(self.topics, [value]))
            case In(), "topic":
                return replace(self, topics=_both(self.topics, value))
            case StringStartsWith(), "topic":
                return replace(self, prefixes=(*self.prefixes, value))
            case EqualTo(), "partition":
                return replace(self, partitions=_both(self.partitions, [value]))
            case In(), "partition":
                return replace(self, partitions=_both(self.partitions, value))
            case ((GreaterThan() | GreaterThanOrEqual() | LessThan() | LessThanOrEqual()), "partition"):
                first, end = _interval(filter, value)
                return replace(
                    self, partition_min=max(self.partition_min, first), partition_end=min(self.partition_end, end)
                )
            case ((EqualTo() | GreaterThan() | GreaterThanOrEqual() | LessThan() | LessThanOrEqual()), "offset"):
                first, end = _interval(filter, value)
                return replace(self, offset_min=max(self.offset_min, first), offset_end=min(self.offset_end, end))
            case ((EqualTo() | GreaterThan() | GreaterThanOrEqual()), "timestamp") if isinstance(value, datetime):
                # Rounded down: a record has whole milliseconds, and a bound that is too low costs only time.
                least = int(value.timestamp() // 0.001)
                return replace(self, timestamp_ms_min=max(least, self.timestamp_ms_min or 0))
        return None


def _both(known: frozenset[Any] | None, values: Iterable[Any]) -> frozenset[Any]:
    return frozenset(values) if known is None else known & frozenset(values)


def _interval(filter: Filter, value: int) -> tuple[int, int]:
    """The numbers that meet `filter`, as a half-open range."""
    match filter:
        case EqualTo():
            return value, value + 1
        case GreaterThan():
            return value + 1, OFFSET_END
        case GreaterThanOrEqual():
            return value, OFFSET_END
        case LessThan():
            return 0, value
        case _:
            return 0, value + 1
