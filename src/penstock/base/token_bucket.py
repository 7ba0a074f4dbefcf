"""How much may be used of something that is limited per second: a bucket that drains at the limit.

    level <= limit * burst_s: go on        above it: wait until it has drained to there

Kafka averages over windows of time instead, and keeps a bucket for its newest quota alone (KIP-599). With windows a
client that uses all it may has ten seconds' worth at once, next to nothing for ten seconds, and so on for ever; with a
bucket the same burst comes once, and then the limit, evenly. Pure: time is an argument, in seconds that never go back.
"""


class TokenBucket:
    __slots__ = ("_at_s", "_level")

    def __init__(self) -> None:
        self._level = 0.0  # What has been used and not drained. 0 <= level
        self._at_s = 0.0  # When that was so.

    def take(self, amount: float, now_s: float, *, limit: float, burst_s: float) -> float:
        """Use `amount`; gives for how many seconds to use no more. `limit` is what drains in a second."""
        self._level = self.level(now_s, limit=limit) + amount
        self._at_s = now_s
        return self.wait_s(now_s, limit=limit, burst_s=burst_s)

    def give_back(self, amount: float) -> None:
        """Undo a `take` that has just been."""
        self._level = max(0.0, self._level - amount)

    def level(self, now_s: float, *, limit: float) -> float:
        return max(0.0, self._level - limit * (now_s - self._at_s))

    def wait_s(self, now_s: float, *, limit: float, burst_s: float) -> float:
        return max(0.0, self.level(now_s, limit=limit) / limit - burst_s)
