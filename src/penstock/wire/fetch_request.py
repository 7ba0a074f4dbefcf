"""The Fetch request, read by hand: a waiting consumer sends one for every answer it gets.

v4: replica i32 (v15: in a tag), max_wait i32, min_bytes i32, max_bytes i32, isolation i8, v7: session i32, epoch i32,
[ name (v13: topic id), [ partition i32, v9: leader_epoch i32, fetch_offset i64, v12: last_fetched_epoch i32,
                          v5: log_start i64, max_bytes i32 ] ],
v7: forgotten [ name (v13: topic id), [ i32 ] ], v11: rack, v15: tag 1: replica i32, broker epoch i64
"""

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple
from uuid import UUID

from penstock.base.errors import BadPeer
from penstock.wire.fetch import FLEXIBLE_VERSION, SESSION_VERSION, TOPIC_ID_VERSION
from penstock.wire.fields import Allowance, read_count, read_string, read_tags, read_uuid
from penstock.wire.varint import InvalidVarint

NO_REPLICA = -1
NO_BROKER_EPOCH = -1
NO_EPOCH = -1
LOG_START_VERSION = 5
LEADER_EPOCH_VERSION = 9
RACK_VERSION = 11
REPLICA_STATE_VERSION = 15

_HEAD = struct.Struct(">iiib")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_SESSION = struct.Struct(">ii")
_PARTITION_V4 = struct.Struct(">iqi")
_PARTITION_V5 = struct.Struct(">iqqi")
_PARTITION_V9 = struct.Struct(">iiqqi")
_PARTITION_V12 = struct.Struct(">iiqiqi")
_REPLICA_STATE = struct.Struct(">iq")


class WantedPartition(NamedTuple):
    topic: str | UUID  # As the client names it: the id from v13 on.
    partition: int
    fetch_offset: int
    bytes_max: int
    current_leader_epoch: int
    last_fetched_epoch: int = NO_EPOCH  # Of the record before `fetch_offset`, as a follower has it.


class FetchRequest(NamedTuple):
    replica_id: int
    broker_epoch: int  # Of a replica; NO_BROKER_EPOCH otherwise.
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    partitions: list[WantedPartition]
    forgotten: list[tuple[str | UUID, int]]
    rack: str = ""  # The client's; empty: it did not say.


def read_fetch_request(frame: memoryview, position: int, version: int) -> FetchRequest:
    """The request at `position`; BadPeer when it is malformed."""
    try:
        return _read(frame, position, version)
    except (struct.error, IndexError, InvalidVarint, UnicodeDecodeError) as error:
        raise BadPeer(f"Fetch v{version} cannot be read: {error}") from error


def read_on(body: bytes, session: tuple[int, int], offsets: Mapping[tuple[str | UUID, int], int]) -> bytes:
    """A request, of REPLICA_STATE_VERSION or later, as it comes next if its sender reads on at these offsets.

    `session`: its id and epoch, of which a first request does not know the one.
    """
    before, out, allowance = memoryview(body), bytearray(body), Allowance()
    _SESSION.pack_into(out, _HEAD.size, *session)
    topics_count, position = read_count(before, _HEAD.size + _SESSION.size, True)
    for _ in range(topics_count):
        topic, position = read_uuid(before, position)
        count, position = read_count(before, position, True)
        for _ in range(count):
            (index,) = _INT32.unpack_from(body, position)
            _INT64.pack_into(out, position + 2 * _INT32.size, offsets[topic, index])
            position = read_tags(before, position + _PARTITION_V12.size, {}, {}, allowance)
        position = read_tags(before, position, {}, {}, allowance)
    return bytes(out)


def _read(frame: memoryview, position: int, version: int) -> FetchRequest:
    flexible = version >= FLEXIBLE_VERSION
    allowance = Allowance()
    replica_id = NO_REPLICA
    if version < REPLICA_STATE_VERSION:
        (replica_id,) = _INT32.unpack_from(frame, position)
        position += _INT32.size
    max_wait_ms, min_bytes, max_bytes, isolation_level = _HEAD.unpack_from(frame, position)
    position += _HEAD.size
    session_id, session_epoch = 0, NO_EPOCH
    if version >= SESSION_VERSION:
        session_id, session_epoch = _SESSION.unpack_from(frame, position)
        position += _SESSION.size
    partitions, position = _read_partitions(frame, position, version, allowance)
    forgotten: list[tuple[str | UUID, int]] = []
    if version >= SESSION_VERSION:
        forgotten, position = _read_forgotten(frame, position, version, allowance)
    rack: str | None = ""
    if version >= RACK_VERSION:
        rack, position = read_string(frame, position, flexible)
    if rack is None:
        raise BadPeer("rack is null")
    broker_epoch = NO_BROKER_EPOCH
    if flexible:
        values: dict[str, Any] = {}
        read_tags(frame, position, {1: ("replica", _read_replica_state)}, values, allowance)
        replica_id, broker_epoch = values.get("replica", (replica_id, broker_epoch))
    return FetchRequest(
        replica_id,
        broker_epoch,
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation_level,
        session_id,
        session_epoch,
        partitions,
        forgotten,
        rack,
    )


def _read_partitions(
    frame: memoryview, position: int, version: int, allowance: Allowance
) -> tuple[list[WantedPartition], int]:
    flexible = version >= FLEXIBLE_VERSION
    partitions: list[WantedPartition] = []
    topics_count, position = read_count(frame, position, flexible)
    allowance.take(topics_count)
    for _ in range(topics_count):
        topic, position = _read_topic(frame, position, version)
        count, position = read_count(frame, position, flexible)
        allowance.take(count)
        for _ in range(count):
            epoch = last_epoch = NO_EPOCH
            if flexible:
                index, epoch, offset, last_epoch, _, bytes_max = _PARTITION_V12.unpack_from(frame, position)
                position = read_tags(frame, position + _PARTITION_V12.size, {}, {}, allowance)
            elif version >= LEADER_EPOCH_VERSION:
                index, epoch, offset, _, bytes_max = _PARTITION_V9.unpack_from(frame, position)
                position += _PARTITION_V9.size
            elif version >= LOG_START_VERSION:
                index, offset, _, bytes_max = _PARTITION_V5.unpack_from(frame, position)
                position += _PARTITION_V5.size
            else:
                index, offset, bytes_max = _PARTITION_V4.unpack_from(frame, position)
                position += _PARTITION_V4.size
            partitions.append(WantedPartition(topic, index, offset, bytes_max, epoch, last_epoch))
        if flexible:
            position = read_tags(frame, position, {}, {}, allowance)
    return partitions, position


def _read_forgotten(
    frame: memoryview, position: int, version: int, allowance: Allowance
) -> tuple[list[tuple[str | UUID, int]], int]:
    flexible = version >= FLEXIBLE_VERSION
    forgotten: list[tuple[str | UUID, int]] = []
    topics_count, position = read_count(frame, position, flexible)
    allowance.take(topics_count)
    for _ in range(topics_count):
        topic, position = _read_topic(frame, position, version)
        count, position = read_count(frame, position, flexible)
        allowance.take(count)
        indexes = struct.unpack_from(f">{count}i", frame, position)
        position += 4 * count
        forgotten += [(topic, index) for index in indexes]
        if flexible:
            position = read_tags(frame, position, {}, {}, allowance)
    return forgotten, position


def _read_topic(frame: memoryview, position: int, version: int) -> tuple[str | UUID, int]:
    if version >= TOPIC_ID_VERSION:
        return read_uuid(frame, position)
    name, position = read_string(frame, position, version >= FLEXIBLE_VERSION)
    if name is None:
        raise BadPeer("topic name is null")
    return name, position


def _read_replica_state(data: bytes | bytearray | memoryview, position: int) -> tuple[tuple[int, int], int]:
    replica = _REPLICA_STATE.unpack_from(data, position)
    return replica, read_tags(data, position + _REPLICA_STATE.size, {}, {})
