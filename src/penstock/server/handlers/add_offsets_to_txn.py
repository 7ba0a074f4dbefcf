"""AddOffsetsToTxn: the transaction will commit offsets of a group, so its `__consumer_offsets` partition is part of it.

v2 adds PRODUCER_FENCED, v4 TRANSACTION_ABORTABLE. Clients of transaction.version 2 leave it to TxnOffsetCommit.
"""

from penstock.base.errors import ErrorCode, Refused
from penstock.base.types import TopicPartition
from penstock.coordinator.group_coordinator import OFFSETS_TOPIC
from penstock.coordinator.txn.commands import AddPartitions
from penstock.coordinator.txn.metadata import Producer
from penstock.server.api import ApiKey, RequestHeader, handler
from penstock.server.context import Context
from penstock.server.txn_errors import fenced_as
from penstock.wire.codec import Struct

FENCED_VERSION = 2


@handler(ApiKey.ADD_OFFSETS_TO_TXN, versions=range(5))
async def add_offsets_to_txn(context: Context, header: RequestHeader, request: Struct) -> Struct:
    try:
        code = await _add(context, request)
    except Refused as refused:
        code = refused.code
    return Struct(error_code=fenced_as(code, header.version, FENCED_VERSION))


async def _add(context: Context, request: Struct) -> ErrorCode:
    if not request.transactional_id:
        raise Refused(ErrorCode.invalid_request, "the transactional id is empty")
    await context.groups.find(request.group_id)  # Has the topic made, if it is the first group.
    partition = TopicPartition(OFFSETS_TOPIC, context.groups.partition_for(request.group_id))
    command = AddPartitions(
        transactional_id=request.transactional_id,
        producer=Producer(request.producer_id, request.producer_epoch),
        partitions=frozenset({partition}),
    )
    return (await context.txns.add_partitions_in_turn(command)).codes[partition]
