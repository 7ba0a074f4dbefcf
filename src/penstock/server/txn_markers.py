"""Writing the markers that end a transaction, wherever its partitions are led, until every one of them has its own.

To another broker goes one WriteTxnMarkers at a time; what is to be sent meanwhile goes with the next, all together.
"""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from penstock.base.errors import ErrorCode, Refused
from penstock.base.logging import get_logger
from penstock.base.types import NO_NODE, NodeId, TopicPartition
from penstock.cluster.metadata import Metadata
from penstock.coordinator.txn.markers import TxnMarker
from penstock.partition.manager import PartitionManager
from penstock.partition.peers import PeerLost
from penstock.server.api import ApiKey
from penstock.server.links import Links
from penstock.wire.codec import Struct

log = get_logger(__name__)

VERSION = 2
REPLY_S_MAX = 40.0  # Longer than the leader waits for its followers: it answers for the others then.
RETRY_S_MIN, RETRY_S_MAX = 0.05, 1.0  # A new leader is there within seconds; it is asked again soon after.
PARTITIONS_MAX = 2_000  # In one request: some hundred kilobytes, and not a tenth of a second of the leader's time.
# An image may be behind the one that the partition was added under. One that lacks a topic for so long is not.
GONE_S = 5.0

# The partition has gone on to a later epoch of the producer, which it could not have while the transaction was open.
_OVER = frozenset({ErrorCode.none, ErrorCode.invalid_producer_epoch, ErrorCode.unsupported_for_message_format})


async def append_marker(partitions: PartitionManager, marker: TxnMarker, to: TopicPartition) -> ErrorCode:
    """Write the marker to a partition that this broker leads; gives what came of it when it is committed."""
    try:
        partition = partitions.leader(*to)
        end = partition.append_marker(
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            coordinator_epoch=marker.coordinator_epoch,
            is_commit=marker.is_commit,
            transaction_version=marker.transaction_version,
        )
    except Refused as refused:
        return refused.code
    committed: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

    def on_committed(code: ErrorCode) -> None:
        if not committed.done():
            committed.set_result(code)

    return ErrorCode.none if partition.when_committed(end, on_committed) else await committed


class TxnMarkers:
    def __init__(self, *, node_id: NodeId, metadata: Metadata, partitions: PartitionManager, links: Links) -> None:
        self._node_id = node_id
        self._metadata = metadata
        self._partitions = partitions
        self._links = links
        self._senders: dict[NodeId, _Sender] = {}  # No more than there have been brokers.

    async def write(self, marker: TxnMarker, partitions: Collection[TopicPartition]) -> None:
        """Comes back when every partition has the marker, or is gone; not before, however long that takes."""
        left = sorted(partitions)  # Sorted, for a simulation that is to be played again.
        loop = asyncio.get_running_loop()
        gone_since: dict[TopicPartition, float] = {}
        retry_s = RETRY_S_MIN
        while left:
            by_leader: dict[NodeId, list[TopicPartition]] = {}
            for partition in left:
                leader = self._leader(partition)
                if leader is not None:
                    by_leader.setdefault(leader, []).append(partition)
                    gone_since.pop(partition, None)
                else:
                    gone_since.setdefault(partition, loop.time())
            by_leader.pop(NO_NODE, None)
            answers = await asyncio.gather(*(self._write(leader, marker, its) for leader, its in by_leader.items()))
            codes = {partition: code for answer in answers for partition, code in answer.items()}
            gone = {partition for partition, since in gone_since.items() if loop.time() - since >= GONE_S}
            if gone:
                log.info("partitions of a transaction are gone", producer_id=marker.producer_id, count=len(gone))
            left = [
                partition
                for partition in left
                if partition not in gone and codes.get(partition, ErrorCode.not_leader_or_follower) not in _OVER
            ]
            if left:
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, RETRY_S_MAX)

    def _leader(self, partition: TopicPartition) -> NodeId | None:
        """Who leads it: nobody at times; None when the image has no such partition."""
        image = self._metadata.image
        topic = image.topics.get(partition.topic)
        if topic is None or partition.partition >= len(topic.partitions):
            return None
        leader = topic.partitions[partition.partition].leader
        return leader if leader in image.brokers else NO_NODE

    async def _write(
        self, leader: NodeId, marker: TxnMarker, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        if leader == self._node_id:
            own = await asyncio.gather(*(append_marker(self._partitions, marker, item) for item in partitions))
            return dict(zip(partitions, own, strict=True))
        sender = self._senders.get(leader)
        if sender is None:
            sender = self._senders[leader] = _Sender(self._links, leader)
        parts = [partitions[start : start + PARTITIONS_MAX] for start in range(0, len(partitions), PARTITIONS_MAX)]
        answers = await asyncio.gather(*(sender.send(marker, part) for part in parts))
        return {partition: code for answer in answers for partition, code in answer.items()}


class _Item(NamedTuple):
    marker: TxnMarker
    partitions: Sequence[TopicPartition]
    answer: asyncio.Future[dict[TopicPartition, ErrorCode]]


class _Sender:
    """The markers for one broker."""

    def __init__(self, links: Links, node_id: NodeId) -> None:
        self._links = links
        self._node_id = node_id
        self._queue: list[_Item] = []  # One for each transaction that ends, at the most.
        self._task: asyncio.Task[None] | None = None

    async def send(self, marker: TxnMarker, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, ErrorCode]:
        """The broker's answers; none when it cannot be reached."""
        item = _Item(marker, partitions, asyncio.get_running_loop().create_future())
        self._queue.append(item)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"markers to {self._node_id}")
        try:
            return await item.answer
        except asyncio.CancelledError:
            self._queue = [other for other in self._queue if other is not item]  # Nobody wants it any more.
            raise

    async def _run(self) -> None:
        """Until nothing is left to send."""
        while self._queue:
            batch = self._next_batch()
            codes: dict[tuple[int, TopicPartition], ErrorCode] = {}
            try:
                reply = await self._links.ask(
                    self._node_id, ApiKey.WRITE_TXN_MARKERS, VERSION, _request(batch), REPLY_S_MAX
                )
                codes = dict(_answers(reply))
            except (PeerLost, ValueError) as error:  # ValueError: a code of a version to come.
                log.debug("markers could not be sent", broker=self._node_id, count=len(batch), reason=error)
            finally:
                for item in batch:
                    if not item.answer.done():
                        producer_id = item.marker.producer_id
                        found = {tp: codes[producer_id, tp] for tp in item.partitions if (producer_id, tp) in codes}
                        item.answer.set_result(found)
        self._task = None

    def _next_batch(self) -> list[_Item]:
        """As much as goes into one request, of each producer one marker: the answers are told apart by its id."""
        batch: list[_Item] = []
        later: list[_Item] = []
        producer_ids: set[int] = set()
        count = 0
        for item in self._queue:
            if item.marker.producer_id in producer_ids or (batch and count + len(item.partitions) > PARTITIONS_MAX):
                later.append(item)
            else:
                batch.append(item)
                producer_ids.add(item.marker.producer_id)
                count += len(item.partitions)
        self._queue = later
        return batch


def _request(batch: Iterable[_Item]) -> Struct:
    return Struct(
        markers=[
            Struct(
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                transaction_result=marker.is_commit,
                topics=_topics(partitions),
                coordinator_epoch=marker.coordinator_epoch,
                transaction_version=marker.transaction_version,
            )
            for marker, partitions, _ in batch
        ]
    )


def _topics(partitions: Iterable[TopicPartition]) -> list[Struct]:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    return [Struct(name=name, partition_indexes=indexes) for name, indexes in by_topic.items()]


def _answers(reply: Struct) -> Iterable[tuple[tuple[int, TopicPartition], ErrorCode]]:
    for marker in reply.markers:
        for topic in marker.topics:
            for item in topic.partitions:
                partition = TopicPartition(topic.name, item.partition_index)
                yield (marker.producer_id, partition), ErrorCode(item.error_code)
