"""The two requests that workloads send all the time, packed by hand: kio's writer would take a tenth of a run.

The tests compare them with kio's. Other requests go through kio itself.
"""

import struct

from penstock.base.types import TopicPartition

PRODUCE = (0, 9)  # API key and version.
FETCH = (1, 12)
TIMEOUT_MS = 30_000

_PRODUCE_HEAD = struct.Struct(">bhib")  # transactional_id, acks, timeout, topics
_FETCH_HEAD = struct.Struct(">iiiibiib")  # replica, wait, min and max bytes, isolation, session id and epoch, topics
_FETCH_PARTITION = struct.Struct(
    ">biiqiqib"
)  # count, partition, leader epoch, offset, epoch, log start, max bytes, tags
_FETCH_TAIL = b"\0\1\1\0"  # The topic's tags, no forgotten topics, an empty rack id, tags.


def produce_body(partition: TopicPartition, records: bytes | bytearray, transactional_id: str | None = None) -> bytes:
    """Produce one batch with acks=-1. The same in v9 and v12."""
    head = _PRODUCE_HEAD.pack(0, -1, TIMEOUT_MS, 2)
    if transactional_id is not None:
        head = _string(transactional_id) + head[1:]
    index = struct.pack(">bi", 2, partition.partition)
    return b"".join((head, _string(partition.topic), index, _uvarint(len(records) + 1), records, b"\0\0\0"))


def fetch_body(
    partition: TopicPartition,
    offset: int,
    wait_ms: int,
    bytes_max: int,
    leader_epoch: int = -1,
    *,
    is_committed: bool = False,
) -> bytes:
    """Fetch one partition, without a session."""
    head = _FETCH_HEAD.pack(-1, wait_ms, 1, 0x7FFFFFFF, is_committed, 0, -1, 2)
    wanted = _FETCH_PARTITION.pack(2, partition.partition, leader_epoch, offset, -1, -1, bytes_max, 0)
    return b"".join((head, _string(partition.topic), wanted, _FETCH_TAIL))


def _string(text: str) -> bytes:
    data = text.encode()
    return _uvarint(len(data) + 1) + data


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
