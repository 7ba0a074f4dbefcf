"""Produce, the hot request: read without copying the records, answered by packing a few fields.

The generic codec (wire/codec.py) would copy every record twice on the way to the log. Layouts of all versions, as in
Kafka's ProduceRequest.json and ProduceResponse.json:

    request   transactional_id, acks i16, timeout i32, [ name (v13: topic id), [ index i32, records ] ]
    response  [ name (v13: topic id), [ index i32, error i16, base_offset i64, log_append_time i64,
                                        v5: log_start i64, v8: [record errors], message ] ], throttle i32
"""

import struct
from functools import lru_cache
from uuid import UUID

from penstock.base.errors import BadPeer
from penstock.wire.fields import Allowance, read_count, read_length, read_string, read_tags, read_uuid
from penstock.wire.varint import InvalidVarint, read_uvarint, write_uvarint

FLEXIBLE_VERSION = 9
TOPIC_ID_VERSION = 13
LOG_START_VERSION = 5
RECORD_ERRORS_VERSION = 8
NO_TAGS = bytes(3)  # Of the partition, the topic and the request.
START_BYTES_MAX = 512  # Of a request that is remembered: a topic's name has 249 at most.

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_ACKS_TIMEOUT = struct.Struct(">hi")
_RESULT = struct.Struct(">ihqq")
_STORED = struct.Struct(">ihqqq")
_INT64 = struct.Struct(">q")


# Plain classes, not named tuples: compiled, one is made in an eighth of the time, and every request makes three.


class ProducedPartition:
    __slots__ = ("partition", "records", "topic")

    def __init__(self, topic: str | UUID, partition: int, records: memoryview | None) -> None:
        self.topic = topic
        self.partition = partition
        self.records = records


class ProduceRequest:
    __slots__ = ("acks", "length_at", "partitions", "timeout_ms", "transactional_id")

    def __init__(
        self,
        transactional_id: str | None,
        acks: int,
        timeout_ms: int,
        partitions: list[ProducedPartition],
        length_at: int,
    ) -> None:
        """`length_at` is where in the frame the length of the last records stands."""
        self.transactional_id = transactional_id
        self.acks = acks
        self.timeout_ms = timeout_ms
        self.partitions = partitions
        self.length_at = length_at


class PartitionResult:
    __slots__ = ("base_offset", "error", "log_append_time", "log_start", "message", "partition")

    def __init__(
        self, partition: int, error: int, base_offset: int, log_append_time: int, log_start: int, message: str | None
    ) -> None:
        self.partition = partition
        self.error = error
        self.base_offset = base_offset
        self.log_append_time = log_append_time
        self.log_start = log_start
        self.message = message


class ProduceStart:
    """What a request for one partition of a topic begins with: producers send the same again and again."""

    __slots__ = ("_acks", "_data", "_length_at", "_timeout_ms", "_topic", "_transactional_id")

    def __init__(self, data: bytes, request: ProduceRequest) -> None:
        """`data` is what `request` begins with, up to the partition's number."""
        (item,) = request.partitions
        self._data = data
        self._topic = item.topic
        self._transactional_id = request.transactional_id
        self._acks = request.acks
        self._timeout_ms = request.timeout_ms
        self._length_at = request.length_at

    def read(self, frame: memoryview, position: int) -> ProduceRequest | None:
        """The request at `position`, if it begins so and is complete; None when it must be read as any other."""
        number_at = position + len(self._data)
        if bytes(frame[position:number_at]) != self._data:
            return None
        try:
            (partition,) = _INT32.unpack_from(frame, number_at)
            length, start = read_uvarint(frame, number_at + _INT32.size)
        except (struct.error, InvalidVarint):
            return None
        end = start + length - 1
        if length == 0 or bytes(frame[end:]) != NO_TAGS:
            return None
        produced = ProducedPartition(self._topic, partition, frame[start:end])
        return ProduceRequest(self._transactional_id, self._acks, self._timeout_ms, [produced], self._length_at)


def produce_start(frame: memoryview, position: int, version: int, request: ProduceRequest) -> ProduceStart | None:
    """What to know the next request by, if this one, at `position`, is for one partition."""
    if version < FLEXIBLE_VERSION or len(request.partitions) != 1:
        return None
    if request.length_at - position > START_BYTES_MAX:
        return None
    start = ProduceStart(bytes(frame[position : request.length_at - _INT32.size]), request)
    again = start.read(frame, position)
    # Not when it has tags, or no records.
    if again is None or again.partitions[0].records != request.partitions[0].records:
        return None
    return start


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
    length_at = position
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
            length_at = position + 4
            length, position = read_length(frame, length_at, flexible)
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
    return ProduceRequest(transactional_id, acks, timeout_ms, partitions, length_at)


def pack_stored(version: int, topic: str | UUID, result: PartitionResult, throttle_ms: int) -> bytes:
    """The response body for one batch that was stored: what most producers get."""
    before, after = _around_stored(version, topic)
    stored = _STORED.pack(result.partition, 0, result.base_offset, result.log_append_time, result.log_start)
    if version < LOG_START_VERSION:
        stored = stored[: _RESULT.size]
    throttle = _INT32.pack(throttle_ms)
    return b"".join((before, stored, after, throttle, b"\0" if version >= FLEXIBLE_VERSION else b""))


def pack_produce_response(
    version: int, topics: list[tuple[str | UUID, list[PartitionResult]]], throttle_ms: int = 0
) -> bytearray:
    """The response body; a topic is named as the request named it."""
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
