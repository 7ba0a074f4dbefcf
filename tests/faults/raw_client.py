"""The few requests that a test must send itself, byte by byte: when every millisecond or every connection counts."""

import socket
import struct

from ports import HOST

_FETCH, _API_VERSIONS = 1, 18


def frame(api_key: int, version: int, body: bytes = b"", correlation_id: int = 1) -> bytes:
    """A request without client id, in a version whose header has no tags."""
    header = struct.pack(">hhih", api_key, version, correlation_id, -1)
    return struct.pack(">i", len(header) + len(body)) + header + body


API_VERSIONS = frame(_API_VERSIONS, 0)


def fetch(topic: str, partition: int, offset: int, *, wait_ms: int, bytes_max: int = 1 << 20) -> bytes:
    """Fetch v4 of one partition, without a session: min_bytes is 1, isolation read_uncommitted."""
    name = topic.encode()
    body = struct.pack(">iiiibi", -1, wait_ms, 1, bytes_max, 0, 1)
    body += struct.pack(">h", len(name)) + name + struct.pack(">iiqi", 1, partition, offset, bytes_max)
    return frame(_FETCH, 4, body)


def connect(port: int, source: str = HOST, timeout_s: float = 60) -> socket.socket:
    return socket.create_connection((HOST, port), timeout=timeout_s, source_address=(source, 0))


def receive(connection: socket.socket) -> bytes:
    """One whole reply, without its size; ConnectionError when the peer closes."""
    (size,) = struct.unpack(">i", _receive_exactly(connection, 4))
    return _receive_exactly(connection, size)


def _receive_exactly(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise ConnectionError("the broker closed the connection")
        data += more
    return bytes(data)
