"""One connection to another broker, seen from the side that asks: requests out, replies in, in the same order.

Whatever is wrong with a reply ends the connection: from then on nobody could tell which reply is whose.
"""

import asyncio
import struct
from collections import deque
from typing import NamedTuple, cast

from penstock.base.errors import BadPeer
from penstock.base.logging import get_logger
from penstock.partition.peers import PeerLost
from penstock.wire.codec import Struct, is_flexible_request, is_flexible_response, request_writer, response_reader
from penstock.wire.fields import Buffer, read_tags
from penstock.wire.framing import RECEIVE_BYTES, FrameReader
from penstock.wire.varint import InvalidVarint

log = get_logger(__name__)

_HEADER = struct.Struct(">ihhih")  # size, api_key, api_version, correlation_id, length of client_id
_CORRELATION_ID = struct.Struct(">i")
_UNREADABLE = (BadPeer, struct.error, IndexError, InvalidVarint, UnicodeDecodeError)

JOINED_BYTES_MAX = 4 << 10  # See server/connection.py.


class _Waiting(NamedTuple):
    correlation_id: int
    is_flexible: bool  # The response header ends in tagged fields.
    reply: asyncio.Future[memoryview]


class Peer(asyncio.BufferedProtocol):
    """How much is asked at once is for the callers to bound; the other side works on 64 requests at a time."""

    def __init__(self, *, name: str, client_id: str, frame_bytes_max: int) -> None:
        self._name = name
        self._client_id = client_id.encode()
        self._frames = FrameReader(bytearray(RECEIVE_BYTES), frame_bytes_max)
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[_Waiting] = deque()
        self._correlation_id = 0
        self._lost_by: str | None = None  # Why it is lost.

    @property
    def is_lost(self) -> bool:
        return self._lost_by is not None

    async def ask(self, api_key: int, version: int, request: Struct, timeout_s: float) -> Struct:
        """The reply. PeerLost when none comes in time; the connection is over then, for all who wait."""
        body = bytearray()
        request_writer(api_key, version)(body, request)
        reply = await self.ask_raw(api_key, version, body, timeout_s)
        try:
            response, _ = response_reader(api_key, version)(reply, 0)
        except _UNREADABLE as error:
            reason = f"reply of api {api_key} v{version} cannot be read: {error}"
            self._lose(reason)
            raise PeerLost(f"{self._name}: {reason}") from error
        assert isinstance(response, Struct)
        return response

    async def ask_raw(self, api_key: int, version: int, body: Buffer | list[Buffer], timeout_s: float) -> memoryview:
        """As `ask`, for who writes the request's body and reads the reply's by itself."""
        if self._lost_by is not None:
            raise PeerLost(f"{self._name}: {self._lost_by}")
        assert self._transport is not None
        buffers = body if isinstance(body, list) else [body]
        self._correlation_id = correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        end = b"\0" if is_flexible_request(api_key, version) else b""
        size = _HEADER.size - 4 + len(self._client_id) + len(end) + sum(map(len, buffers))
        head = _HEADER.pack(size, api_key, version, correlation_id, len(self._client_id)) + self._client_id + end
        loop = asyncio.get_running_loop()
        waiting = _Waiting(correlation_id, is_flexible_response(api_key, version), loop.create_future())
        self._waiting.append(waiting)
        if size <= JOINED_BYTES_MAX:
            self._transport.write(b"".join([head, *buffers]))
        else:
            self._transport.writelines([head, *buffers])
        timer = loop.call_later(timeout_s, self._lose, f"no reply of api {api_key} within {timeout_s:g} s")
        try:
            return await waiting.reply
        finally:
            timer.cancel()

    def close(self) -> None:
        """End the connection; PeerLost for all who wait."""
        self._lose("closed")

    def _lose(self, reason: str) -> None:
        if self._lost_by is not None:
            return
        self._lost_by = reason
        if self._transport is not None:
            self._transport.abort()
        if self._waiting:
            log.info("connection to a broker lost", peer=self._name, reason=reason, waiting=len(self._waiting))
        waiting, self._waiting = self._waiting, deque()
        for item in waiting:
            if not item.reply.done():
                item.reply.set_exception(PeerLost(f"{self._name}: {reason}"))

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has the methods but not the base class.
        if self._lost_by is not None:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._lose(str(error) if error is not None else "connection closed by the other side")

    def eof_received(self) -> bool:
        return False

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.get_buffer()

    def buffer_updated(self, count: int) -> None:
        try:
            for frame in self._frames.received(count):
                self._on_reply(frame)
        except _UNREADABLE as error:
            self._lose(f"reply cannot be read: {error}")

    def _on_reply(self, frame: memoryview) -> None:
        (correlation_id,) = _CORRELATION_ID.unpack_from(frame)
        if not self._waiting or self._waiting[0].correlation_id != correlation_id:
            raise BadPeer(f"reply {correlation_id} is not the next")
        waiting = self._waiting[0]
        position = _CORRELATION_ID.size
        if waiting.is_flexible:
            position = read_tags(frame, position, {}, {})
        self._waiting.popleft()
        if not waiting.reply.done():  # Else nobody wants it any more.
            waiting.reply.set_result(frame[position:])
