"""The control batch that ends a transaction, byte for byte Kafka's."""

import pytest

from penstock.wire.batch import (
    CONTROL_MASK,
    TRANSACTIONAL_MASK,
    CorruptBatch,
    Record,
    build_batch,
    read_header,
    records_of,
)
from penstock.wire.txn_marker import EndTxnMarker, build_marker, read_marker


def marker_batch(marker: EndTxnMarker) -> bytearray:
    return build_marker(marker, base_offset=7, leader_epoch=3, producer_id=4000, producer_epoch=5, timestamp=1234)


def control_batch(*records: Record) -> bytearray:
    attributes = TRANSACTIONAL_MASK | CONTROL_MASK
    return build_batch(records, base_offset=0, attributes=attributes, producer_id=1, producer_epoch=0, last_offset=0)


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_marker_has_the_fields_that_kafka_gives_it(is_commit: bool) -> None:
    batch = marker_batch(EndTxnMarker(is_commit, 9))
    header = read_header(batch)
    assert (header.base_offset, header.partition_leader_epoch, header.records_count) == (7, 3, 1)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4000, 5, -1)
    assert header.attributes == TRANSACTIONAL_MASK | CONTROL_MASK
    (record,) = records_of(batch, decompressed_bytes_max=100)
    assert record.key == bytes((0, 0, 0, int(is_commit)))
    assert record.value == bytes((0, 0, 0, 0, 0, 9))
    assert len(batch) == 78  # As Kafka's DumpLogSegments shows them.
    assert read_marker(batch) == EndTxnMarker(is_commit, 9)


def test_other_control_batches_end_nothing() -> None:
    assert read_marker(control_batch()) is None  # Compaction took the record away.
    assert read_marker(control_batch(Record(0, 0, b"\0\0\0\2", b"\0\0"))) is None  # A change of leader in KRaft.


@pytest.mark.parametrize(("key", "value"), [(b"\0\0\0", b"\0\0\0\0\0\0"), (None, None), (b"\0\0\0\1", b"\0\0\0\0\0")])
def test_a_marker_that_is_cut_short_is_corrupt(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(CorruptBatch):
        read_marker(control_batch(Record(0, 0, key, value)))
