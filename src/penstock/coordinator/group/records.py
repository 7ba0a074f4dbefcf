"""What `__consumer_offsets` holds, byte for byte as Kafka 4.3 writes it, so that Kafka's own readers can read it.

A key starts with its type as int16: 0 and 1 are a committed offset, 2 is a classic group. Other types belong to group
kinds that are not ours; `decode` passes over them. A value starts with its version as int16; none is a tombstone.

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
from dataclasses import dataclass
from functools import lru_cache
from uuid import UUID

from penstock.base.types import NO_EPOCH, NO_TIMESTAMP, LeaderEpoch, Offset
from penstock.wire.codec import TAGS_MAX, ZERO_UUID
from penstock.wire.varint import InvalidVarint, read_uvarint, write_uvarint

LEGACY_OFFSET_KEY = 0  # Kafka before 0.9; the same fields.
OFFSET_KEY = 1
GROUP_KEY = 2

OFFSET_VALUE_WRITTEN = 4
OFFSET_VALUE_WITH_EXPIRY = 1  # The only version that has the field.
GROUP_VALUE_WRITTEN = 3
VALUE_VERSION_MAX = 4
FLEXIBLE_FROM = 4
TOPIC_ID_TAG = 0

STRING_BYTES_MAX = 32_767  # Lengths in keys and in group values are int16.
MEMBER_BYTES_MIN = 15  # The least that one member can take (v4, all empty): what a claimed count is checked against.

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_OFFSET_AND_EPOCH = struct.Struct(">qi")

_OFFSET_KEY_START = _INT16.pack(OFFSET_KEY)
_OFFSET_VALUE_START = _INT16.pack(OFFSET_VALUE_WRITTEN)
_NO_TAGS = b"\0"
_TOPIC_ID_TAG = bytes((1, TOPIC_ID_TAG, 16))


class CorruptRecord(ValueError):
    """The bytes are of a type that we know and are not what it says."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OffsetCommitted:
    group_id: str
    topic: str
    partition: int
    offset: Offset
    leader_epoch: LeaderEpoch = NO_EPOCH
    metadata: str = ""
    commit_timestamp_ms: int
    expire_timestamp_ms: int = NO_TIMESTAMP  # Only of old clients, which could ask for a retention of their own.
    topic_id: UUID = ZERO_UUID


@dataclass(frozen=True, kw_only=True, slots=True)
class OffsetDeleted:
    group_id: str
    topic: str
    partition: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MemberMetadata:
    member_id: str
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes = b""
    assignment: bytes = b""


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupMetadata:
    """One generation of a group, with every member's assignment. No members: the group is empty."""

    group_id: str
    protocol_type: str = ""  # Empty: a group that only commits offsets.
    generation_id: int = 0
    protocol: str | None = None
    leader: str | None = None
    state_timestamp_ms: int = NO_TIMESTAMP  # Since when the group is as it is.
    members: tuple[MemberMetadata, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupDeleted:
    group_id: str


GroupRecord = OffsetCommitted | OffsetDeleted | GroupMetadata | GroupDeleted


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
    return _INT16.pack(OFFSET_KEY) + _string(group_id) + _string(topic) + _INT32.pack(partition)


def _group_key(group_id: str) -> bytes:
    return _INT16.pack(GROUP_KEY) + _string(group_id)


def _offset_value(record: OffsetCommitted) -> bytes:
    metadata = record.metadata.encode()
    if record.expire_timestamp_ms != NO_TIMESTAMP:
        return (
            _INT16.pack(OFFSET_VALUE_WITH_EXPIRY)
            + _INT64.pack(record.offset)
            + _INT16.pack(len(metadata))
            + metadata
            + _INT64.pack(record.commit_timestamp_ms)
            + _INT64.pack(record.expire_timestamp_ms)
        )
    out = bytearray(_INT16.pack(OFFSET_VALUE_WRITTEN))
    out += _INT64.pack(record.offset) + _INT32.pack(record.leader_epoch)
    write_uvarint(out, len(metadata) + 1)
    out += metadata + _INT64.pack(record.commit_timestamp_ms)
    if record.topic_id == ZERO_UUID:
        out.append(0)  # No tagged fields.
    else:
        out += bytes((1, TOPIC_ID_TAG, 16)) + record.topic_id.bytes
    return bytes(out)


def _group_value(record: GroupMetadata) -> bytes:
    parts = [
        _INT16.pack(GROUP_VALUE_WRITTEN),
        _string(record.protocol_type),
        _INT32.pack(record.generation_id),
        _nullable_string(record.protocol),
        _nullable_string(record.leader),
        _INT64.pack(record.state_timestamp_ms),
        _INT32.pack(len(record.members)),
    ]
    for member in record.members:
        parts += (
            _string(member.member_id),
            _nullable_string(member.instance_id),
            _string(member.client_id),
            _string(member.client_host),
            _INT32.pack(member.rebalance_timeout_ms),
            _INT32.pack(member.session_timeout_ms),
            _INT32.pack(len(member.subscription)),
            member.subscription,
            _INT32.pack(len(member.assignment)),
            member.assignment,
        )
    return b"".join(parts)


def _string(text: str) -> bytes:
    raw = text.encode()
    return _INT16.pack(len(raw)) + raw


def _nullable_string(text: str | None) -> bytes:
    return _INT16.pack(-1) if text is None else _string(text)


# Reading --------------------------------------------------------------------------------------------------------------


def _decode_usual_offset(key: bytes, value: bytes) -> OffsetCommitted:
    """What we write for a commit, without a reader's calls: a coordinator loads a hundred thousand of them."""
    topic_start = 4 + _INT16.unpack_from(key, 2)[0]
    topic_end = topic_start + 2 + _INT16.unpack_from(key, topic_start)[0]
    offset, leader_epoch = _OFFSET_AND_EPOCH.unpack_from(value, 2)
    length, position = read_uvarint(value, 14)
    metadata_end = position + length - 1
    (commit_timestamp_ms,) = _INT64.unpack_from(value, metadata_end)
    tail = value[metadata_end + 8 :]
    is_usual = 4 <= topic_start <= topic_end - 2 and position <= metadata_end and len(key) == topic_end + 4
    if not is_usual or (tail != _NO_TAGS and (len(tail) != 19 or not tail.startswith(_TOPIC_ID_TAG))):
        decoded = _decode(key, value)  # Not ours, or damaged.
        assert isinstance(decoded, OffsetCommitted)
        return decoded
    return OffsetCommitted(
        group_id=key[4:topic_start].decode(),
        topic=key[topic_start + 2 : topic_end].decode(),
        partition=_INT32.unpack_from(key, topic_end)[0],
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
    reader = _Reader(key)
    kind = reader.int16()
    if kind == GROUP_KEY:
        group_id = reader.string()
        return GroupDeleted(group_id=group_id) if value is None else _read_group(group_id, value)
    if kind in (OFFSET_KEY, LEGACY_OFFSET_KEY):
        group_id, topic, partition = reader.string(), reader.string(), reader.int32()
        if value is None:
            return OffsetDeleted(group_id=group_id, topic=topic, partition=partition)
        return _read_offset(group_id, topic, partition, value)
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


def _read_member(reader: "_Reader", version: int) -> MemberMetadata:
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


def _versioned(value: bytes) -> "tuple[_Reader, int]":
    (version,) = _INT16.unpack_from(value)
    if not 0 <= version <= VALUE_VERSION_MAX:
        raise CorruptRecord(f"value has version {version}, known are 0 to {VALUE_VERSION_MAX}")
    return _Reader(value, position=2, flexible=version >= FLEXIBLE_FROM), version


class _Reader:
    def __init__(self, data: bytes, position: int = 0, flexible: bool = False) -> None:
        self.data = data
        self.position = position
        self.flexible = flexible

    def _fixed(self, layout: struct.Struct) -> int:
        (number,) = layout.unpack_from(self.data, self.position)
        self.position += layout.size
        return int(number)

    def int16(self) -> int:
        return self._fixed(_INT16)

    def int32(self) -> int:
        return self._fixed(_INT32)

    def int64(self) -> int:
        return self._fixed(_INT64)

    def uvarint(self) -> int:
        number, self.position = read_uvarint(self.data, self.position)
        return number

    def _take(self, length: int) -> bytes:
        end = self.position + length
        if length < 0 or end > len(self.data):
            raise CorruptRecord(f"{length} bytes at {self.position}, {len(self.data) - self.position} are left")
        raw = self.data[self.position : end]
        self.position = end
        return raw

    def nullable_string(self) -> str | None:
        length = self.uvarint() - 1 if self.flexible else self.int16()
        return None if length == -1 else self._take(length).decode()

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise CorruptRecord("null in place of a string")
        return text

    def blob(self) -> bytes:
        return self._take(self.uvarint() - 1 if self.flexible else self.int32())

    def count(self, item_bytes_min: int) -> int:
        count = self.uvarint() - 1 if self.flexible else self.int32()
        if not 0 <= count <= (len(self.data) - self.position) // item_bytes_min:
            raise CorruptRecord(f"{count} items claimed, {len(self.data) - self.position} bytes are left")
        return count

    def tags(self) -> dict[int, bytes]:
        """The tagged fields, unread; none in a version that has no tags."""
        if not self.flexible:
            return {}
        count = self.uvarint()
        if count > TAGS_MAX:
            raise CorruptRecord(f"{count} tagged fields, {TAGS_MAX} are allowed")
        return {self.uvarint(): self._take(self.uvarint()) for _ in range(count)}
