"""A consumer that lost its metadata with the broker opens a fetch session by topic name and goes on by topic id."""

import socket
import struct

from .broker import Broker
from .topics import create_topic, leader_address

FETCH_SESSION_TOPIC_ID_ERROR = 106


def _fetch(connection: socket.socket, version: int, session_id: int, epoch: int, topics: bytes) -> tuple[int, int]:
    """Error code and session id of the answer; `topics` is the encoded array."""
    request = struct.pack(">hhih", 1, version, 1, -1) + b"\0"
    request += struct.pack(">iiiibii", -1, 0, 0, 1 << 20, 0, session_id, epoch) + topics + b"\1\1\0"
    connection.sendall(struct.pack(">i", len(request)) + request)
    with connection.makefile("rb") as stream:
        (length,) = struct.unpack(">i", stream.read(4))
        _, _, _, error, session_id = struct.unpack(">ibihi", stream.read(length)[:15])
    return error, session_id


def test_session_by_name_does_not_go_on_by_id(broker: Broker, topic_prefix: str) -> None:
    """Kafka refuses, and the client opens a new one. An answer with names, read as one with ids, ends the client."""
    topic = f"{topic_prefix}-fetch-session"
    create_topic(broker.bootstrap, topic)
    host, port = leader_address(broker.bootstrap, topic).split(":")
    partition = struct.pack(">iiqiqi", 0, -1, 0, -1, -1, 1 << 20) + b"\0"
    by_name = b"\2" + bytes([len(topic) + 1]) + topic.encode() + b"\2" + partition + b"\0"
    with socket.create_connection((host, int(port)), 30) as connection:
        error, session_id = _fetch(connection, 12, 0, 0, by_name)
        assert error == 0 and session_id != 0
        assert _fetch(connection, 13, session_id, 1, b"\1")[0] == FETCH_SESSION_TOPIC_ID_ERROR
