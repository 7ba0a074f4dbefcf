"""How long records took on their way, as one run of a load saw it."""

from collections.abc import Sequence
from typing import NamedTuple, Self


class Latencies(NamedTuple):
    count: int
    seconds: float
    p50_ms: float
    p99_ms: float
    p999_ms: float

    @classmethod
    def of(cls, samples_ns: Sequence[int], seconds: float) -> Self:
        ordered = sorted(samples_ns)
        cuts = (ordered[int(len(ordered) * share)] / 1e6 for share in (0.5, 0.99, 0.999))
        return cls(len(ordered), seconds, *cuts)
