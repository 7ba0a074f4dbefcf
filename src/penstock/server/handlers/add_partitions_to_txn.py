"""AddPartitionsToTxn: what a transaction is going to write to; all of it, or nothing.

Up to v3 producers ask, for one transaction. From v4 on (KIP-890) leaders do, for many: with `verify_only` whether a
transaction has a partition; without, in v5, they add it on behalf of a producer of transaction.version 2.
v2 adds PRODUCER_FENCED, v3 is the first flexible version.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from penstock.base.errors import ErrorCode, Refused
from penstock.base.types import TopicPartition
from penstock.coordinator.txn.commands import AddPartitions
from penstock.coordinator.txn.metadata import VERSION_WITH_BUMP, Producer
from penstock.coordinator.txn.replies import PartitionsReply
from penstock.server.api import ApiKey, RequestHeader, handler
from penstock.server.authentication import require_broker
from penstock.server.context import Context
from penstock.server.txn_errors import fenced_as
from penstock.wire.codec import Struct

FENCED_VERSION = 2
BROKER_VERSION = 4
BUMP_VERSION = 5

Codes = dict[TopicPartition, ErrorCode]
Ask = Callable[[AddPartitions], Awaitable[PartitionsReply]]


@handler(ApiKey.ADD_PARTITIONS_TO_TXN, versions=range(6))
async def add_partitions_to_txn(context: Context, header: RequestHeader, request: Struct) -> Struct:
    if header.version >= BROKER_VERSION:
        return await _of_brokers(context, header, request)
    command = AddPartitions(
        transactional_id=request.v3_and_below_transactional_id,
        producer=Producer(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch),
        partitions=_partitions(request.v3_and_below_topics),
    )
    codes = await _added(context, command, context.txns.add_partitions_in_turn)
    told = {partition: fenced_as(code, header.version, FENCED_VERSION) for partition, code in codes.items()}
    return Struct(results_by_topic_v3_and_below=_results(request.v3_and_below_topics, told))


async def _of_brokers(context: Context, header: RequestHeader, request: Struct) -> Struct:
    try:
        require_broker(header.authentication, context.metadata.image)
    except Refused as refused:
        return Struct(error_code=refused.code, results_by_transaction=[])
    commands = [
        AddPartitions(
            transactional_id=item.transactional_id,
            producer=Producer(item.producer_id, item.producer_epoch),
            partitions=_partitions(item.topics),
            client_version=VERSION_WITH_BUMP if header.version >= BUMP_VERSION else 0,
        )
        for item in request.transactions
    ]
    asked = zip(commands, request.transactions, strict=True)
    txns = context.txns  # Without waiting for turns: the others of the same request would wait with it.
    answers = await asyncio.gather(
        *(
            _codes(command, txns.verify_partitions)
            if item.verify_only
            else _added(context, command, txns.add_partitions)
            for command, item in asked
        )
    )
    return Struct(
        error_code=ErrorCode.none,
        results_by_transaction=[
            Struct(transactional_id=item.transactional_id, topic_results=_results(item.topics, codes))
            for item, codes in zip(request.transactions, answers, strict=True)
        ],
    )


async def _added(context: Context, command: AddPartitions, ask: Ask) -> Codes:
    unknown = {partition for partition in command.partitions if not _exists(context, partition)}
    if unknown:
        # What the image does not have could not be told from what is deleted when the markers are written.
        missing, others = ErrorCode.unknown_topic_or_partition, ErrorCode.operation_not_attempted
        return {partition: missing if partition in unknown else others for partition in command.partitions}
    return await _codes(command, ask)


async def _codes(command: AddPartitions, ask: Ask) -> Codes:
    try:
        if not command.transactional_id:
            raise Refused(ErrorCode.invalid_request, "the transactional id is empty")
        return dict((await ask(command)).codes)
    except Refused as refused:
        return dict.fromkeys(command.partitions, refused.code)


def _exists(context: Context, partition: TopicPartition) -> bool:
    topic = context.metadata.image.topics.get(partition.topic)
    return topic is not None and 0 <= partition.partition < len(topic.partitions)


def _partitions(topics: Iterable[Struct]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic.name, number) for topic in topics for number in topic.partitions)


def _results(topics: Iterable[Struct], codes: Codes) -> list[Struct]:
    """The answers in the order of the request."""
    return [
        Struct(
            name=topic.name,
            results_by_partition=[
                Struct(partition_index=number, partition_error_code=codes[TopicPartition(topic.name, number)])
                for number in topic.partitions
            ],
        )
        for topic in topics
    ]
