"""Committed offsets seen from outside the group: the current ones, every one there ever was, and one by a zombie."""

import contextlib
import socket
import struct
from collections import defaultdict

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from .group_member import wait_until

TIMEOUT_S = 60
OFFSETS_TOPIC = "__consumer_offsets"

_OFFSET_COMMIT, _FIND_COORDINATOR = 8, 10
_VERSION = 2  # The oldest that Kafka 4 takes, and still without tagged fields.


def committed(admin: AdminClient, group: str) -> dict[int, int]:
    """Of the one topic that the group reads, by partition."""
    (asked,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    return {one.partition: one.offset for one in asked.result(TIMEOUT_S).topic_partitions}


def every_commit(bootstrap: str, group: str) -> dict[int, list[int]]:
    """All that __consumer_offsets holds for the group, by partition, in the order it was committed."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "not-used", "enable.partition.eof": True, "fetch.wait.max.ms": 50}
    )
    commits: defaultdict[int, list[int]] = defaultdict(list)
    try:
        partitions = consumer.list_topics(OFFSETS_TOPIC, TIMEOUT_S).topics[OFFSETS_TOPIC].partitions
        consumer.assign([TopicPartition(OFFSETS_TOPIC, partition, 0) for partition in partitions])
        unfinished = set(partitions)
        while unfinished:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None, f"no end of partitions {unfinished} of {OFFSETS_TOPIC}"
            error = message.error()
            if error is None:
                found = _decode(message.key(), message.value())
                if found is not None and found[0] == group:
                    commits[found[1]].append(found[2])
            elif error.code() == KafkaError._PARTITION_EOF:
                unfinished.discard(message.partition())
            else:
                raise KafkaException(error)
    finally:
        consumer.close()
    return commits


def _decode(key: bytes, value: bytes | None) -> tuple[str, int, int] | None:
    """Group, partition and offset of OffsetCommitKey (versions 0 and 1) and OffsetCommitValue."""
    if struct.unpack_from(">h", key)[0] > 1 or value is None:
        return None
    group, at = _string(key, 2)
    _, at = _string(key, at)
    return group, struct.unpack_from(">i", key, at)[0], struct.unpack_from(">q", value, 2)[0]


def _string(data: bytes, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from(">h", data, at)
    return data[at + 2 : at + 2 + length].decode(), at + 2 + length


def coordinator_address(bootstrap: str, group: str) -> str:
    """host:port of the broker that coordinates the group."""
    answer = b""

    def is_found() -> bool:
        nonlocal answer
        for address in bootstrap.split(","):
            with contextlib.suppress(OSError):  # One that is away, while others are not.
                answer = _ask(address, struct.pack(">hhi", _FIND_COORDINATOR, 0, 1) + _text("by-hand") + _text(group))
                return struct.unpack_from(">h", answer)[0] == 0
        return False

    wait_until(is_found, lambda: f"coordinator of {group}, last answer {answer!r}")
    host, at = _string(answer, 6)
    return f"{host}:{struct.unpack_from('>i', answer, at)[0]}"


def commit_by_hand(
    bootstrap: str, *, group: str, topic: str, generation: int, member: str, partition: int, offset: int
) -> int:
    """What a client would not send once it knows that it was shut out. The error code of the answer."""
    request = struct.pack(">hhi", _OFFSET_COMMIT, _VERSION, 1) + _text("by-hand")
    request += _text(group) + struct.pack(">i", generation) + _text(member) + struct.pack(">q", -1)
    request += struct.pack(">i", 1) + _text(topic) + struct.pack(">iiq", 1, partition, offset) + _text("")
    return struct.unpack(">h", _ask(coordinator_address(bootstrap, group), request)[-2:])[0]


def _text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def _ask(address: str, request: bytes) -> bytes:
    """The answer, without its header."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), TIMEOUT_S) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        with connection.makefile("rb") as stream:
            (length,) = struct.unpack(">i", stream.read(4))
            return stream.read(length)[4:]
