"""Produce, the hot request: read without copying the records, answered by packing a few fields.

The generic codec (wire/codec.py) would copy every record twice on the way to the log. Layouts of all versions, as in
Kafka's ProduceRequest.json and ProduceResponse.json:

    request   transactional_id, acks i16, timeout i32, [ name (v13: topic id), [ index i32, records ] ]
    response  [ name (v13: topic id), [ index i32, error i16, base_offset i64, log_append_time i64,
                                        v5: log_start i64, v8: [record errors], message ] ], throttle i32
"""

import struct
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

from penstock.base.errors import BadPeer
from penstock.wire.codec import Allowance, read_tags, read_uuid
from penstock.wire.fields import read_count, read_length, read_string
from penstock.wire.varint import InvalidVarint, write_uvarint

FLEXIBLE_VERSION = 9
TOPIC_ID_VERSION = 13
LOG_START_VERSION = 5
RECORD_ERRORS_VERSION = 8

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_ACKS_TIMEOUT = struct.Struct(">hi")
_RESULT = struct.Struct(">ihqq")
_STORED = struct.Struct(">ihqqq")
_INT64 = struct.Struct(">q")


class ProducedPartition(NamedTuple):
    topic: str | UUID
    partition: int
    records: memoryview | None


class ProduceRequest(NamedTuple):
    transactional_id: str | None
    acks: int
    timeout_ms: int
    partitions: list[ProducedPartition]


class PartitionResult(NamedTuple):
    partition: int
    error: int
    base_offset: int
    log_append_time: int
    log_start: int
    message: str | None


def read_produce_request(frame: memoryview, position: int, version: int) -> ProduceRequest:
    """The request at `position`, whose records are views of the frame; BadPeer when it is malformed."""
    try:
        return _read(frame, position, version)
    except (struct.error, IndexError, InvalidVarint, UnicodeDecodeError) as error:
        raise BadPeer(f"Produce v{version} cannot be read: {error}") from error


def _read(frame: memoryview, position: int, version: int) -> ProduceRequest:
    flexible = version >= FLEXIBLE_VERSION
    allowance = Allowance()
    transactional_id, position = read_string(frame, position, flexible)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(frame, position)
    topics_count, position = read_count(frame, position + _ACKS_TIMEOUT.size, flexible)
    allowance.take(topics_count)
    partitions: list[ProducedPartition] = []
    for _ in range(topics_count):
        topic: str | UUID | None
        if version >= TOPIC_ID_VERSION:
            topic, position = read_uuid(frame, position)
        else:
            topic, position = read_string(frame, position, flexible)
            if topic is None:
                raise BadPeer("topic name is null")
        count, position = read_count(frame, position, flexible)
        allowance.take(count)
        for _ in range(count):
            (index,) = _INT32.unpack_from(frame, position)
            length, position = read_length(frame, position + 4, flexible)
            records = None
            if length >= 0:
                end = position + length
                if end > len(frame):
                    raise BadPeer(f"records of {length} bytes, {len(frame) - position} are left")
                records, position = frame[position:end], end
            partitions.append(ProducedPartition(topic, index, records))
            if flexible:
                position = read_tags(frame, position, {}, {}, allowance)
        if flexible:
            position = read_tags(frame, position, {}, {}, allowance)
    if flexible:
        read_tags(frame, position, {}, {}, allowance)
    return ProduceRequest(transactional_id, acks, timeout_ms, partitions)


def pack_produce_response(
    version: int, topics: list[tuple[str | UUID, list[PartitionResult]]], throttle_ms: int = 0
) -> bytearray:
    """The response body; a topic is named as the request named it."""
    if len(topics) == 1 and len(topics[0][1]) == 1 and topics[0][1][0].error == 0:
        topic, (result,) = topics[0]
        before, after = _around_stored(version, topic)
        throttle = _INT32.pack(throttle_ms)
        stored = _STORED.pack(result.partition, 0, result.base_offset, result.log_append_time, result.log_start)
        if version < LOG_START_VERSION:
            stored = stored[: _RESULT.size]
        return bytearray().join((before, stored, after, throttle, b"\0" if version >= FLEXIBLE_VERSION else b""))
    flexible = version >= FLEXIBLE_VERSION
    out = bytearray()
    _write_count(out, len(topics), flexible)
    for topic, results in topics:
        if isinstance(topic, UUID):
            out += topic.bytes
        else:
            _write_string(out, topic, flexible)
        _write_count(out, len(results), flexible)
        for result in results:
            out += _RESULT.pack(result.partition, result.error, result.base_offset, result.log_append_time)
            if version >= LOG_START_VERSION:
                out += _INT64.pack(result.log_start)
            if version >= RECORD_ERRORS_VERSION:
                _write_count(out, 0, flexible)
                _write_string(out, result.message, flexible)
            if flexible:
                out.append(0)
        if flexible:
            out.append(0)
    out += _INT32.pack(throttle_ms)
    if flexible:
        out.append(0)
    return out


@lru_cache(maxsize=1024)  # As many topics as may be busy at a time; a miss costs microseconds.
def _around_stored(version: int, topic: str | UUID) -> tuple[bytes, bytes]:
    """What stands before and after the result of one stored batch: the same for every request of most producers."""
    before, after = bytearray(), bytearray()
    flexible = version >= FLEXIBLE_VERSION
    _write_count(before, 1, flexible)
    if isinstance(topic, UUID):
        before += topic.bytes
    else:
        _write_string(before, topic, flexible)
    _write_count(before, 1, flexible)
    if version >= RECORD_ERRORS_VERSION:
        _write_count(after, 0, flexible)
        _write_string(after, None, flexible)
    if flexible:
        after += b"\0\0"  # Tags of the partition and of the topic.
    return bytes(before), bytes(after)


def _write_count(out: bytearray, count: int, flexible: bool) -> None:
    if flexible:
        write_uvarint(out, count + 1)
    else:
        out += _INT32.pack(count)


def _write_string(out: bytearray, text: str | None, flexible: bool) -> None:
    raw = b"" if text is None else text.encode()
    length = -1 if text is None else len(raw)
    if flexible:
        write_uvarint(out, length + 1)
    else:
        out += _INT16.pack(length)
    out += raw
