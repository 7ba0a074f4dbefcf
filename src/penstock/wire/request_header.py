"""The header of a request: | api_key i16 | api_version i16 | correlation_id i32 | client_id | tags, from v2 on |."""

import struct
from typing import NamedTuple

from penstock.base.errors import BadPeer
from penstock.wire.fields import Buffer, read_tags

_FIXED = struct.Struct(">hhih")  # The last is the length of the client id.


class HeaderStart(NamedTuple):
    """What can be read before it is known whether the version is served, and thus what follows."""

    api_key: int
    version: int
    correlation_id: int
    client_id_length: int


def read_header_start(frame: Buffer) -> HeaderStart:
    try:
        return HeaderStart(*_FIXED.unpack_from(frame))
    except struct.error as error:
        raise BadPeer(f"frame of {len(frame)} bytes has no request header") from error


def read_header_rest(frame: memoryview, start: HeaderStart, is_flexible: bool) -> tuple[str | None, int]:
    """The client id, and where the request itself begins."""
    position, client_id = _FIXED.size, None
    if start.client_id_length >= 0:
        position += start.client_id_length
        if position > len(frame):
            raise BadPeer(f"client id of {start.client_id_length} bytes, {len(frame) - _FIXED.size} are left")
        client_id = str(frame[_FIXED.size : position], "utf-8", "replace")
    elif start.client_id_length != -1:
        raise BadPeer(f"client id of {start.client_id_length} bytes")
    if is_flexible:
        try:
            position = read_tags(frame, position, {}, {})
        except (IndexError, ValueError) as error:
            raise BadPeer("tags of the request header are cut short") from error
    return client_id, position
