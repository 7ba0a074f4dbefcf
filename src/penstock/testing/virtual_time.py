"""Time that tests can advance: the real clock plus an offset, for the broker's clock and its event loop alike.

Between two advances time runs as usual, so real clients on real sockets work. The offset belongs to the event loop's
thread: only there is it changed, so the wall clock, the monotonic clock and the timers never disagree.
"""

import asyncio
import time
from collections.abc import Callable

# A step is a share of the time that is left: about a hundred steps for a day, the last ones short. Work that repeats
# runs in most of them, so what is due a little before the end has had several chances by then.
STEP_SHARE = 8
STEP_MS_MIN = 10
TURNS_PER_STEP = 4  # Turns of the loop between two steps: a timer fires, its task runs, and what it woke runs.
BUSY_POLL_S = 0.0005
BUSY_POLLS_MAX = 2000  # A second: a disk that takes longer is not waited for.


class VirtualTime:
    """The Clock port, with an offset. `advance` moves it, and has the loop's timers fire on the way."""

    def __init__(self) -> None:
        self._offset_ms = 0  # Only grows.

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self._offset_ms

    def monotonic(self) -> float:
        return time.monotonic() + self._offset_ms / 1000

    async def advance(self, seconds: float, is_busy: Callable[[], bool] = lambda: False) -> None:
        """Return when `seconds` more have passed and the timers due by then have fired. On the broker's loop only.

        Between the steps the work that `is_busy` tells of, which takes real time, is waited for.
        """
        left_ms = round(seconds * 1000)
        while left_ms > 0:
            step_ms = min(left_ms, max(left_ms // STEP_SHARE, STEP_MS_MIN))
            self._offset_ms += step_ms
            left_ms -= step_ms
            for _ in range(TURNS_PER_STEP):
                await asyncio.sleep(0)
            for _ in range(BUSY_POLLS_MAX):
                if not is_busy():
                    break
                await asyncio.sleep(BUSY_POLL_S)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose timers follow a VirtualTime. uvloop keeps its own clock, so it cannot do this."""

    def __init__(self, clock: VirtualTime) -> None:
        self._virtual_time = clock
        super().__init__()

    def time(self) -> float:
        return self._virtual_time.monotonic()
