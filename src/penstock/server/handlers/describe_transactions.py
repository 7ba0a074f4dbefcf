"""DescribeTransactions: how far transactional ids are, and what their open transactions write to (KIP-664)."""

from penstock.base.errors import ErrorCode, Refused
from penstock.server.api import ApiKey, RequestHeader, handler
from penstock.server.context import Context
from penstock.wire.codec import Struct


@handler(ApiKey.DESCRIBE_TRANSACTIONS, versions=range(1))
def describe_transactions(context: Context, header: RequestHeader, request: Struct) -> Struct:
    # Once each: the answer may be long, and would be as long again for every two bytes of the request.
    return Struct(transaction_states=[_described(context, item) for item in dict.fromkeys(request.transactional_ids)])


def _described(context: Context, transactional_id: str) -> Struct:
    try:
        if not transactional_id:
            raise Refused(ErrorCode.invalid_request, "the transactional id is empty")
        found = context.txns.describe(transactional_id)
        if found is None:
            raise Refused(ErrorCode.transactional_id_not_found)
    except Refused as refused:
        return Struct(
            error_code=refused.code,
            transactional_id=transactional_id,
            transaction_state="",
            transaction_timeout_ms=0,
            transaction_start_time_ms=0,  # As Kafka, and not -1: there are readers that take it for a time.
            producer_id=0,
            producer_epoch=0,
            topics=[],
        )
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(found.partitions):
        by_topic.setdefault(topic, []).append(partition)
    return Struct(
        error_code=ErrorCode.none,
        transactional_id=transactional_id,
        transaction_state=found.state.title,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.start_ms,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=[Struct(topic=topic, partitions=partitions) for topic, partitions in by_topic.items()],
    )
