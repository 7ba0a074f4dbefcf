"""How far a stream is behind its topics, by what its progress says. Pure.

Spark's own connector puts such figures into the `metrics` of a source's progress. A source in Python cannot: Spark asks
only streams that are `ReportsSourceMetrics` for them, and PythonMicroBatchStream is not one (4.2). What it does show
of a Python source is `endOffset`, up to where the batch has read, and `latestOffset`, up to where there was something
to read when the batch began.
"""

import json
from collections.abc import Mapping
from typing import Any

from penstock.spark.plan import TopicPartition, from_json


def lag(progress: Mapping[str, Any] | None) -> dict[TopicPartition, int]:
    """For each partition how many offsets the query had not read when the batch ended, of those there at its beginning.

    `progress` is `query.lastProgress`, one of `query.recentProgress`, or a listener's `event.progress`. Sources that
    are not topics do not count. Nothing before the first batch.
    """
    found: dict[TopicPartition, int] = {}
    for source in (progress or {}).get("sources", ()):
        read, there = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        for key, end in there.items():
            found[key] = found.get(key, 0) + max(end - read.get(key, 0), 0)
    return found


def _offsets(place: Any) -> dict[TopicPartition, int]:
    """Spark hands over text, or what it has made of it; another source's offsets have another form."""
    try:
        return from_json(json.loads(place) if isinstance(place, str) else place)
    except (ValueError, AttributeError, TypeError):
        return {}
