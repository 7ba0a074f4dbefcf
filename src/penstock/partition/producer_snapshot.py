"""A partition's producers as bytes: the file `<offset, 20 digits>.snapshot`, which Kafka reads and writes too.

    version i16 = 1 | crc u32 | count i32 | entries, 46 bytes each:
    producer_id i64 | epoch i16 | last_sequence i32 | last_offset i64 | offset_delta i32 | timestamp i64
    coordinator_epoch i32 | current_txn_first_offset i64

The state is that of all batches below the offset in the name. `crc` is CRC32C of everything after itself; integers are
big-endian; -1 is none. Kafka writes one entry for each producer, its last batch. We write up to six side by side, the
last batch last, because Kafka's reader keeps the last entry that it finds for a producer:

    what is older    last_offset -1: sequences down to last_sequence - offset_delta are stored, where is forgotten
    the batches      oldest first, at most five

A file that is damaged in any way is BadSnapshot, and the state is then replayed from the log. It is never "nobody".
"""

import struct
from itertools import chain

from penstock.base.types import Offset
from penstock.partition.producer_state import (
    BATCHES_MAX,
    PRODUCERS_MAX,
    SEQUENCE_MASK,
    STORED_COUNT_MAX,
    Producer,
    ProducerState,
    StoredBatch,
)
from penstock.wire.checksum import crc32c

SNAPSHOT_SUFFIX = ".snapshot"
VERSION = 1

_HEAD = struct.Struct(">hIi")
_CRC = struct.Struct(">I")
_ENTRY = struct.Struct(">qhiqiqiq")
_CRC_POSITION = 2
_CRC_START = 6
_NONE = -1


class BadSnapshot(ValueError):
    """The bytes are not what was written: use an older snapshot, or none, and replay."""


def snapshot_name(offset: Offset) -> str:
    return f"{offset:020d}{SNAPSHOT_SUFFIX}"


def snapshot_offset_of(name: str) -> Offset | None:
    """The offset that a snapshot's name states; None when it is no snapshot."""
    digits = name.removesuffix(SNAPSHOT_SUFFIX)
    is_snapshot = digits != name and len(digits) == 20 and digits.isascii() and digits.isdigit()
    return Offset(int(digits)) if is_snapshot else None


def encode_snapshot(state: ProducerState) -> bytes:
    entries = list(
        chain.from_iterable(_entries_of(producer_id, producer) for producer_id, producer in state.producers.items())
    )
    data = bytearray(_HEAD.pack(VERSION, 0, len(entries)) + b"".join(entries))
    _CRC.pack_into(data, _CRC_POSITION, crc32c(memoryview(data)[_CRC_START:]))
    return bytes(data)


def _entries_of(producer_id: int, producer: Producer) -> list[bytes]:
    epoch, batches, timestamp = producer.epoch, producer.batches, producer.timestamp
    coordinator_epoch = producer.coordinator_epoch
    txn_first_offset = _NONE if producer.txn_first_offset is None else producer.txn_first_offset
    pack = _ENTRY.pack
    if not batches:
        return [pack(producer_id, epoch, _NONE, _NONE, 0, timestamp, coordinator_epoch, txn_first_offset)]
    entries = []
    older_count = min(producer.stored_count, STORED_COUNT_MAX) - producer.window_count
    if older_count > 0:
        last = (batches[0].first_sequence - 1) & SEQUENCE_MASK
        entries.append(
            pack(producer_id, epoch, last, _NONE, older_count - 1, timestamp, coordinator_epoch, txn_first_offset)
        )
    for number, (_, last_sequence, base_offset, last_offset, appended_ms) in enumerate(batches, start=1):
        if number == len(batches):
            appended_ms = timestamp  # As in Kafka: a marker behind the last batch keeps its producer from expiring.
        delta = last_offset - base_offset
        entries.append(
            pack(
                producer_id, epoch, last_sequence, last_offset, delta, appended_ms, coordinator_epoch, txn_first_offset
            )
        )
    return entries


def decode_snapshot(data: bytes, *, producers_max: int = PRODUCERS_MAX) -> ProducerState:
    """The state that was encoded, ours or Kafka's; BadSnapshot when it cannot be had."""
    if len(data) < _HEAD.size:
        raise BadSnapshot(f"{len(data)} bytes are no snapshot")
    version, crc, count = _HEAD.unpack_from(data)
    if version != VERSION:
        raise BadSnapshot(f"version {version} is not {VERSION}")
    if crc32c(memoryview(data)[_CRC_START:]) != crc:
        raise BadSnapshot("checksum does not match")
    if count < 0 or len(data) != _HEAD.size + count * _ENTRY.size:
        raise BadSnapshot(f"{count} entries stated, {len(data) - _HEAD.size} bytes found")
    state = ProducerState(producers_max=producers_max)
    for entry in _ENTRY.iter_unpack(memoryview(data)[_HEAD.size :]):
        _take(state.producers, *entry)
    opened = [(producer.txn_first_offset, of) for of, producer in state.producers.items()]
    for first_offset, producer_id in sorted((first, of) for first, of in opened if first is not None):
        state.transactions.begin(producer_id, first_offset)
    return state


def _take(
    producers: dict[int, Producer],
    producer_id: int,
    epoch: int,
    last_sequence: int,
    last_offset: int,
    delta: int,
    timestamp: int,
    coordinator_epoch: int,
    txn_first_offset: int,
) -> None:
    producer = producers.get(producer_id)
    if producer is None:
        producer = producers[producer_id] = Producer(epoch, 0, 0, timestamp)
    elif producer.epoch != epoch or last_offset < 0 or len(producer.batches) == BATCHES_MAX:
        raise BadSnapshot(
            f"producer {producer_id}: epoch {epoch}, offset {last_offset} cannot follow what is before it"
        )
    if producer_id < 0 or delta < 0 or (last_offset >= 0 and last_offset - delta < producer.end_offset):
        raise BadSnapshot(f"producer {producer_id}: no batch is {delta} offsets long and ends at {last_offset}")
    producer.timestamp = timestamp
    producer.coordinator_epoch = coordinator_epoch
    producer.txn_first_offset = None if txn_first_offset < 0 else Offset(txn_first_offset)
    if last_sequence < 0:  # Of this epoch there is a marker and nothing else.
        return
    first_sequence = (last_sequence - delta) & SEQUENCE_MASK
    run_count = producer.stored_count if first_sequence == producer.next_sequence else 0
    producer.stored_count = run_count + delta + 1
    producer.next_sequence = (last_sequence + 1) & SEQUENCE_MASK
    if last_offset >= 0:
        producer.batches.append(StoredBatch(first_sequence, last_sequence, last_offset - delta, last_offset, timestamp))
