"""How fast something goes, as Kafka's quotas measure it: amounts per window of time, over the last few windows.

    |  w0  |  w1  |  …  |  w9  | w10 now       rate = sum / (ten whole windows and the part of the last)

A client that was silent may thus use up to ten windows' worth at once, and is then slowed until the average is right.
Pure: time is an argument, in seconds that never go back.
"""

from collections import deque
from typing import NamedTuple


class Windows(NamedTuple):
    number: int = 11  # Kafka's quota.window.num,
    seconds: int = 1  # and quota.window.size.seconds.


class Rate:
    """At most one sum for each window, whatever is recorded."""

    __slots__ = ("_sums", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._sums: deque[tuple[int, float]] = deque(maxlen=windows.number)  # Number of the window, and its sum.

    def record(self, amount: float, now_s: float) -> None:
        window = int(now_s // self._windows.seconds)
        sums = self._sums
        if sums and sums[-1][0] == window:
            sums[-1] = (window, sums[-1][1] + amount)
        else:
            sums.append((window, amount))

    def total(self, now_s: float) -> float:
        """All that was recorded in the windows that still count."""
        oldest = int(now_s // self._windows.seconds) - self._windows.number + 1
        sums = self._sums
        while sums and sums[0][0] < oldest:
            sums.popleft()
        return sum(amount for _, amount in sums)

    def span_s(self, now_s: float) -> float:
        """How much time the windows cover: never less than all but the last, or a first request would be a burst."""
        number, seconds = self._windows
        return max((number - 1) * seconds + now_s % seconds, 0.001)

    def throttle_s(self, limit: float, now_s: float) -> float:
        """How long to do nothing for the rate to come down to `limit`; 0 when it is not above it.

        Over a span W the rate is sum / W, and sum / (W + x) = limit after x = sum / limit - W.
        """
        return max(0.0, self.total(now_s) / limit - self.span_s(now_s))
