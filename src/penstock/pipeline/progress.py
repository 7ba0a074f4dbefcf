"""How a run is going: Spark's events in, one row for each flow out. No I/O, no clock.

Spark tells of a flow in words (`Flow orders is RUNNING.`), and of its batches as a streaming query's progress.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.pipeline.checkpoints import offsets_of

_STATE = re.compile(r"Flow '?(?P<flow>.+?)'? (?:is|has) (?P<state>[A-Z_]+)\b")
_DEFAULT_NAMESPACE = "spark_catalog.default."


@dataclass
class FlowProgress:
    name: str
    state: str = "queued"
    batches_count: int = 0
    rows_in: int = 0
    rows_out: int | None = None  # None: the target does not count them.
    rows_per_s: float | None = None  # Of the last batch that had rows.
    late_count: int = 0  # Rows that came behind the watermark, and were dropped.
    lag: int | None = None  # Records that were there when the last batch began, and are not read yet.

    def json(self) -> dict[str, Any]:
        return {
            "flow": self.name,
            "state": self.state,
            "batches": self.batches_count,
            "rows_in": self.rows_in,
            "rows_out": self.rows_out,
            "rows_per_s": self.rows_per_s,
            "late": self.late_count,
            "lag": self.lag,
        }


@dataclass
class RunProgress:
    flows: dict[str, FlowProgress] = field(default_factory=dict)
    updates_count: int = 0
    errors: list[str] = field(default_factory=list)  # Of the running update, in Spark's words.

    def begin_update(self) -> None:
        self.updates_count += 1
        self.errors.clear()
        for flow in self.flows.values():
            flow.state = "queued"

    def on_event(self, message: str) -> FlowProgress | None:
        """The flow that it was about."""
        first, _, rest = message.partition("\n")
        if rest:
            self.errors.append(rest.removeprefix("Error: "))
        found = _STATE.match(first)
        if not found:
            return None
        flow = self._flow(found["flow"])
        flow.state = found["state"].lower()
        return flow

    def on_batch(self, name: str, progress: Mapping[str, Any]) -> FlowProgress:
        """`progress` is a streaming query's, as Spark writes it in JSON."""
        flow = self._flow(name)
        flow.batches_count += 1
        rows = int(progress["numInputRows"])
        flow.rows_in += rows
        written = int(progress["sink"].get("numOutputRows", -1))
        if written >= 0:
            flow.rows_out = (flow.rows_out or 0) + written
        if rows:
            flow.rows_per_s = progress.get("processedRowsPerSecond")
        flow.late_count += sum(int(each["numRowsDroppedByWatermark"]) for each in progress.get("stateOperators", ()))
        lags = [_lag(source) for source in progress["sources"]]
        flow.lag = sum(each for each in lags if each is not None) if any(each is not None for each in lags) else None
        return flow

    def _flow(self, name: str) -> FlowProgress:
        short = name.removeprefix(_DEFAULT_NAMESPACE)
        return self.flows.setdefault(short, FlowProgress(short))


def _lag(source: Mapping[str, Any]) -> int | None:
    read, there = (_offsets(source.get(name)) for name in ("endOffset", "latestOffset"))
    if not there:
        return None
    return sum(max(0, end - read.get(key, 0)) for key, end in there.items())


def _offsets(place: Any) -> dict[Any, int]:
    """Spark hands over JSON, or what it has made of it."""
    return offsets_of(place if isinstance(place, str) or place is None else json.dumps(place))
