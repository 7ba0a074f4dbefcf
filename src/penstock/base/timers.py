"""Many deadlines, one event-loop timer: a wheel of ticks.

A fetch that waits sets a deadline and mostly cancels it, thousands of times a second; here both are a dict operation.
Deadlines fire up to one tick late, never early.
"""

import asyncio
import math
from collections.abc import Callable

TICK_S = 0.005  # Half a per cent of the default fetch wait of 500 ms, and a quiet broker still sleeps.


class Timer:
    __slots__ = ("_slot", "callback")

    def __init__(self, callback: Callable[[], None], slot: "dict[Timer, None]") -> None:
        self.callback = callback
        self._slot = slot

    def cancel(self) -> None:
        self._slot.pop(self, None)


class TimerWheel:
    def __init__(self) -> None:
        self._slots: dict[int, dict[Timer, None]] = {}
        self._handle: asyncio.TimerHandle | None = None
        self._next_tick = 0

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        loop = asyncio.get_running_loop()
        tick = math.ceil((loop.time() + delay_s) / TICK_S)
        slot = self._slots.get(tick)
        if slot is None:
            slot = self._slots[tick] = {}
            if self._handle is None or tick < self._next_tick:
                self._schedule(loop, tick)
        timer = Timer(callback, slot)
        slot[timer] = None
        return timer

    def _schedule(self, loop: asyncio.AbstractEventLoop, tick: int) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._next_tick = tick
        self._handle = loop.call_at(tick * TICK_S, self._fire)

    def _fire(self) -> None:
        self._handle = None
        slot = self._slots.pop(self._next_tick)
        while slot:
            timer = next(iter(slot))
            del slot[timer]
            timer.callback()
        if self._slots:
            # Also when a callback has set a timer: with no handle there, it took its own tick for the next.
            self._schedule(asyncio.get_running_loop(), min(self._slots))

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._slots.clear()
