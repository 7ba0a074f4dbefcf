"""What came before its partition is known to it, and who sends to nowhere takes no memory."""

from uuid import UUID

from penstock.base.errors import ErrorCode
from penstock.partition.refused_batches import PARTITIONS_MAX, PRODUCERS_MAX, RefusedBatches
from penstock.wire.batch import NO_PRODUCER_ID, Record, build_batch

TOPIC_ID = UUID(int=7)
UNKNOWN = ErrorCode.unknown_topic_or_partition


def batch(producer_id: int, sequence: int = 0) -> memoryview:
    records = [Record(0, 0, None, b"value")]
    built = build_batch(records, base_offset=0, leader_epoch=-1, producer_id=producer_id, base_sequence=sequence)
    return memoryview(built)


def test_the_first_of_each_producer_is_kept_until_the_partition_is_there() -> None:
    """Rule 13: whether the topic was known by its name or by its id."""
    refused = RefusedBatches()
    refused.add("topic", 0, batch(1, sequence=0), UNKNOWN)
    refused.add("topic", 0, batch(1, sequence=1), UNKNOWN)
    refused.add(TOPIC_ID, 0, batch(2, sequence=5), UNKNOWN)
    refused.add("topic", 1, batch(3), UNKNOWN)
    taken = refused.take("topic", TOPIC_ID, 0)
    assert [(header.producer_id, header.base_sequence, code) for header, code in taken] == [
        (1, 0, UNKNOWN),
        (2, 5, UNKNOWN),
    ]
    assert refused.take("topic", TOPIC_ID, 0) == []
    assert [header.producer_id for header, _ in refused.take("topic", TOPIC_ID, 1)] == [3]


def test_batches_without_a_producer_and_torn_ones_are_nothing_to_wait_for() -> None:
    refused = RefusedBatches()
    refused.add("topic", 0, batch(NO_PRODUCER_ID), UNKNOWN)
    refused.add("topic", 0, batch(1)[:30], UNKNOWN)
    assert refused.take("topic", TOPIC_ID, 0) == []


def test_the_oldest_partitions_and_the_newest_producers_are_forgotten() -> None:
    refused = RefusedBatches()
    for number in range(PARTITIONS_MAX + 1):
        refused.add("topic", number, batch(1), UNKNOWN)
    assert refused.take("topic", TOPIC_ID, 0) == []
    assert len(refused.take("topic", TOPIC_ID, 1)) == 1
    for producer_id in range(PRODUCERS_MAX + 1):
        refused.add("other", 0, batch(producer_id), UNKNOWN)
    assert len(refused.take("other", TOPIC_ID, 0)) == PRODUCERS_MAX
