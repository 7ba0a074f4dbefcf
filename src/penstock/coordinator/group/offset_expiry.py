"""Which committed offsets nobody needs any more (KIP-211). Pure: a group and its offsets in, tombstones out.

    the group is empty                          its offsets go once it has been empty for the retention
    members consume other topics                offsets of topics nobody subscribes to go, counted from their commit
    nobody ever joined (assigns by itself)      each offset goes, counted from its commit
    all else, a rebalance above all             nothing goes

A client that named a retention of its own (up to v4) has it, as long as one of the first three holds.
"""

from collections.abc import Callable

from penstock.base.types import NO_TIMESTAMP
from penstock.coordinator.group.classic_group import ClassicGroup
from penstock.coordinator.group.offsets import CommittedOffset, TopicOffsets
from penstock.coordinator.group.records import OffsetDeleted
from penstock.coordinator.group.states import GroupState

_Since = Callable[[CommittedOffset], int]


def expired_offsets(group: ClassicGroup, offsets: TopicOffsets, wall_ms: int) -> list[OffsetDeleted]:
    """Tombstones for the offsets whose time is over."""
    since_ms = _counted_from(group)
    if since_ms is None:
        return []
    return [
        OffsetDeleted(group_id=group.group_id, topic=topic, partition=partition)
        for topic, partitions in offsets.items()
        if not group.is_subscribed_to(topic)
        for partition, committed in partitions.items()
        if _is_over(committed, since_ms, wall_ms, group.config.offsets_retention_ms)
    ]


def _counted_from(group: ClassicGroup) -> _Since | None:
    """When an offset's retention began; None when it does not run."""
    if group.state is GroupState.EMPTY:
        if group.protocol_type is None or group.state_since_ms == NO_TIMESTAMP:
            return _commit_time
        return lambda _: group.state_since_ms
    if group.state is GroupState.STABLE and group.subscribed_topics() is not None:
        return _commit_time
    return None


def _commit_time(committed: CommittedOffset) -> int:
    return committed.commit_timestamp_ms


def _is_over(committed: CommittedOffset, since_ms: _Since, wall_ms: int, retention_ms: int) -> bool:
    if committed.expire_timestamp_ms != NO_TIMESTAMP:
        return wall_ms >= committed.expire_timestamp_ms
    return wall_ms - since_ms(committed) >= retention_ms
