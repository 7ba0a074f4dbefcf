"""The control batch that ends a transaction in one partition: a single record, written by the broker alone.

    key    version i16 = 0 | type i16: 0 abort, 1 commit
    value  version i16 = 0 | coordinator_epoch i32

The batch carries the producer's id and epoch and no sequence. KRaft logs have control records of other types, and
compaction may leave a control batch without its record. Both end nothing.
"""

import struct
from typing import NamedTuple

from penstock.wire.batch import (
    CONTROL_MASK,
    TRANSACTIONAL_MASK,
    Buffer,
    CorruptBatch,
    Record,
    build_batch,
    read_header,
    records_of,
)

ABORT = 0
COMMIT = 1
_VERSION = 0
_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_MARKER_BYTES_MAX = 1 << 10  # A marker has 16 bytes; nobody compresses it.


class EndTxnMarker(NamedTuple):
    is_commit: bool
    coordinator_epoch: int


def build_marker(
    marker: EndTxnMarker,
    *,
    base_offset: int,
    leader_epoch: int,
    producer_id: int,
    producer_epoch: int,
    timestamp: int,
) -> bytearray:
    key = _KEY.pack(_VERSION, COMMIT if marker.is_commit else ABORT)
    value = _VALUE.pack(_VERSION, marker.coordinator_epoch)
    return build_batch(
        [Record(base_offset, timestamp, key, value)],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=TRANSACTIONAL_MASK | CONTROL_MASK,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )


def read_marker(batch: Buffer) -> EndTxnMarker | None:
    """What a control batch says; None when it ends no transaction, CorruptBatch when it cannot be read."""
    if read_header(batch).records_count == 0:
        return None
    record = next(records_of(batch, decompressed_bytes_max=_MARKER_BYTES_MAX))
    try:
        _, kind = _KEY.unpack_from(record.key or b"")
        if kind not in (ABORT, COMMIT):
            return None
        _, coordinator_epoch = _VALUE.unpack_from(record.value or b"")
    except struct.error as error:
        raise CorruptBatch(f"control record at offset {record.offset} is cut short") from error
    return EndTxnMarker(kind == COMMIT, coordinator_epoch)
