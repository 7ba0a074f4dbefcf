"""The offsets that the groups of one partition have committed, and the answer to OffsetFetch.

Pure: `apply` is the only way in. What is here is in the log; whether it is committed there, the reply's way out decides
(`replies_on_commit`).
"""

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple
from uuid import UUID

from penstock.base.errors import ErrorCode
from penstock.base.types import LeaderEpoch, Offset
from penstock.coordinator.group.commands import FetchOffsets, TopicPartitions
from penstock.coordinator.group.pending_offsets import PendingOffsets
from penstock.coordinator.group.records import OffsetCommitted, OffsetDeleted
from penstock.coordinator.group.replies import FetchedOffset, FetchedTopic, FetchReply
from penstock.wire.codec import ZERO_UUID


class CommittedOffset(NamedTuple):
    offset: Offset
    leader_epoch: LeaderEpoch
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int  # NO_TIMESTAMP: the broker's retention decides.
    topic_id: UUID


TopicOffsets = Mapping[str, Mapping[int, CommittedOffset]]
_NOTHING: TopicOffsets = {}


class OffsetStore:
    def __init__(self) -> None:
        # By group, topic, partition. No level is ever empty.
        self._groups: dict[str, dict[str, dict[int, CommittedOffset]]] = {}

    def apply(self, record: OffsetCommitted | OffsetDeleted) -> None:
        if isinstance(record, OffsetCommitted):
            topics = self._groups.setdefault(record.group_id, {})
            topics.setdefault(record.topic, {})[record.partition] = CommittedOffset(
                record.offset,
                record.leader_epoch,
                record.metadata,
                record.commit_timestamp_ms,
                record.expire_timestamp_ms,
                record.topic_id,
            )
        else:
            self._remove(record)

    def _remove(self, record: OffsetDeleted) -> None:
        topics = self._groups.get(record.group_id, {})
        partitions = topics.get(record.topic, {})
        if partitions.pop(record.partition, None) is None:
            return
        if not partitions:
            del topics[record.topic]
        if not topics:
            del self._groups[record.group_id]

    def __contains__(self, group_id: str) -> bool:
        """Whether the group has an offset."""
        return group_id in self._groups

    def of_group(self, group_id: str) -> TopicOffsets:
        return self._groups.get(group_id, _NOTHING)

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        return self.of_group(group_id).get(topic, {}).get(partition)

    def tombstones(self, group_id: str) -> Iterator[OffsetDeleted]:
        """What removes every offset of the group."""
        for topic, partitions in self.of_group(group_id).items():
            for partition in partitions:
                yield OffsetDeleted(group_id=group_id, topic=topic, partition=partition)

    def topic_tombstones(self, names: Collection[str]) -> Iterator[OffsetDeleted]:
        """What removes every group's offsets of these topics."""
        for group_id, topics in self._groups.items():
            for topic in names:
                for partition in topics.get(topic, ()):
                    yield OffsetDeleted(group_id=group_id, topic=topic, partition=partition)


def fetch_offsets(store: OffsetStore, pending: PendingOffsets, command: FetchOffsets) -> FetchReply:
    """The offsets asked for; -1 where the group has none. `pending`: see `FetchOffsets.require_stable`."""
    topics = store.of_group(command.group_id)
    if command.topics is None:
        asked = tuple(TopicPartitions(name, tuple(partitions)) for name, partitions in topics.items())
    else:
        asked = command.topics
    must_be_stable = command.require_stable and command.group_id in pending
    return FetchReply(
        topics=tuple(
            FetchedTopic(
                topic.name,
                tuple(
                    FetchedOffset(partition, error_code=ErrorCode.unstable_offset_commit)
                    if must_be_stable and pending.is_pending(command.group_id, topic.name, partition)
                    else _fetched(topics, topic, partition)
                    for partition in topic.partitions
                ),
            )
            for topic in asked
        )
    )


def _fetched(topics: TopicOffsets, topic: TopicPartitions, partition: int) -> FetchedOffset:
    committed = topics.get(topic.name, {}).get(partition)
    if committed is None or _is_of_another(committed.topic_id, topic.topic_id):
        return FetchedOffset(partition)
    return FetchedOffset(partition, committed.offset, committed.leader_epoch, committed.metadata)


def _is_of_another(committed: UUID, asked: UUID) -> bool:
    """Whether the offset is of a topic that had the name before: deleted, made again, and never the same records."""
    return ZERO_UUID not in (committed, asked) and committed != asked
