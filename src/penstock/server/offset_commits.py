"""What OffsetCommit and TxnOffsetCommit have in common: the partitions that there are, and an answer for each."""

from collections.abc import Iterable

from penstock.base.errors import ErrorCode
from penstock.base.types import LeaderEpoch, Offset
from penstock.cluster.image import TopicImage
from penstock.coordinator.group.commands import PartitionCommit, TopicCommit
from penstock.coordinator.group.replies import CommitReply, PartitionResult, TopicResult
from penstock.wire.codec import ZERO_UUID, Struct


def commit_of(image: TopicImage, topic: Struct, answer: Struct) -> TopicCommit:
    """The commit of one topic; partitions that it does not have are answered at once."""
    partitions = []
    for item in topic.partitions:
        if not 0 <= item.partition_index < len(image.partitions):
            answer.partitions.append(
                Struct(partition_index=item.partition_index, error_code=ErrorCode.unknown_topic_or_partition)
            )
            continue
        partitions.append(
            PartitionCommit(
                item.partition_index,
                Offset(item.committed_offset),
                LeaderEpoch(item.committed_leader_epoch),
                item.committed_metadata,
            )
        )
    return TopicCommit(image.name, tuple(partitions), image.topic_id or ZERO_UUID)


def all_refused(topic: Struct, code: ErrorCode) -> list[Struct]:
    """The answer for the partitions of a topic that cannot be committed."""
    return [Struct(partition_index=item.partition_index, error_code=code) for item in topic.partitions]


def refused(topics: Iterable[TopicCommit], code: ErrorCode) -> CommitReply:
    """The answer of a coordinator that could not be asked."""
    return CommitReply(
        topics=tuple(
            TopicResult(topic.name, tuple(PartitionResult(item.partition, code) for item in topic.partitions))
            for topic in topics
        )
    )


def fill(answers: Iterable[Struct], reply: CommitReply) -> None:
    """Put the coordinator's results behind those that were known before."""
    by_name = {answer.name: answer for answer in answers}
    for result in reply.topics:
        by_name[result.name].partitions += [
            Struct(partition_index=partition, error_code=code) for partition, code in result.partitions
        ]
