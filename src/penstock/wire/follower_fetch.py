"""Fetch as a follower sends it and reads its reply: one version, by hand, records without a copy.

max_wait i32, min_bytes i32, max_bytes i32, isolation i8, session i32, epoch i32,
[ topic id, [ partition i32, leader_epoch i32, fetch_offset i64, last_fetched_epoch i32, log_start i64,
              bytes_max i32 ] ],
forgotten [ topic id, [ i32 ] ], rack, tag 1: replica i32, broker epoch i64

throttle i32, error i16, session i32,
[ topic id, [ index i32, error i16, high_watermark i64, last_stable i64, log_start i64, [aborted],
              preferred_replica i32, records, tag 0: epoch i32, end i64 ] ]
"""

import struct
from collections.abc import Iterable
from typing import Any, NamedTuple
from uuid import UUID

from penstock.base.errors import BadPeer
from penstock.wire.fields import read_count, read_length, read_tags, read_uuid
from penstock.wire.varint import InvalidVarint, write_uvarint

FOLLOWER_VERSION = 17
NO_LOG_START = -1  # Where a follower's log begins is of no use to its leader.

_HEAD = struct.Struct(">iiibii")
_WANTED = struct.Struct(">iiqiqi")
_REPLICA_STATE = struct.Struct(">iq")
_REPLY_HEAD = struct.Struct(">ihi")
_COPIED = struct.Struct(">ihqqq")
_EPOCH_END = struct.Struct(">iq")
_INT32_BYTES = 4


class CopyFrom(NamedTuple):
    """From where a follower goes on with one partition."""

    topic_id: UUID
    partition: int
    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int  # Of the record before `fetch_offset`.
    bytes_max: int | None = None  # None: as much as of all partitions together.


class Copied(NamedTuple):
    """What a leader answers about one partition."""

    topic_id: UUID
    partition: int
    error: int
    high_watermark: int
    log_start: int
    records: memoryview
    diverging: tuple[int, int] | None  # An epoch and where it ends at the leader: our log is another from there on.


class FollowerReply(NamedTuple):
    error: int
    session_id: int
    partitions: list[Copied]


def pack_follower_fetch(
    *,
    node_id: int,
    broker_epoch: int,
    max_wait_ms: int,
    bytes_max: int,
    session_id: int,
    session_epoch: int,
    wanted: Iterable[CopyFrom],
    forgotten: Iterable[tuple[UUID, int]],
) -> bytearray:
    """A request that is answered as soon as there is a byte."""
    out = bytearray(_HEAD.pack(max_wait_ms, 1, bytes_max, 0, session_id, session_epoch))
    by_topic: dict[UUID, list[CopyFrom]] = {}
    for item in wanted:
        by_topic.setdefault(item.topic_id, []).append(item)
    write_uvarint(out, len(by_topic) + 1)
    for topic_id, items in by_topic.items():
        out += topic_id.bytes
        write_uvarint(out, len(items) + 1)
        for _, index, leader_epoch, offset, last_epoch, own_bytes_max in items:
            most = bytes_max if own_bytes_max is None else min(bytes_max, own_bytes_max)
            out += _WANTED.pack(index, leader_epoch, offset, last_epoch, NO_LOG_START, most)
            out.append(0)
        out.append(0)
    forgotten_by_topic: dict[UUID, list[int]] = {}
    for topic_id, index in forgotten:
        forgotten_by_topic.setdefault(topic_id, []).append(index)
    write_uvarint(out, len(forgotten_by_topic) + 1)
    for topic_id, indexes in forgotten_by_topic.items():
        out += topic_id.bytes
        write_uvarint(out, len(indexes) + 1)
        out += struct.pack(f">{len(indexes)}i", *indexes)
        out.append(0)
    # No rack; then one tag of 13 bytes, the replica's state, which has no tags itself.
    out += b"\1\1\1\x0d" + _REPLICA_STATE.pack(node_id, broker_epoch) + b"\0"
    return out


def read_follower_reply(body: memoryview) -> FollowerReply:
    """The reply, whose records stay where they are; BadPeer when it is malformed."""
    try:
        return _read(body)
    except (struct.error, IndexError, InvalidVarint) as error:
        raise BadPeer(f"Fetch reply cannot be read: {error}") from error


def _read(body: memoryview) -> FollowerReply:
    _, error, session_id = _REPLY_HEAD.unpack_from(body)
    partitions: list[Copied] = []
    topics_count, position = read_count(body, _REPLY_HEAD.size, True)
    for _ in range(topics_count):
        topic_id, position = read_uuid(body, position)
        count, position = read_count(body, position, True)
        for _ in range(count):
            item, position = _read_copied(body, position, topic_id)
            partitions.append(item)
        position = read_tags(body, position, {}, {})
    return FollowerReply(error, session_id, partitions)


def _read_copied(body: memoryview, position: int, topic_id: UUID) -> tuple[Copied, int]:
    index, code, high_watermark, _, log_start = _COPIED.unpack_from(body, position)
    aborted_count, position = read_length(body, position + _COPIED.size, True)
    if aborted_count > 0:
        raise BadPeer("a follower reads what is not committed, and needs no aborted transactions")
    size, position = read_length(body, position + _INT32_BYTES, True)
    size = max(size, 0)
    records = body[position : position + size]
    if len(records) < size:
        raise BadPeer(f"{size} bytes of records, {len(records)} are there")
    values: dict[str, Any] = {}
    position = read_tags(body, position + size, {0: ("diverging", _read_epoch_end)}, values)
    return Copied(topic_id, index, code, high_watermark, log_start, records, values.get("diverging")), position


def _read_epoch_end(data: bytes | bytearray | memoryview, position: int) -> tuple[tuple[int, int], int]:
    return _EPOCH_END.unpack_from(data, position), read_tags(data, position + _EPOCH_END.size, {}, {})
