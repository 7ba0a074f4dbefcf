"""What the clients of a run did and saw, with the time of each event; many threads write it."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from penstock.base.types import TopicPartition
from penstock.sim.history import Event, History, Log, Operation, Phase, Polled, Send


class TimedHistory(History):
    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []  # Of the events, in time.monotonic().
        self._lock = threading.RLock()  # An operation's number is drawn and used under it.

    def invoke(self, operation: Operation) -> int:
        with self._lock:
            return super().invoke(operation)

    def _add(self, event: Event) -> None:
        with self._lock:
            self.times.append(time.monotonic())
            super()._add(event)

    def snapshot(self) -> tuple[list[Event], list[float]]:
        with self._lock:
            return list(self.events), list(self.times)

    def write(self, path: Path) -> None:
        """One JSON object a line, for whoever has to find out what happened."""
        events, times = self.snapshot()
        with path.open("w") as file:
            for at, event in zip(times, events, strict=True):
                file.write(json.dumps(_as_json(at, event)) + "\n")


def log_of(topic: str, partition: int) -> Log:
    return Log(TopicPartition(topic, partition), 0)


def ack_times(events: list[Event], times: list[float]) -> Iterator[tuple[Log, float]]:
    """When each send was acknowledged, in order."""
    for at, event in zip(times, events, strict=True):
        if event.phase is Phase.OK and isinstance(event.operation, Send):
            yield event.operation.log, at


def _as_json(at: float, event: Event) -> dict[str, object]:
    operation, result = event.operation, event.result
    entry: dict[str, object] = {
        "at": round(at, 6),
        "number": event.number,
        "phase": event.phase.value,
        "partition": str(operation.log.partition),
    }
    if isinstance(operation, Send):
        entry |= {"link": operation.link, "send": [value.decode() for value in operation.values]}
    else:
        entry["poll"] = operation.start
    if isinstance(result, Polled):
        entry |= {
            "watermark": result.high_watermark,
            "records": [[offset, value.decode(errors="replace")] for offset, value in result.records],
        }
    elif result is not None:
        entry["result"] = result if isinstance(result, str) else result.base_offset
    return entry
