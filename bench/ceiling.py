"""The ceiling that a broker's figures are held against: what this machine could do at all, measured in the same run."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Self

from bench import limits

TIMES = 3
SYNCED_BATCH_BYTES = 16_384  # What the producer's default batches come to: one sync a batch is what anyone can expect.


class Limit(NamedTuple):
    name: str
    value: float  # In the unit of the figure that it limits.


class Ceiling(NamedTuple):
    loopback_mb_per_s: float
    write_mb_per_s: float  # Into the page cache.
    copy_mb_per_s: float  # From memory to memory.
    checksum_mb_per_s: float
    syncs_per_s: float
    round_trips_per_s: float  # Of one connection.

    @classmethod
    def measure(cls, place: Path) -> Self:
        """The best of a few short measurements: whatever else the machine does can only make them worse."""

        def best(measure_once: Callable[[], float]) -> float:
            return max(measure_once() for _ in range(TIMES))

        return cls(
            loopback_mb_per_s=best(limits.loopback_mb_per_s),
            write_mb_per_s=best(lambda: limits.page_cache_write_mb_per_s(place)),
            copy_mb_per_s=best(limits.memory_copy_mb_per_s),
            checksum_mb_per_s=best(limits.checksum_mb_per_s),
            syncs_per_s=best(lambda: limits.syncs_per_s(place)),
            round_trips_per_s=best(limits.round_trips_per_s),
        )

    def fitting(self, figure: str) -> Limit | None:
        """The lowest limit that stands in the way of this figure, if one does."""
        loopback = Limit("loopback", self.loopback_mb_per_s)
        match figure:
            case "produce MB/s":  # Each byte is received once and written once.
                return min(loopback, Limit("write", self.write_mb_per_s), key=lambda limit: limit.value)
            case "consume MB/s":
                return loopback
            case "synced MB/s":
                return Limit("fdatasync", self.syncs_per_s * SYNCED_BATCH_BYTES / 1e6)
            case "requests/s" | "deliveries/s":
                return Limit("round trips", self.round_trips_per_s)
            case "p50 ms":  # To the broker and from there to the consumer: two ways, as in a round trip.
                return Limit("round trip", 1000 / self.round_trips_per_s)
            case "mean ms":  # Of EndToEndLatency, which reads when it has been answered.
                return Limit("2 round trips", 2000 / self.round_trips_per_s)
        return None

    def share(self, figure: str, value: float) -> float | None:
        """How much of its limit a figure has reached; 1 is all of it."""
        limit = self.fitting(figure)
        if not limit or not value:
            return None
        return value / limit.value if figure.endswith("/s") else limit.value / value

    def __str__(self) -> str:
        names = (name.replace("_per_s", "/s").replace("_mb", " MB").replace("_", " ") for name in self._fields)
        return ", ".join(f"{name} {value:,.0f}" for name, value in zip(names, self, strict=True))
