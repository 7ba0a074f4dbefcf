"""ZooKeeper's wire format, as far as a metadata store needs it. Pure: values to bytes and back.

A packet is a length (which `session.py` adds and takes off) and then big-endian fields: `int` 4 bytes, `long` 8,
strings and buffers with an int length in front, of which -1 is null.

    request  | xid int | type int | body |
    reply    | xid int | zxid long | error int | body |

The server must be 3.6 or later, for persistent watches and reads in bulk.
"""

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

_INT = struct.Struct(">i")
_REQUEST = struct.Struct(">ii")
_REPLY = struct.Struct(">iqi")
_CONNECT = struct.Struct(">iqiq")
_CONNECTED = struct.Struct(">iiq")
_STAT = struct.Struct(">qqqqiiiqiiq")
_OPERATION = struct.Struct(">i?i")
_END_OF_MULTI = _OPERATION.pack(-1, True, -1)
# Anybody may do anything: one entry, all rights, scheme and id.
_OPEN_ACL = _INT.pack(1) + _INT.pack(31) + _INT.pack(5) + b"world" + _INT.pack(6) + b"anyone"
_EPHEMERAL = 1
_PERSISTENT_RECURSIVE = 1
_ERROR_RESULT = -1

Malformed = struct.error  # What reading raises when the bytes are not a reply.

EVENT_XID = -1
ANY_VERSION = -1


class Type(IntEnum):
    CREATE = 1
    DELETE = 2
    GET_DATA = 4
    SET_DATA = 5
    GET_CHILDREN = 8
    SYNC = 9
    CHECK = 13
    MULTI = 14
    CREATE2 = 15  # As CREATE, and the answer has the stat.
    MULTI_READ = 22
    ADD_WATCH = 106
    CLOSE = -11


class Code(IntEnum):
    """The errors that mean something to us; others are numbers."""

    OK = 0
    NO_NODE = -101
    BAD_VERSION = -103
    NODE_EXISTS = -110
    NOT_EMPTY = -111
    SESSION_EXPIRED = -112
    SESSION_MOVED = -118


class EventType(IntEnum):
    SESSION = -1
    CREATED = 1
    DELETED = 2
    CHANGED = 3
    CHILDREN = 4


class Stat(NamedTuple):
    czxid: int
    mzxid: int
    ctime_ms: int
    mtime_ms: int
    version: int
    cversion: int
    aversion: int
    ephemeral_owner: int  # The session that the node vanishes with; 0: none.
    data_length: int
    children_count: int
    pzxid: int


class Connected(NamedTuple):
    timeout_ms: int  # What the server grants; 0 or less: the session is over.
    session_id: int
    password: bytes


class Reply(NamedTuple):
    xid: int
    zxid: int  # The last transaction that the server had carried out.
    error: int
    body: memoryview


class Event(NamedTuple):
    type: int
    path: str


# What a multi gives for each operation: a stat (CREATE2, SET_DATA), data with its stat, names of children, None
# (DELETE, CHECK), or an error as a number.
Result = Stat | tuple[bytes | None, Stat] | list[str] | None | int


# Requests -------------------------------------------------------------------------------------------------------------


def connect(last_zxid: int, timeout_ms: int, session_id: int, password: bytes) -> bytes:
    return _CONNECT.pack(0, last_zxid, timeout_ms, session_id) + _buffer(password) + b"\0"


def request(xid: int, kind: Type, body: bytes = b"") -> bytes:
    return _REQUEST.pack(xid, kind) + body


def path_body(path: str) -> bytes:
    """Of SYNC."""
    return _string(path)


def add_watch_body(path: str) -> bytes:
    return _string(path) + _INT.pack(_PERSISTENT_RECURSIVE)


def create_body(path: str, data: bytes | None, *, is_ephemeral: bool = False) -> bytes:
    return _string(path) + _buffer(data) + _OPEN_ACL + _INT.pack(_EPHEMERAL if is_ephemeral else 0)


def set_body(path: str, data: bytes | None, version: int = ANY_VERSION) -> bytes:
    return _string(path) + _buffer(data) + _INT.pack(version)


def version_body(path: str, version: int = ANY_VERSION) -> bytes:
    """Of DELETE and CHECK."""
    return _string(path) + _INT.pack(version)


def read_body(path: str) -> bytes:
    """Of GET_DATA and GET_CHILDREN, without a watch."""
    return _string(path) + b"\0"


def multi_body(operations: Iterable[tuple[Type, bytes]]) -> bytes:
    """Of MULTI and MULTI_READ."""
    parts = []
    for kind, body in operations:
        parts.append(_OPERATION.pack(kind, False, -1))
        parts.append(body)
    parts.append(_END_OF_MULTI)
    return b"".join(parts)


def _string(text: str) -> bytes:
    return _buffer(text.encode())


def _buffer(data: bytes | None) -> bytes:
    return _INT.pack(-1) if data is None else _INT.pack(len(data)) + data


# Replies --------------------------------------------------------------------------------------------------------------


def read_connected(packet: memoryview) -> Connected:
    _, timeout_ms, session_id = _CONNECTED.unpack_from(packet)
    password, _ = _read_buffer(packet, _CONNECTED.size)
    return Connected(timeout_ms, session_id, password or b"")


def read_reply(packet: memoryview) -> Reply:
    xid, zxid, error = _REPLY.unpack_from(packet)
    return Reply(xid, zxid, error, packet[_REPLY.size :])


def read_event(body: memoryview) -> Event:
    (kind,) = _INT.unpack_from(body)
    path, _ = _read_buffer(body, 8)  # Behind the state of the session, which we know better.
    return Event(kind, (path or b"").decode())


def read_results(body: memoryview) -> list[Result]:
    """What a MULTI or MULTI_READ gives, one for each operation."""
    results: list[Result] = []
    position = 0
    while True:
        kind, is_end, _ = _OPERATION.unpack_from(body, position)
        position += _OPERATION.size
        if is_end:
            return results
        result: Result = None
        if kind == _ERROR_RESULT:
            (result,) = _INT.unpack_from(body, position)
            position += 4
        elif kind == Type.CREATE2:
            _, position = _read_buffer(body, position)
            result, position = _read_stat(body, position)
        elif kind == Type.SET_DATA:
            result, position = _read_stat(body, position)
        elif kind == Type.GET_DATA:
            data, position = _read_buffer(body, position)
            stat, position = _read_stat(body, position)
            result = (data, stat)
        elif kind == Type.GET_CHILDREN:
            result, position = _read_strings(body, position)
        else:
            assert kind in (Type.DELETE, Type.CHECK), f"result of an operation that was not asked for: {kind}"
        results.append(result)


def first_error(results: Sequence[Result]) -> int | None:
    """The index of the operation for which a multi has failed, None when it has not.

    Those before it have error 0: they were fine, and are rolled back. Those behind it were not tried.
    """
    for index, result in enumerate(results):
        if isinstance(result, int) and result != Code.OK:
            return index
    return None


def _read_buffer(packet: memoryview, position: int) -> tuple[bytes | None, int]:
    (length,) = _INT.unpack_from(packet, position)
    position += 4
    if length < 0:
        return None, position
    return bytes(packet[position : position + length]), position + length


def _read_stat(packet: memoryview, position: int) -> tuple[Stat, int]:
    return Stat(*_STAT.unpack_from(packet, position)), position + _STAT.size


def _read_strings(packet: memoryview, position: int) -> tuple[list[str], int]:
    (count,) = _INT.unpack_from(packet, position)
    position += 4
    strings = []
    for _ in range(count):
        string, position = _read_buffer(packet, position)
        strings.append((string or b"").decode())
    return strings, position
