"""Many deadlines, one event-loop timer: a wheel of ticks.

A fetch that waits sets a deadline and mostly cancels it, thousands of times a second; here both are a dict operation.
Deadlines fire up to one tick late, never early.
"""

import asyncio
import heapq
import math
from collections.abc import Callable

TICK_S = 0.005  # Half a per cent of the default fetch wait of 500 ms, and a quiet broker still sleeps.
# So many slots at least, and twice as many as were left, before those are swept out whose timers were all cancelled.
SWEPT_SLOTS_MIN = 1024


def _nothing() -> None:
    """What a timer does that is over."""


class Timer:
    __slots__ = ("_slot", "callback")

    def __init__(self, callback: Callable[[], None], slot: "dict[Timer, None]") -> None:
        self.callback = callback
        self._slot = slot

    def cancel(self) -> None:
        self._slot.pop(self, None)
        self.callback = _nothing  # Who sets a timer mostly keeps it: a cycle, and the collector hardly ever runs.


class TimerWheel:
    def __init__(self) -> None:
        self._slots: dict[int, dict[Timer, None]] = {}
        self._ticks: list[int] = []  # The keys of `_slots`, as a heap.
        self._handle: asyncio.TimerHandle | None = None  # For the earliest of them.
        self._is_firing = False
        self._sweep_at = SWEPT_SLOTS_MIN  # With so many slots.

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        loop = asyncio.get_running_loop()
        tick = math.ceil((loop.time() + delay_s) / TICK_S)
        slot = self._slots.get(tick)
        if slot is None:
            if len(self._slots) >= self._sweep_at and not self._is_firing:
                self._sweep(loop)
            slot = self._add_slot(tick)
            if self._ticks[0] == tick and not self._is_firing:  # Else `_fire` schedules what is next when it is done.
                self._schedule(loop)
        timer = Timer(callback, slot)
        slot[timer] = None
        return timer

    def _add_slot(self, tick: int) -> dict[Timer, None]:
        heapq.heappush(self._ticks, tick)
        slot: dict[Timer, None] = {}
        self._slots[tick] = slot
        return slot

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Forget the slots that nobody waits for: clients choose deadlines weeks away, and mostly cancel them."""
        self._slots = {tick: slot for tick, slot in self._slots.items() if slot}
        self._ticks = list(self._slots)
        heapq.heapify(self._ticks)
        self._sweep_at = max(SWEPT_SLOTS_MIN, 2 * len(self._slots))
        if self._ticks:
            self._schedule(loop)
        elif self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._handle = loop.call_at(self._ticks[0] * TICK_S, self._fire)

    def _fire(self) -> None:
        self._handle = None
        self._is_firing = True
        slot = self._slots[self._ticks[0]]
        try:
            while slot:
                timer = next(iter(slot))
                del slot[timer]
                callback, timer.callback = timer.callback, _nothing
                callback()
        finally:
            # A callback that failed leaves the others of its slot, whose time has come, for the next turn of the loop.
            self._is_firing = False
            if not slot and self._slots:
                del self._slots[heapq.heappop(self._ticks)]
            if self._slots:
                self._schedule(asyncio.get_running_loop())

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._slots.clear()
        self._ticks.clear()
