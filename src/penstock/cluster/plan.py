"""The shape of a decision: what to write to the store, under which conditions, and what to answer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from penstock.cluster import records
from penstock.cluster.image import PartitionState
from penstock.cluster.store.base import Check, Put, Write

R = TypeVar("R")

# ZooKeeper takes 1 MB at once. A write may need znodes above its own to be made or deleted, each with a path of its
# own, and has a check beside it.
WRITES_AT_ONCE_MAX = 1000
BYTES_AT_ONCE_MAX = 700_000
_BYTES_PER_WRITE = 100


@dataclass(slots=True)
class Plan(Generic[R]):
    """Answers in the order of the request. The writes of the items that were accepted are committed together.

    What is too much for one commit has `writes` in the middle, which alone decide whether it is done: `before` means
    nothing without them, and `after` means nothing once they are there.
    """

    results: list[R] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    before: list[Write] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    after: list[Write] = field(default_factory=list)

    @property
    def all_writes(self) -> list[Write]:
        return [*self.before, *self.writes, *self.after]


def put_state(topic: str, state: PartitionState) -> Put:
    record = records.PartitionStateRecord(
        state.leader,
        state.leader_epoch,
        state.isr,
        state.partition_epoch,
        state.isr_epochs,
        state.replicas,
        state.adding,
        state.removing,
        state.is_recovering,
    )
    return Put(records.partition_state_key(topic, state.partition), records.encode_partition_state(record))


def change_state(plan: Plan[R], topic: str, before: PartitionState, after: PartitionState) -> None:
    """Have the plan write `after`, if the store still has `before`."""
    plan.checks.append(Check(records.partition_state_key(topic, before.partition), before.version))
    plan.writes.append(put_state(topic, after))


def in_commits(writes: Sequence[Write]) -> Iterator[list[Write]]:
    """The writes in portions that a store takes at once."""
    portion: list[Write] = []
    size_bytes = 0
    for write in writes:
        write_bytes = _BYTES_PER_WRITE + 3 * len(write.key) + (len(write.value) if isinstance(write, Put) else 0)
        if portion and (len(portion) == WRITES_AT_ONCE_MAX or size_bytes + write_bytes > BYTES_AT_ONCE_MAX):
            yield portion
            portion, size_bytes = [], 0
        portion.append(write)
        size_bytes += write_bytes
    if portion:
        yield portion
