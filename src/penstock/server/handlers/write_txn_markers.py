"""WriteTxnMarkers: end transactions in the partitions that this broker leads, as their coordinators have decided.

v2 says by which version of transactions a marker was made: from the second on its epoch is new (KIP-890). Answered when
the markers are committed.

Brokers alone end transactions; who else tries is told CLUSTER_AUTHORIZATION_FAILED. But for one that hangs: no
coordinator knows it, so nobody but an operator can get rid of it (kafka-transactions.sh abort, KIP-664), and as long as
there are no rights to be asked for, everybody may be one. What is not open is left alone: it is aborted, as was asked.
"""

import asyncio

from penstock.base.errors import ErrorCode, Refused
from penstock.base.types import Offset, TopicPartition
from penstock.coordinator.txn.markers import TxnMarker
from penstock.server.api import ApiKey, RequestHeader, handler
from penstock.server.context import Context
from penstock.server.txn_markers import append_marker
from penstock.wire.codec import Struct

COMMIT_S_MAX = 30.0  # Kafka's request.timeout.ms. The coordinator sends again what is not committed by then.
PARTITIONS_MAX = 10_000  # Of one request. Coordinators send far fewer; each is a batch to write.


@handler(ApiKey.WRITE_TXN_MARKERS, versions=range(1, 3))
async def write_txn_markers(context: Context, header: RequestHeader, request: Struct) -> Struct:
    is_broker = header.broker is not None and header.broker.is_current(context.metadata.image)
    markers = [_marker(item) for item in request.markers]
    wanted = [_partitions(item) for item in request.markers]
    if sum(map(len, wanted)) > PARTITIONS_MAX:
        refused = [dict.fromkeys(partitions, ErrorCode.invalid_request) for partitions in wanted]
        return _answer(markers, refused)
    tasks = [
        {partition: asyncio.create_task(_write(context, is_broker, marker, partition)) for partition in partitions}
        for marker, partitions in zip(markers, wanted, strict=True)
    ]
    under_way = [task for of_marker in tasks for task in of_marker.values()]
    try:
        if under_way:
            await asyncio.wait(under_way, timeout=COMMIT_S_MAX)
    finally:
        for task in under_way:
            task.cancel()
    return _answer(
        markers,
        [
            {
                partition: task.result() if task.done() else ErrorCode.request_timed_out
                for partition, task in of_marker.items()
            }
            for of_marker in tasks
        ],
    )


def _marker(item: Struct) -> TxnMarker:
    return TxnMarker(
        producer_id=item.producer_id,
        producer_epoch=item.producer_epoch,
        coordinator_epoch=item.coordinator_epoch,
        is_commit=item.transaction_result,
        transaction_version=item.transaction_version,
    )


def _partitions(item: Struct) -> list[TopicPartition]:
    """Each once, whatever the request says."""
    named = [TopicPartition(topic.name, index) for topic in item.topics for index in topic.partition_indexes]
    return list(dict.fromkeys(named))


async def _write(context: Context, is_broker: bool, marker: TxnMarker, to: TopicPartition) -> ErrorCode:
    if not is_broker:
        if marker.is_commit:
            return ErrorCode.cluster_authorization_failed
        try:
            began = _began(context, marker, to)
            if began is None:
                return ErrorCode.none
            if not await context.hanging_txns.hangs(marker.producer_id, to):
                return ErrorCode.cluster_authorization_failed
            if _began(context, marker, to) != began:
                return ErrorCode.broker_not_available  # Another one by now: to be asked about again.
        except Refused as refused:
            return refused.code
    return await append_marker(context.partitions, marker, to)


def _began(context: Context, marker: TxnMarker, to: TopicPartition) -> Offset | None:
    """Where the producer's open transaction begins in the partition, if there is one."""
    producer = context.partitions.leader(*to).producers.producers.get(marker.producer_id)
    return None if producer is None else producer.txn_first_offset


def _answer(markers: list[TxnMarker], codes: list[dict[TopicPartition, ErrorCode]]) -> Struct:
    return Struct(
        markers=[
            Struct(producer_id=marker.producer_id, topics=_topics(of_marker))
            for marker, of_marker in zip(markers, codes, strict=True)
        ]
    )


def _topics(codes: dict[TopicPartition, ErrorCode]) -> list[Struct]:
    topics: dict[str, list[Struct]] = {}
    for (topic, index), code in codes.items():
        topics.setdefault(topic, []).append(Struct(partition_index=index, error_code=code))
    return [Struct(name=name, partitions=partitions) for name, partitions in topics.items()]
