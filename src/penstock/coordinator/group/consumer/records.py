"""The records of groups of the new protocol (KIP-848) in `__consumer_offsets`, byte for byte as Kafka writes them.

    key 3    group                 the group's epoch; its tombstone ends the group
    key 4    group                 the subscribed topics, as the last epoch was decided with them
    key 5    group | member        who a member is and what it subscribes to
    key 6    group                 the epoch of the target assignment; written after all of key 7
    key 7    group | member        what the member shall have
    key 8    group | member        what it has, and what it has to give up
    key 16   group | regex         the topics that a regular expression stands for

Keys are as those of classic groups: type int16, strings with int16 lengths. Values are version 0, flexible. A removed
member's tombstones come as 8, 7, 5, a removed group's with 3 last, so that no cut leaves a member that has partitions
and no group.
"""

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import NamedTuple, TypeVar
from uuid import UUID

from penstock.base.types import NO_TIMESTAMP
from penstock.coordinator.group.commands import Protocol
from penstock.coordinator.group.consumer.assignment import NOTHING, Assignment
from penstock.coordinator.group.consumer.member_state import MemberState
from penstock.coordinator.record_bytes import INT16, INT32, INT64, CorruptRecord, Reader, string
from penstock.wire.varint import write_uvarint

VALUE_VERSION = 0
CLASSIC_TAG = 0
EMPTY_TAGS = b"\0"
UUID_BYTES = 16

T = TypeVar("T")


class RecordKind(IntEnum):
    GROUP = 3
    PARTITION_METADATA = 4
    MEMBER = 5
    TARGET_EPOCH = 6
    TARGET_MEMBER = 7
    CURRENT_ASSIGNMENT = 8
    REGULAR_EXPRESSION = 16


HAS_SUBJECT = frozenset(
    {RecordKind.MEMBER, RecordKind.TARGET_MEMBER, RecordKind.CURRENT_ASSIGNMENT, RecordKind.REGULAR_EXPRESSION}
)


class ConsumerGroupMetadata(NamedTuple):
    group_id: str
    epoch: int


class TopicMetadata(NamedTuple):
    topic_id: UUID
    name: str
    partition_count: int


class ConsumerGroupPartitionMetadata(NamedTuple):
    group_id: str
    topics: tuple[TopicMetadata, ...]


class ClassicMetadata(NamedTuple):
    """Of a member that speaks the classic protocol to a group of the new one."""

    session_timeout_ms: int
    protocols: tuple[Protocol, ...]


class ConsumerGroupMemberMetadata(NamedTuple):
    group_id: str
    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: tuple[str, ...] = ()
    topic_regex: str | None = None
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic: ClassicMetadata | None = None


class ConsumerGroupTargetAssignmentMetadata(NamedTuple):
    group_id: str
    epoch: int


class ConsumerGroupTargetAssignmentMember(NamedTuple):
    group_id: str
    member_id: str
    partitions: Assignment


class ConsumerGroupCurrentMemberAssignment(NamedTuple):
    group_id: str
    member_id: str
    epoch: int = 0
    previous_epoch: int = 0  # A member whose last answer was lost comes back with it.
    state: MemberState = MemberState.STABLE
    assigned: Assignment = NOTHING
    # Still the member's until it says otherwise. Disjoint from `assigned`.
    to_revoke: Assignment = NOTHING


class ConsumerGroupRegularExpression(NamedTuple):
    group_id: str
    regex: str
    topics: frozenset[str]
    version: int = 0  # Of the metadata that it was resolved with. We know by other means, and write 0.
    timestamp_ms: int = NO_TIMESTAMP


class ConsumerGroupTombstone(NamedTuple):
    kind: RecordKind
    group_id: str
    subject: str = ""  # Member id or regular expression, for the kinds that have one.


ConsumerRecord = (
    ConsumerGroupMetadata
    | ConsumerGroupPartitionMetadata
    | ConsumerGroupMemberMetadata
    | ConsumerGroupTargetAssignmentMetadata
    | ConsumerGroupTargetAssignmentMember
    | ConsumerGroupCurrentMemberAssignment
    | ConsumerGroupRegularExpression
    | ConsumerGroupTombstone
)


def encode(record: ConsumerRecord) -> tuple[bytes, bytes | None]:
    match record:
        case ConsumerGroupTombstone():
            return _key(record.kind, record.group_id, record.subject), None
        case ConsumerGroupMetadata():
            return _key(RecordKind.GROUP, record.group_id), _value(INT32.pack(record.epoch))
        case ConsumerGroupPartitionMetadata():
            return _key(RecordKind.PARTITION_METADATA, record.group_id), _value(_array(record.topics, _topic))
        case ConsumerGroupMemberMetadata():
            return _key(RecordKind.MEMBER, record.group_id, record.member_id), _member_value(record)
        case ConsumerGroupTargetAssignmentMetadata():
            return _key(RecordKind.TARGET_EPOCH, record.group_id), _value(INT32.pack(record.epoch))
        case ConsumerGroupTargetAssignmentMember():
            key = _key(RecordKind.TARGET_MEMBER, record.group_id, record.member_id)
            return key, _value(_partitions(record.partitions))
        case ConsumerGroupCurrentMemberAssignment():
            key = _key(RecordKind.CURRENT_ASSIGNMENT, record.group_id, record.member_id)
            epochs = INT32.pack(record.epoch) + INT32.pack(record.previous_epoch) + bytes((record.state,))
            return key, _value(epochs + _partitions(record.assigned) + _partitions(record.to_revoke))
        case ConsumerGroupRegularExpression():
            topics = _array(sorted(record.topics), _compact)
            times = INT64.pack(record.version) + INT64.pack(record.timestamp_ms)
            return _key(RecordKind.REGULAR_EXPRESSION, record.group_id, record.regex), _value(topics + times)


def decode(kind: RecordKind, key: Reader, value: bytes | None) -> ConsumerRecord:
    """The record behind a key whose type was read already."""
    group_id = key.string()
    subject = key.string() if kind in HAS_SUBJECT else ""
    if value is None:
        return ConsumerGroupTombstone(kind=kind, group_id=group_id, subject=subject)
    (version,) = INT16.unpack_from(value)
    if version != VALUE_VERSION:
        raise CorruptRecord(f"value of {kind.name} has version {version}, known is {VALUE_VERSION}")
    reader = Reader(value, position=2, flexible=True)
    return _decode_value(kind, group_id, subject, reader)


def _decode_value(kind: RecordKind, group_id: str, subject: str, reader: Reader) -> ConsumerRecord:
    match kind:
        case RecordKind.GROUP:
            return ConsumerGroupMetadata(group_id=group_id, epoch=reader.int32())
        case RecordKind.PARTITION_METADATA:
            return ConsumerGroupPartitionMetadata(group_id=group_id, topics=_read_topics(reader))
        case RecordKind.MEMBER:
            return _read_member(group_id, subject, reader)
        case RecordKind.TARGET_EPOCH:
            return ConsumerGroupTargetAssignmentMetadata(group_id=group_id, epoch=reader.int32())
        case RecordKind.TARGET_MEMBER:
            return ConsumerGroupTargetAssignmentMember(
                group_id=group_id, member_id=subject, partitions=_read_partitions(reader)
            )
        case RecordKind.CURRENT_ASSIGNMENT:
            return ConsumerGroupCurrentMemberAssignment(
                group_id=group_id,
                member_id=subject,
                epoch=reader.int32(),
                previous_epoch=reader.int32(),
                state=_read_state(reader),
                assigned=_read_partitions(reader),
                to_revoke=_read_partitions(reader),
            )
        case RecordKind.REGULAR_EXPRESSION:
            return ConsumerGroupRegularExpression(
                group_id=group_id,
                regex=subject,
                topics=frozenset(reader.string() for _ in range(reader.count(1))),
                version=reader.int64(),
                timestamp_ms=reader.int64(),
            )


# Writing --------------------------------------------------------------------------------------------------------------


def _key(kind: RecordKind, group_id: str, subject: str = "") -> bytes:
    key = INT16.pack(kind) + string(group_id)
    return key + string(subject) if kind in HAS_SUBJECT else key


def _value(body: bytes) -> bytes:
    return INT16.pack(VALUE_VERSION) + body + EMPTY_TAGS


def _length(length: int) -> bytes:
    out = bytearray()
    write_uvarint(out, length + 1)
    return bytes(out)


def _compact(text: str | None) -> bytes:
    if text is None:
        return b"\0"
    raw = text.encode()
    return _length(len(raw)) + raw


def _array(items: Iterable[T], write: Callable[[T], bytes]) -> bytes:
    parts = [write(item) for item in items]
    return _length(len(parts)) + b"".join(parts)


def _topic(topic: TopicMetadata) -> bytes:
    # The racks of its partitions, an empty array, are of no use since Kafka 4.0.
    count = INT32.pack(topic.partition_count)
    return topic.topic_id.bytes + _compact(topic.name) + count + _length(0) + EMPTY_TAGS


def _partitions(assignment: Assignment) -> bytes:
    parts = [_length(len(assignment))]
    for topic_id, partitions in assignment.items():
        parts += (topic_id.bytes, _length(len(partitions)), *map(INT32.pack, sorted(partitions)), EMPTY_TAGS)
    return b"".join(parts)


def _member_value(record: ConsumerGroupMemberMetadata) -> bytes:
    parts = [
        INT16.pack(VALUE_VERSION),
        _compact(record.instance_id),
        _compact(record.rack_id),
        _compact(record.client_id),
        _compact(record.client_host),
        _array(record.topic_names, _compact),
        _compact(record.topic_regex),
        INT32.pack(record.rebalance_timeout_ms),
        _compact(record.server_assignor),
    ]
    if record.classic is None:
        return b"".join((*parts, EMPTY_TAGS))
    # A struct that can be null starts with a byte that says that it is not.
    protocols = _array(record.classic.protocols, _protocol)
    struct = b"\1" + INT32.pack(record.classic.session_timeout_ms) + protocols + EMPTY_TAGS
    size = bytearray()
    write_uvarint(size, len(struct))
    return b"".join((*parts, bytes((1, CLASSIC_TAG)), size, struct))


def _protocol(protocol: Protocol) -> bytes:
    return _compact(protocol.name) + _length(len(protocol.metadata)) + protocol.metadata + EMPTY_TAGS


# Reading --------------------------------------------------------------------------------------------------------------


def _read_topics(reader: Reader) -> tuple[TopicMetadata, ...]:
    return tuple(_read_topic(reader) for _ in range(reader.count(UUID_BYTES + 7)))


def _read_topic(reader: Reader) -> TopicMetadata:
    topic = TopicMetadata(reader.uuid(), reader.string(), reader.int32())
    for _ in range(reader.count(6)):
        reader.int32()
        for _ in range(reader.count(1)):
            reader.string()
        reader.tags()
    reader.tags()
    return topic


def _read_partitions(reader: Reader) -> Assignment:
    topics: dict[UUID, frozenset[int]] = {}
    for _ in range(reader.count(UUID_BYTES + 2)):
        topic_id = reader.uuid()
        partitions = frozenset(reader.int32() for _ in range(reader.count(4)))
        reader.tags()
        if partitions:
            topics[topic_id] = partitions
    return topics


def _read_state(reader: Reader) -> MemberState:
    number = reader.int8()
    try:
        return MemberState(number)
    except ValueError as error:
        raise CorruptRecord(f"member state {number} is not known") from error


def _read_member(group_id: str, member_id: str, reader: Reader) -> ConsumerGroupMemberMetadata:
    return ConsumerGroupMemberMetadata(
        group_id=group_id,
        member_id=member_id,
        instance_id=reader.nullable_string(),
        rack_id=reader.nullable_string(),
        client_id=reader.string(),
        client_host=reader.string(),
        topic_names=tuple(reader.string() for _ in range(reader.count(1))),
        topic_regex=reader.nullable_string(),
        rebalance_timeout_ms=reader.int32(),
        server_assignor=reader.nullable_string(),
        classic=_read_classic(reader.tags().get(CLASSIC_TAG)),
    )


def _read_classic(struct: bytes | None) -> ClassicMetadata | None:
    if struct is None:
        return None
    reader = Reader(struct, flexible=True)
    if reader.int8() != 1:
        return None
    return ClassicMetadata(reader.int32(), tuple(_read_protocol(reader) for _ in range(reader.count(3))))


def _read_protocol(reader: Reader) -> Protocol:
    protocol = Protocol(reader.string(), reader.blob())
    reader.tags()
    return protocol
