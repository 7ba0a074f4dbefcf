"""Asks the controller for the changes of in-sync replicas that leaders want: all that are due, one request at a time.

A change that was not answered may have been carried out: it stays pending (replica_state.py) and is asked for again,
until the image shows what the controller has decided.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from penstock.base.clock import Clock
from penstock.base.errors import ErrorCode
from penstock.base.logging import get_logger
from penstock.base.types import NodeId
from penstock.partition.partition import Partition
from penstock.partition.replica_state import IsrChange, ReplicaState

log = get_logger(__name__)

RETRY_S = 0.2  # The controller is moving, or its image is ahead of ours.
# Nobody has carried it out, for certain. After INVALID_UPDATE_VERSION somebody else's change, or our own first try, is
# on its way to us in the image.
REFUSALS = frozenset(
    (
        ErrorCode.ineligible_replica,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_topic_id,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.invalid_request,
        ErrorCode.stale_broker_epoch,
    )
)


class WantedIsr(NamedTuple):
    partition: Partition
    leading: ReplicaState
    change: IsrChange

    @property
    def is_wanted(self) -> bool:
        """Whether nothing has been decided since it was asked for."""
        leading = self.leading
        return (
            self.partition.leading is leading
            and leading.pending == self.change.isr
            and leading.partition_epoch == self.change.partition_epoch
        )


# Answers with an error code for each; OSError, such as PeerLost, when nobody can say.
AskController = Callable[[Sequence[WantedIsr]], Awaitable[Sequence[ErrorCode]]]


class IsrChanges:
    def __init__(
        self,
        *,
        clock: Clock,
        lag_max_s: float,
        eligible_epochs: Callable[[], Mapping[NodeId, int]],
        ask: AskController,
    ) -> None:
        """`eligible_epochs`: see `ReplicaState.isr_change`."""
        self._clock = clock
        self._lag_max_s = lag_max_s
        self._eligible_epochs = eligible_epochs
        self._ask = ask
        self._due: list[WantedIsr] = []
        self._task: asyncio.Task[None] | None = None

    def look_at(self, partition: Partition) -> None:
        """Ask for a change of the partition's in-sync replicas, if one is due."""
        leading = partition.leading
        if leading is None or leading.is_alone or leading.pending is not None:
            return
        change = leading.isr_change(
            self._clock.monotonic(), lag_max_s=self._lag_max_s, eligible_epochs=self._eligible_epochs()
        )
        if change is None:
            return
        log.info("in-sync replicas are to change", partition=partition.topic_partition, isr=sorted(leading.isr),
                 to=sorted(change.isr))  # fmt: skip
        self._due.append(WantedIsr(partition, leading, change))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="isr changes")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while self._due:
                await asyncio.sleep(0)  # What is due in the same turn goes together.
                asked, self._due = [item for item in self._due if item.is_wanted], []
                if asked and await self._ask_for(asked):
                    await asyncio.sleep(RETRY_S)
        finally:
            self._task = None

    async def _ask_for(self, asked: list[WantedIsr]) -> bool:
        """Whether some have to be asked for again."""
        try:
            codes = await self._ask(asked)
        except OSError as error:  # PeerLost is one.
            log.warning("in-sync replicas cannot be changed now", reason=error)
            self._due += asked
            return True
        except Exception:
            # A task root. Given up, a change would stay pending, and its partition with a replica that it waits for.
            log.exception("in-sync replicas cannot be changed now")
            self._due += asked
            return True
        for item, code in zip(asked, codes, strict=True):
            if code is ErrorCode.none or not item.is_wanted:
                continue
            log.info("change of in-sync replicas was refused", partition=item.partition.topic_partition, code=code.name)
            if code in REFUSALS:
                item.leading.on_refused()
            else:
                self._due.append(item)
        return bool(self._due)
