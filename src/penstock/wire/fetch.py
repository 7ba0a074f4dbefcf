"""The Fetch response, packed around record bytes that are sent as they were read: no copy, no object per batch.

throttle i32, v7: error i16, session i32,
[ name (v13: topic id), [ index i32, error i16, high_watermark i64, last_stable i64, v5: log_start i64,
                          aborted [ producer_id i64, first_offset i64 ], v11: preferred_replica i32, records,
                          v12: tag 0: epoch i32, end i64 ] ]
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple, Protocol
from uuid import UUID

from penstock.wire.varint import write_uvarint

Buffer = bytes | bytearray | memoryview

FLEXIBLE_VERSION = 12
TOPIC_ID_VERSION = 13
SESSION_VERSION = 7
LOG_START_VERSION = 5
PREFERRED_REPLICA_VERSION = 11
NO_REPLICA = -1

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_SESSION = struct.Struct(">hi")
_PARTITION = struct.Struct(">ihqq")
_ABORTED = struct.Struct(">qq")
_EPOCH_END = struct.Struct(">iq")


class StoredRecords(Protocol):
    """Records that are read only when they are sent (storage/log_slice.py)."""

    def __len__(self) -> int: ...


class FetchedPartition(NamedTuple):
    partition: int
    error: int
    high_watermark: int
    last_stable_offset: int
    log_start: int
    records: Buffer | StoredRecords
    # (producer id, first offset) of each, for who reads committed data only; None for all others.
    aborted: Sequence[tuple[int, int]] | None
    diverging: tuple[int, int] | None = None  # For a follower: an epoch and where it ends here, its log does not.
    preferred_replica: int = NO_REPLICA  # For a consumer: whom to ask instead.


def pack_fetch_response(
    version: int,
    error: int,
    session_id: int,
    topics: list[tuple[str | UUID, list[FetchedPartition]]],
    throttle_ms: int = 0,
) -> list[Buffer | StoredRecords]:
    """The response body, in parts to send one after another."""
    flexible = version >= FLEXIBLE_VERSION
    buffers: list[Buffer | StoredRecords] = []
    out = bytearray(_INT32.pack(throttle_ms))
    if version >= SESSION_VERSION:
        out += _SESSION.pack(error, session_id)
    _write_length(out, len(topics), flexible)
    for topic, partitions in topics:
        if isinstance(topic, UUID):
            out += topic.bytes
        else:
            raw = topic.encode()
            if flexible:
                write_uvarint(out, len(raw) + 1)
            else:
                out += _INT16.pack(len(raw))
            out += raw
        _write_length(out, len(partitions), flexible)
        for partition in partitions:
            index, code, high_watermark, stable, log_start, records, aborted, diverging, preferred = partition
            out += _PARTITION.pack(index, code, high_watermark, stable)
            if version >= LOG_START_VERSION:
                out += _INT64.pack(log_start)
            _write_length(out, -1 if aborted is None else len(aborted), flexible)
            if aborted:
                for transaction in aborted:
                    out += _ABORTED.pack(*transaction)
                    if flexible:
                        out.append(0)
            if version >= PREFERRED_REPLICA_VERSION:
                out += _INT32.pack(preferred)
            _write_length(out, len(records), flexible)
            if records:
                buffers += (out, records)
                out = bytearray()
            if diverging is not None:
                # One tag of 13 bytes, a structure without tags of its own.
                out += b"\1\0\x0d" + _EPOCH_END.pack(*diverging) + b"\0"
            elif flexible:
                out.append(0)
        if flexible:
            out.append(0)
    if flexible:
        out.append(0)
    if out:
        buffers.append(out)
    return buffers


def _write_length(out: bytearray, length: int, flexible: bool) -> None:
    if flexible:
        write_uvarint(out, length + 1)
    else:
        out += _INT32.pack(length)
