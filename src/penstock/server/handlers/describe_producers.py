"""DescribeProducers: who writes to a partition, as far as its leader remembers them (KIP-664).

The last timestamp is when we appended the batch; Kafka gives the records' own. Coordinator epoch and the start of a
transaction are -1 for who had none here. A partition that is asked for twice is refused: its list may be long, and
would be as long again for every four bytes of the request.
"""

from penstock.base.errors import ErrorCode, Refused
from penstock.base.types import NO_OFFSET
from penstock.partition.producer_state import Producer
from penstock.server.api import ApiKey, RequestHeader, handler
from penstock.server.context import Context
from penstock.wire.codec import Struct


@handler(ApiKey.DESCRIBE_PRODUCERS, versions=range(1))
def describe_producers(context: Context, header: RequestHeader, request: Struct) -> Struct:
    described: set[tuple[str, int]] = set()
    return Struct(
        topics=[
            Struct(
                name=topic.name,
                partitions=[_partition(context, described, topic.name, index) for index in topic.partition_indexes],
            )
            for topic in request.topics
        ]
    )


def _partition(context: Context, described: set[tuple[str, int]], topic: str, index: int) -> Struct:
    try:
        if (topic, index) in described:
            raise Refused(ErrorCode.invalid_request, "the partition is asked for twice")
        described.add((topic, index))
        producers = context.partitions.leader(topic, index).producers.producers
    except Refused as refused:
        return Struct(
            partition_index=index, error_code=refused.code, error_message=refused.message, active_producers=[]
        )
    return Struct(
        partition_index=index,
        error_code=ErrorCode.none,
        error_message=None,
        active_producers=[_producer(producer_id, producer) for producer_id, producer in producers.items()],
    )


def _producer(producer_id: int, producer: Producer) -> Struct:
    return Struct(
        producer_id=producer_id,
        producer_epoch=producer.epoch,
        last_sequence=producer.last_sequence,
        last_timestamp=producer.timestamp,
        coordinator_epoch=producer.coordinator_epoch,
        current_txn_start_offset=NO_OFFSET if producer.txn_first_offset is None else producer.txn_first_offset,
    )
