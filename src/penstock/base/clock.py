"""The only place that reads a clock. Timers belong to the event loop, which simulation replaces."""

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since 1970: for record timestamps and retention, never for timeouts."""

    def monotonic(self) -> float:
        """Seconds that never jump: for timeouts and measurements."""


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()
