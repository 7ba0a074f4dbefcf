"""What `__consumer_offsets` holds, byte for byte as Kafka 4.3 writes it, so that Kafka's own readers can read it.

A key starts with its type as int16: 0 and 1 are a committed offset, 2 is a classic group; groups of the new protocol
have several (`consumer/records.py`). Other types belong to group kinds that are not ours; `decode` passes over them. A
value starts with its version as int16; none is a tombstone.

    key 1     group string | topic string | partition i32
    key 2     group string
    offset    v4 (flexible): offset i64 | leader_epoch i32 | metadata | commit_timestamp i64 | tag 0: topic id
              v1, for a commit that names its own retention: offset | metadata | commit_timestamp | expire_timestamp i64
    group     v3: protocol_type | generation i32 | protocol? | leader? | state_timestamp i64 | members …
    member    member_id | instance_id? | client_id | client_host | rebalance_timeout i32 | session_timeout i32
              | subscription bytes | assignment bytes

Reading takes versions 0 to 4 of both, checks every length against the bytes that are left, and raises CorruptRecord and
nothing else.
"""

import struct
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

from penstock.base.types import NO_EPOCH, NO_TIMESTAMP, LeaderEpoch, Offset
from penstock.coordinator.group.consumer import records as consumer_records
from penstock.coordinator.group.consumer.records import ConsumerRecord
from penstock.coordinator.record_bytes import (
    INT16,
    INT32,
    INT64,
    CorruptRecord,
    Reader,
    nullable_string,
    string,
)
from penstock.wire.codec import ZERO_UUID
from penstock.wire.varint import InvalidVarint, read_uvarint, write_uvarint

LEGACY_OFFSET_KEY = 0  # Kafka before 0.9; the same fields.
OFFSET_KEY = 1
GROUP_KEY = 2
CONSUMER_KINDS = frozenset(consumer_records.RecordKind)

OFFSET_VALUE_WRITTEN = 4
OFFSET_VALUE_WITH_EXPIRY = 1  # The only version that has the field.
GROUP_VALUE_WRITTEN = 3
VALUE_VERSION_MAX = 4
FLEXIBLE_FROM = 4
TOPIC_ID_TAG = 0

MEMBER_BYTES_MIN = 15  # The least that one member can take (v4, all empty): what a claimed count is checked against.

_OFFSET_AND_EPOCH = struct.Struct(">qi")

_OFFSET_KEY_START = INT16.pack(OFFSET_KEY)
_OFFSET_VALUE_START = INT16.pack(OFFSET_VALUE_WRITTEN)
_NO_TAGS = b"\0"
_TOPIC_ID_TAG = bytes((1, TOPIC_ID_TAG, 16))


class OffsetCommitted(NamedTuple):
    group_id: str
    topic: str
    partition: int
    offset: Offset
    commit_timestamp_ms: int
    leader_epoch: LeaderEpoch = NO_EPOCH
    metadata: str = ""
    expire_timestamp_ms: int = NO_TIMESTAMP  # Only of old clients, which could ask for a retention of their own.
    topic_id: UUID = ZERO_UUID


class OffsetDeleted(NamedTuple):
    group_id: str
    topic: str
    partition: int


class MemberMetadata(NamedTuple):
    member_id: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscription: bytes = b""
    assignment: bytes = b""


class GroupMetadata(NamedTuple):
    """One generation of a group, with every member's assignment. No members: the group is empty."""

    group_id: str
    protocol_type: str = ""  # Empty: a group that only commits offsets.
    generation_id: int = 0
    protocol: str | None = None
    leader: str | None = None
    state_timestamp_ms: int = NO_TIMESTAMP  # Since when the group is as it is.
    members: tuple[MemberMetadata, ...] = ()


class GroupDeleted(NamedTuple):
    group_id: str


GroupRecord = OffsetCommitted | OffsetDeleted | GroupMetadata | GroupDeleted | ConsumerRecord


def encode(record: GroupRecord) -> tuple[bytes, bytes | None]:
    """The record's key and value; a value of None is a tombstone."""
    match record:
        case OffsetCommitted():
            return _offset_key(record.group_id, record.topic, record.partition), _offset_value(record)
        case OffsetDeleted():
            return _offset_key(record.group_id, record.topic, record.partition), None
        case GroupMetadata():
            return _group_key(record.group_id), _group_value(record)
        case GroupDeleted():
            return _group_key(record.group_id), None
        case _:
            return consumer_records.encode(record)


def decode(key: bytes | None, value: bytes | None) -> GroupRecord | None:
    """The record, or None when its key is of a type that is not ours. CorruptRecord when it is and cannot be read."""
    if key is None:
        return None
    try:
        if value is not None and key[:2] == _OFFSET_KEY_START and value[:2] == _OFFSET_VALUE_START:
            return _decode_usual_offset(key, value)
        return _decode(key, value)
    except (struct.error, IndexError, InvalidVarint, UnicodeDecodeError) as error:
        raise CorruptRecord(f"record cannot be read: {error}") from error


# Writing --------------------------------------------------------------------------------------------------------------


def _offset_key(group_id: str, topic: str, partition: int) -> bytes:
    return INT16.pack(OFFSET_KEY) + string(group_id) + string(topic) + INT32.pack(partition)


def _group_key(group_id: str) -> bytes:
    return INT16.pack(GROUP_KEY) + string(group_id)


def _offset_value(record: OffsetCommitted) -> bytes:
    metadata = record.metadata.encode()
    if record.expire_timestamp_ms != NO_TIMESTAMP:
        return (
            INT16.pack(OFFSET_VALUE_WITH_EXPIRY)
            + INT64.pack(record.offset)
            + INT16.pack(len(metadata))
            + metadata
            + INT64.pack(record.commit_timestamp_ms)
            + INT64.pack(record.expire_timestamp_ms)
        )
    out = bytearray(INT16.pack(OFFSET_VALUE_WRITTEN))
    out += INT64.pack(record.offset) + INT32.pack(record.leader_epoch)
    write_uvarint(out, len(metadata) + 1)
    out += metadata + INT64.pack(record.commit_timestamp_ms)
    if record.topic_id == ZERO_UUID:
        out.append(0)  # No tagged fields.
    else:
        out += bytes((1, TOPIC_ID_TAG, 16)) + record.topic_id.bytes
    return bytes(out)


def _group_value(record: GroupMetadata) -> bytes:
    parts = [
        INT16.pack(GROUP_VALUE_WRITTEN),
        string(record.protocol_type),
        INT32.pack(record.generation_id),
        nullable_string(record.protocol),
        nullable_string(record.leader),
        INT64.pack(record.state_timestamp_ms),
        INT32.pack(len(record.members)),
    ]
    for member in record.members:
        parts += (
            string(member.member_id),
            nullable_string(member.instance_id),
            string(member.client_id),
            string(member.client_host),
            INT32.pack(member.rebalance_timeout_ms),
            INT32.pack(member.session_timeout_ms),
            INT32.pack(len(member.subscription)),
            member.subscription,
            INT32.pack(len(member.assignment)),
            member.assignment,
        )
    return b"".join(parts)


# Reading --------------------------------------------------------------------------------------------------------------


def _decode_usual_offset(key: bytes, value: bytes) -> OffsetCommitted:
    """What we write for a commit, without a reader's calls: a coordinator loads a hundred thousand of them."""
    topic_start = 4 + INT16.unpack_from(key, 2)[0]
    topic_end = topic_start + 2 + INT16.unpack_from(key, topic_start)[0]
    offset, leader_epoch = _OFFSET_AND_EPOCH.unpack_from(value, 2)
    length, position = read_uvarint(value, 14)
    metadata_end = position + length - 1
    (commit_timestamp_ms,) = INT64.unpack_from(value, metadata_end)
    tail = value[metadata_end + 8 :]
    is_usual = 4 <= topic_start <= topic_end - 2 and position <= metadata_end and len(key) == topic_end + 4
    if not is_usual or (tail != _NO_TAGS and (len(tail) != 19 or not tail.startswith(_TOPIC_ID_TAG))):
        decoded = _decode(key, value)  # Not ours, or damaged.
        assert isinstance(decoded, OffsetCommitted)
        return decoded
    return OffsetCommitted(
        group_id=key[4:topic_start].decode(),
        topic=key[topic_start + 2 : topic_end].decode(),
        partition=INT32.unpack_from(key, topic_end)[0],
        offset=Offset(offset),
        leader_epoch=LeaderEpoch(leader_epoch),
        metadata=value[position:metadata_end].decode(),
        commit_timestamp_ms=commit_timestamp_ms,
        topic_id=ZERO_UUID if tail == _NO_TAGS else _uuid(tail[3:]),
    )


@lru_cache(maxsize=1024)
def _uuid(raw: bytes) -> UUID:
    """Topics are few, and making one costs as much as all the rest."""
    return UUID(bytes=raw)


def _decode(key: bytes, value: bytes | None) -> GroupRecord | None:
    reader = Reader(key)
    kind = reader.int16()
    if kind == GROUP_KEY:
        group_id = reader.string()
        return GroupDeleted(group_id=group_id) if value is None else _read_group(group_id, value)
    if kind in (OFFSET_KEY, LEGACY_OFFSET_KEY):
        group_id, topic, partition = reader.string(), reader.string(), reader.int32()
        if value is None:
            return OffsetDeleted(group_id=group_id, topic=topic, partition=partition)
        return _read_offset(group_id, topic, partition, value)
    if kind in CONSUMER_KINDS:
        return consumer_records.decode(consumer_records.RecordKind(kind), reader, value)
    return None


def _read_offset(group_id: str, topic: str, partition: int, value: bytes) -> OffsetCommitted:
    reader, version = _versioned(value)
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 3 else NO_EPOCH
    metadata = reader.string()
    commit_timestamp_ms = reader.int64()
    expire_timestamp_ms = reader.int64() if version == OFFSET_VALUE_WITH_EXPIRY else NO_TIMESTAMP
    topic_id = reader.tags().get(TOPIC_ID_TAG, ZERO_UUID.bytes)
    if len(topic_id) != 16:
        raise CorruptRecord(f"topic id of {len(topic_id)} bytes")
    return OffsetCommitted(
        group_id=group_id,
        topic=topic,
        partition=partition,
        offset=Offset(offset),
        leader_epoch=LeaderEpoch(leader_epoch),
        metadata=metadata,
        commit_timestamp_ms=commit_timestamp_ms,
        expire_timestamp_ms=expire_timestamp_ms,
        topic_id=UUID(bytes=topic_id),
    )


def _read_group(group_id: str, value: bytes) -> GroupMetadata:
    reader, version = _versioned(value)
    protocol_type = reader.string()
    generation_id = reader.int32()
    protocol = reader.nullable_string()
    leader = reader.nullable_string()
    state_timestamp_ms = reader.int64() if version >= 2 else NO_TIMESTAMP
    members = tuple(_read_member(reader, version) for _ in range(reader.count(MEMBER_BYTES_MIN)))
    reader.tags()
    return GroupMetadata(
        group_id=group_id,
        protocol_type=protocol_type,
        generation_id=generation_id,
        protocol=protocol,
        leader=leader,
        state_timestamp_ms=state_timestamp_ms,
        members=members,
    )


def _read_member(reader: Reader, version: int) -> MemberMetadata:
    member_id = reader.string()
    instance_id = reader.nullable_string() if version >= 3 else None
    client_id = reader.string()
    client_host = reader.string()
    rebalance_timeout_ms = reader.int32() if version >= 1 else -1
    session_timeout_ms = reader.int32()
    subscription = reader.blob()
    assignment = reader.blob()
    reader.tags()
    return MemberMetadata(
        member_id=member_id,
        instance_id=instance_id,
        client_id=client_id,
        client_host=client_host,
        # Members of clients that could not tell the two apart rebalance within their session.
        rebalance_timeout_ms=session_timeout_ms if rebalance_timeout_ms < 0 else rebalance_timeout_ms,
        session_timeout_ms=session_timeout_ms,
        subscription=subscription,
        assignment=assignment,
    )


def _versioned(value: bytes) -> tuple[Reader, int]:
    (version,) = INT16.unpack_from(value)
    if not 0 <= version <= VALUE_VERSION_MAX:
        raise CorruptRecord(f"value has version {version}, known are 0 to {VALUE_VERSION_MAX}")
    return Reader(value, position=2, flexible=version >= FLEXIBLE_FROM), version
