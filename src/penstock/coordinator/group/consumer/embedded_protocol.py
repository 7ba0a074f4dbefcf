"""What Kafka's classic consumers put into JoinGroup and SyncGroup (ConsumerProtocol), read and written.

    subscription   version i16 | topics [string] | user_data bytes? | v1: owned [topic string | partitions [i32]]
                   | v2: generation i32 | v3: rack string?
    assignment     version i16 | assigned [topic string | partitions [i32]] | user_data bytes?

An eager consumer gives everything up before it joins, so that it owns nothing; one that speaks v0 is eager.
"""

import struct
from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from penstock.coordinator.group.consumer.assignment import Assignment, assignment_of
from penstock.coordinator.group.consumer.topics import Topics
from penstock.coordinator.record_bytes import INT16, INT32, CorruptRecord, Reader, string

NO_USER_DATA = INT32.pack(-1)
ASSIGNMENT_VERSION_MAX = 3
TOPIC_BYTES_MIN = 6  # An empty name and no partitions.

TopicNumbers = list[tuple[str, list[int]]]


class EmbeddedSubscription(NamedTuple):
    version: int
    topics: tuple[str, ...]
    owned: TopicNumbers


def read_subscription(metadata: bytes) -> EmbeddedSubscription | None:
    """None when the bytes are not a subscription."""
    try:
        reader = Reader(metadata)
        version = reader.int16()
        topics = tuple(reader.string() for _ in range(reader.count(2)))
        if version < 0:
            return None
        owned: TopicNumbers = []
        if version >= 1:
            _skip_user_data(reader)
            owned = _read_topics(reader)
        return EmbeddedSubscription(version, topics, owned)
    except (CorruptRecord, struct.error, UnicodeDecodeError):
        return None


def read_assignment(data: bytes) -> TopicNumbers | None:
    """None when the bytes are not an assignment. No bytes are one without partitions."""
    if not data:
        return []
    try:
        reader = Reader(data)
        return None if reader.int16() < 0 else _read_topics(reader)
    except (CorruptRecord, struct.error, UnicodeDecodeError):
        return None


def write_assignment(assignment: Assignment, topics: Topics, version: int) -> bytes:
    """For a member that sent a subscription of `version`. A topic that is gone is left out."""
    named = [(topics.name_of(topic_id), partitions) for topic_id, partitions in assignment.items()]
    known = sorted((name, sorted(partitions)) for name, partitions in named if name is not None)
    parts = [INT16.pack(min(version, ASSIGNMENT_VERSION_MAX)), INT32.pack(len(known))]
    for name, partitions in known:
        parts += (string(name), INT32.pack(len(partitions)), *map(INT32.pack, partitions))
    return b"".join((*parts, NO_USER_DATA))


def with_ids(numbers: Iterable[tuple[str, list[int]]], topics: Topics) -> Assignment:
    """By topic id; topics that are not there are left out."""
    pairs: list[tuple[UUID, int]] = []
    for name, partitions in numbers:
        topic = topics.find(name)
        if topic is not None:
            pairs += [(topic.topic_id, partition) for partition in partitions]
    return assignment_of(pairs)


def _read_topics(reader: Reader) -> TopicNumbers:
    return [
        (reader.string(), [reader.int32() for _ in range(reader.count(4))])
        for _ in range(reader.count(TOPIC_BYTES_MIN))
    ]


def _skip_user_data(reader: Reader) -> None:
    length = reader.int32()
    if length > 0:
        reader.skip(length)
