"""How far a project's flows are, from the checkpoints that Spark keeps under its storage.

    storage/_checkpoints/TARGET/FLOW/VERSION/offsets/N   what batch N reads: `v1`, metadata, a line for each source
                                            /commits/N   batch N is done

A target's name may have several parts, each a folder. The highest version counts: a full refresh makes a new one.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.spark.plan import TopicPartition


@dataclass(frozen=True)
class FlowCheckpoint:
    flow: str
    target: str
    batch_id: int | None  # The last one that is done; None: none is.
    offsets: Mapping[TopicPartition, int]  # Up to where topics are read; of other sources nothing is known.


def read_checkpoints(storage: Path) -> list[FlowCheckpoint]:
    """One for each flow that has run, in order of their names."""
    root = storage / "_checkpoints"
    flows = sorted({found.parents[1] for found in root.glob("**/offsets") if found.parent.name.isdigit()})
    return [_read_flow(flow, root) for flow in flows]


def _read_flow(flow: Path, root: Path) -> FlowCheckpoint:
    newest = max((each for each in flow.iterdir() if each.name.isdigit()), key=lambda each: int(each.name))
    batch_id = _last_number(newest / "commits")
    target = ".".join(flow.parent.relative_to(root).parts)
    return FlowCheckpoint(
        flow.name, target, batch_id, {} if batch_id is None else read_offsets(newest / "offsets" / str(batch_id))
    )


def _last_number(folder: Path) -> int | None:
    return max((int(each.name) for each in folder.glob("*") if each.name.isdigit()), default=None)


def read_offsets(path: Path) -> dict[TopicPartition, int]:
    sources = path.read_text().splitlines()[2:]
    return {key: offset for source in sources for key, offset in offsets_of(source).items()}


def offsets_of(text: str | None) -> dict[TopicPartition, int]:
    """What a source says in the form of Kafka's connector; nothing when it is another kind of source."""
    try:
        found: Any = json.loads(text or "")
        return {
            (topic, int(partition)): int(offset)
            for topic, partitions in found.items()
            for partition, offset in partitions.items()
        }
    except (ValueError, AttributeError, TypeError):
        return {}
