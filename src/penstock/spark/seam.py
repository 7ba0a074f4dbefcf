"""Where the lake ends and the topic goes on. Pure: offsets in, offsets out."""

from penstock.spark.plan import Offsets, TopicPartition


class Gap(Exception):
    """Records that are neither in the lake nor in the topic."""


def live_starts(lake_ends: Offsets, earliest: Offsets, latest: Offsets) -> dict[TopicPartition, int]:
    """From which offset on each partition of the topic has what is not in the lake.

    `lake_ends` were taken first: whatever retention has deleted since then shows. A partition that only the lake has is
    left out; one that only the topic has is read from its beginning.
    """
    found = {}
    for key, first in earliest.items():
        topic, partition = key
        start = lake_ends.get(key, first)
        if start < first:
            raise Gap(
                f"{topic}-{partition}: the lake ends at offset {start}, and the topic begins at {first}: what was"
                " between them was deleted before it was archived."
            )
        if latest[key] < start:
            raise Gap(
                f"{topic}-{partition}: the lake ends at offset {start}, and the topic at {latest[key]} already: it was"
                " made anew, or lost its end."
            )
        found[key] = start
    return found
