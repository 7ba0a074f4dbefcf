"""Changes of in-sync replicas that the controller does not answer."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from penstock.base.clock import SystemClock
from penstock.base.errors import ErrorCode
from penstock.base.types import LeaderEpoch, NodeId, Offset, TopicPartition
from penstock.partition import isr_changes
from penstock.partition.isr_changes import IsrChanges, WantedIsr
from penstock.partition.replica_state import ReplicaState


class Led:
    """A partition as far as its in-sync replicas are concerned."""

    topic_partition = TopicPartition("t", 0)

    def __init__(self) -> None:
        nodes = (NodeId(1), NodeId(2))
        self.leading = ReplicaState(
            node_id=nodes[0],
            leader_epoch=LeaderEpoch(1),
            partition_epoch=1,
            replicas=nodes,
            isr=nodes,
            log_end=Offset(10),
            high_watermark=Offset(10),
            now_s=float("-inf"),  # The follower has been silent for ever.
        )


@pytest.mark.parametrize("error", [OSError("away"), KeyError("a mistake")], ids=["unreachable", "a mistake"])
def test_a_change_is_asked_for_until_it_is_answered(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr(isr_changes, "RETRY_S", 0.0)

    async def scenario() -> None:
        asked: list[int] = []

        async def ask(wanted: Sequence[WantedIsr]) -> list[ErrorCode]:
            asked.append(len(wanted))
            if len(asked) < 3:
                raise error
            return [ErrorCode.none]

        changes = IsrChanges(clock=SystemClock(), lag_max_s=1.0, eligible_epochs=dict, ask=ask)
        partition: Any = Led()
        changes.look_at(partition)
        while changes._task is not None:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert asked == [1, 1, 1]
        assert partition.leading.pending == {1}  # Until the image shows it.

    asyncio.run(scenario())
