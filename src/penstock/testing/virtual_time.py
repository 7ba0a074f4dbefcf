"""Time that tests can advance: the real clock plus an offset, for the broker's clock and its event loop alike.

Between two advances time runs as usual, so real clients on real sockets work. The offset belongs to the event loop's
thread: only there is it changed, so the wall clock, the monotonic clock and the timers never disagree.
"""

import asyncio
import time

STEPS_MAX = 64  # Steps of one advance. Work that repeats, or that follows other work, runs once in each of them.
TURNS_PER_STEP = 4  # Turns of the loop between two steps: a timer fires, its task runs, and what it woke runs.


class VirtualTime:
    """The Clock port, with an offset. `advance` moves it, and has the loop's timers fire on the way."""

    def __init__(self) -> None:
        self._offset_ms = 0  # Only grows.

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self._offset_ms

    def monotonic(self) -> float:
        return time.monotonic() + self._offset_ms / 1000

    async def advance(self, seconds: float) -> None:
        """Return when `seconds` more have passed and the timers due by then have fired. On the broker's loop only."""
        left_ms = round(seconds * 1000)
        step_ms = max(1, -(-left_ms // STEPS_MAX))
        while left_ms > 0:
            self._offset_ms += min(step_ms, left_ms)
            left_ms -= step_ms
            for _ in range(TURNS_PER_STEP):
                await asyncio.sleep(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose timers follow a VirtualTime. uvloop keeps its own clock, so it cannot do this."""

    def __init__(self, clock: VirtualTime) -> None:
        self._virtual_time = clock
        super().__init__()

    def time(self) -> float:
        return self._virtual_time.monotonic()
