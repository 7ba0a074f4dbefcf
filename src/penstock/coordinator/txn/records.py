"""What `__transaction_state` holds, byte for byte as Kafka 4 writes it (TransactionLogKey and TransactionLogValue).

    key v0    version i16 | transactional_id string
    value v1  version i16 | producer_id i64 | producer_epoch i16 | timeout_ms i32 | status i8
              | partitions (topic, ids i32 …) or null | last_update_ms i64 | start_ms i64
              | tags 0: previous producer id i64, 1: next producer id i64, 2: client transaction version i16,
              3: next producer epoch i16 (KIP-939)

v0 is the same without tags and with longer lengths. A tag of our own, 1000, has the last producer epoch (i16), which
Kafka forgets when the coordinator moves: a producer that sends InitProducerId again would then be taken for a zombie.
Readers that do not know a tag pass over it.
"""

import struct
from typing import Final

from penstock.base.types import TopicPartition
from penstock.coordinator.record_bytes import INT16, INT64, CorruptRecord, Reader, string
from penstock.coordinator.txn.metadata import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TransactionDeleted,
    TransactionMetadata,
    TxnRecord,
)
from penstock.coordinator.txn.states import TxnState
from penstock.wire.varint import InvalidVarint, write_uvarint

KEY_VERSION: Final = 0
VALUE_WRITTEN: Final = 1
FLEXIBLE_FROM: Final = 1

PREVIOUS_PRODUCER_ID_TAG: Final = 0
NEXT_PRODUCER_ID_TAG: Final = 1
CLIENT_VERSION_TAG: Final = 2
NEXT_PRODUCER_EPOCH_TAG: Final = 3
LAST_PRODUCER_EPOCH_TAG: Final = 1000

TOPIC_BYTES_MIN: Final = (
    2  # The least that a topic of a claimed count can take (v1): a name and a number of partitions.
)

_VALUE_START = struct.Struct(">hqhib")  # version, producer_id, producer_epoch, timeout_ms, status
_TIMES = struct.Struct(">qq")


def encode(record: TxnRecord) -> tuple[bytes, bytes | None]:
    """The record's key and value; a value of None is a tombstone."""
    key = INT16.pack(KEY_VERSION) + string(record.transactional_id)
    return key, None if isinstance(record, TransactionDeleted) else _value(record)


def decode(key: bytes | None, value: bytes | None) -> TxnRecord | None:
    """The record, or None when its key is of a type that is not ours. CorruptRecord when it is and cannot be read."""
    if key is None:
        return None
    try:
        return _decode(key, value)
    except (struct.error, IndexError, InvalidVarint, UnicodeDecodeError) as error:
        raise CorruptRecord(f"record cannot be read: {error}") from error


def _value(record: TransactionMetadata) -> bytes:
    out = bytearray(
        _VALUE_START.pack(
            VALUE_WRITTEN, record.producer_id, record.producer_epoch, record.timeout_ms, record.state.value
        )
    )
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(record.partitions):
        by_topic.setdefault(topic, []).append(partition)
    if by_topic or record.state is not TxnState.EMPTY:
        write_uvarint(out, len(by_topic) + 1)
    else:
        write_uvarint(out, 0)  # Null, as Kafka writes it.
    for topic, partitions in by_topic.items():
        name = topic.encode()
        write_uvarint(out, len(name) + 1)
        out += name
        write_uvarint(out, len(partitions) + 1)
        out += struct.pack(f">{len(partitions)}i", *partitions)
        write_uvarint(out, 0)
    out += _TIMES.pack(record.last_update_ms, record.start_ms)
    tags = [
        (PREVIOUS_PRODUCER_ID_TAG, INT64, record.previous_producer_id, NO_PRODUCER_ID),
        (NEXT_PRODUCER_ID_TAG, INT64, record.next_producer_id, NO_PRODUCER_ID),
        (CLIENT_VERSION_TAG, INT16, record.client_version, 0),
        (NEXT_PRODUCER_EPOCH_TAG, INT16, record.next_producer_epoch, NO_PRODUCER_EPOCH),
        (LAST_PRODUCER_EPOCH_TAG, INT16, record.last_producer_epoch, NO_PRODUCER_EPOCH),
    ]
    written = [(tag, layout.pack(value)) for tag, layout, value, default in tags if value != default]
    write_uvarint(out, len(written))
    for tag, raw in written:
        write_uvarint(out, tag)
        write_uvarint(out, len(raw))
        out += raw
    return bytes(out)


def _decode(key: bytes, value: bytes | None) -> TxnRecord | None:
    reader = Reader(key)
    if reader.int16() != KEY_VERSION:
        return None
    transactional_id = reader.string()
    if value is None:
        return TransactionDeleted(transactional_id=transactional_id)
    reader = Reader(value)
    version = reader.int16()
    if not 0 <= version <= VALUE_WRITTEN:
        raise CorruptRecord(f"a value of version {version}")
    reader.flexible = version >= FLEXIBLE_FROM
    producer_id, producer_epoch, timeout_ms = reader.int64(), reader.int16(), reader.int32()
    status = reader.int8()
    try:
        state = TxnState(status)
    except ValueError as error:
        raise CorruptRecord(f"a transaction of state {status}") from error
    partitions = frozenset(_read_partitions(reader))
    last_update_ms, start_ms = reader.int64(), reader.int64()
    tags = reader.tags()

    def tagged(tag: int, layout: struct.Struct, default: int) -> int:
        return int(layout.unpack(tags[tag])[0]) if tag in tags else default

    return TransactionMetadata(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        previous_producer_id=tagged(PREVIOUS_PRODUCER_ID_TAG, INT64, NO_PRODUCER_ID),
        last_producer_epoch=tagged(LAST_PRODUCER_EPOCH_TAG, INT16, NO_PRODUCER_EPOCH),
        next_producer_id=tagged(NEXT_PRODUCER_ID_TAG, INT64, NO_PRODUCER_ID),
        next_producer_epoch=tagged(NEXT_PRODUCER_EPOCH_TAG, INT16, NO_PRODUCER_EPOCH),
        timeout_ms=timeout_ms,
        state=state,
        partitions=partitions,
        start_ms=start_ms,
        last_update_ms=last_update_ms,
        client_version=tagged(CLIENT_VERSION_TAG, INT16, 0),
    )


def _read_partitions(reader: Reader) -> list[TopicPartition]:
    found: list[TopicPartition] = []
    for _ in range(reader.count(TOPIC_BYTES_MIN, null_as=0)):
        topic = reader.string()
        found += [TopicPartition(topic, reader.int32()) for _ in range(reader.count(item_bytes_min=4))]
        reader.tags()
    return found
