"""Records at a steady rate: sent by one thread, and timed by whoever receives them."""

import struct
import threading
import time
from collections.abc import Callable

from bench.latencies import Latencies
from bench.process import prompt_timers

RECORD_BYTES = 100
STAMP = struct.Struct(">q")
PADDING = bytes(RECORD_BYTES - STAMP.size)
LATE_S_MAX = 30


class Pace:
    def __init__(self, rate: int, seconds: float) -> None:
        self._interval_ns = 1_000_000_000 // rate
        self._warm_up = min(rate, int(rate * seconds))  # Records that are sent and read, but not counted.
        self._total = self._warm_up + int(rate * seconds)
        self._received_ns: list[int] = []
        self._is_complete = threading.Event()
        self._begun_s = time.perf_counter()
        self._deadline_s = self._begun_s + self._total / rate + LATE_S_MAX

    @property
    def is_complete(self) -> bool:
        """Whether all that is sent has been received; raises when that takes far too long."""
        if time.perf_counter() > self._deadline_s:
            raise TimeoutError(f"{len(self._received_ns)} of {self._total} records came back")
        return self._is_complete.is_set()

    def wait_until_complete(self) -> None:
        while not self.is_complete:
            self._is_complete.wait(1)

    def send_all(self, send: Callable[[bytes], object]) -> None:
        """Blocks: an event loop's timers are too coarse for a record every millisecond."""
        start_ns = time.perf_counter_ns()
        with prompt_timers():
            for number in range(self._total):
                due_ns = start_ns + number * self._interval_ns
                time.sleep(max(0, due_ns - time.perf_counter_ns()) / 1e9)
                # From when it was due: a generator that fell behind must not make the server look good.
                send(STAMP.pack(due_ns) + PADDING)

    def on_record(self, record: bytes) -> None:
        (due_ns,) = STAMP.unpack_from(record)
        self._received_ns.append(time.perf_counter_ns() - due_ns)
        if len(self._received_ns) == self._total:
            self._is_complete.set()

    def latencies(self) -> Latencies:
        return Latencies.of(self._received_ns[self._warm_up :], time.perf_counter() - self._begun_s)
