"""One client connection: frames in, replies out in the order of their requests.

A request starts work once its frame is whole, also behind one that still waits; its reply keeps its place in line.
A peer that does not read its replies, or has too many requests open, is not read from until that has changed.
"""

import asyncio
import struct
from collections import deque
from typing import TYPE_CHECKING, cast

from penstock.base.errors import BadPeer
from penstock.base.logging import get_logger
from penstock.wire.framing import FrameReader

if TYPE_CHECKING:
    from penstock.server.listener import ConnectionListener

log = get_logger(__name__)

Buffer = bytes | bytearray | memoryview

REQUESTS_OPEN_MAX = 64  # Java clients keep 5 open, librdkafka up to a million: beyond this they wait in the socket.
REQUESTS_OPEN_RESUME = 32
WRITE_BUFFER_BYTES = 4 << 20  # Four fetch replies of the default size; then the peer is too slow to be read from.

_SIZE_AND_ID = struct.Struct(">ii")


class Reply:
    """The place of one reply in the line. `send` or `skip` may come at any time, once."""

    __slots__ = ("_buffers", "_connection", "_correlation_id", "_frame_bytes", "_is_flexible")

    def __init__(self, connection: "Connection", correlation_id: int, is_flexible: bool, frame_bytes: int) -> None:
        self._connection = connection
        self._correlation_id = correlation_id
        self._is_flexible = is_flexible  # Response header v1 ends in an empty tag section.
        self._frame_bytes = frame_bytes
        self._buffers: list[Buffer] | None = None

    def send(self, buffers: list[Buffer]) -> None:
        assert self._buffers is None, "replied twice"
        size = 4 + sum(map(len, buffers))
        if self._is_flexible:
            head = _SIZE_AND_ID.pack(size + 1, self._correlation_id) + b"\0"
        else:
            head = _SIZE_AND_ID.pack(size, self._correlation_id)
        self._buffers = [head, *buffers]
        self._connection.on_reply_ready(self)

    def skip(self) -> None:
        """Leave the place without a reply (acks=0)."""
        self._buffers = []
        self._connection.on_reply_ready(self)

    def fail(self, reason: str) -> None:
        """There is no reply: close the connection, which every client takes as a reason to try again."""
        self._connection.close(reason)

    @property
    def is_ready(self) -> bool:
        return self._buffers is not None

    @property
    def frame_bytes(self) -> int:
        return self._frame_bytes

    def take(self) -> list[Buffer]:
        assert self._buffers is not None
        return self._buffers

    @property
    def is_wanted(self) -> bool:
        """False once the client is gone and nobody needs the answer."""
        return not self._connection.is_closed


class Connection(asyncio.BufferedProtocol):
    def __init__(self, listener: "ConnectionListener") -> None:
        self._listener = listener
        self._frames = FrameReader(listener.receive_buffer, listener.frame_bytes_max)
        self._replies: deque[Reply] = deque()
        self._transport: asyncio.Transport | None = None
        self._is_writing_paused = False
        self._is_reading_paused = False
        self._is_flush_due = False
        self.is_closed = False
        self.peer = "?"
        self.active_at = 0.0  # Loop time of the last received byte.

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's has the methods but not the base class.
        self._transport = transport
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        peername = transport.get_extra_info("peername")
        self.peer = f"{peername[0]}:{peername[1]}" if peername else "?"
        self.active_at = self._listener.now()
        if not self._listener.on_connected(self):
            self.close("too many connections")

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed = True
        self._listener.on_disconnected(self, sum(reply.frame_bytes for reply in self._replies))
        self._replies.clear()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.get_buffer()

    def buffer_updated(self, count: int) -> None:
        self.active_at = self._listener.now()
        self._is_flush_due = True  # Below, once for all frames that came together.
        try:
            for frame in self._frames.received(count):
                if self.is_closed:
                    return
                self._listener.dispatch(self, frame)
        except BadPeer as error:
            self._flush()
            self.close(str(error), after_writing=True)
            return
        self._flush()
        if len(self._replies) >= REQUESTS_OPEN_MAX or self._listener.is_over_budget:
            self._update_reading()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._is_writing_paused = True
        self._update_reading()

    def resume_writing(self) -> None:
        self._is_writing_paused = False
        self._update_reading()

    # Requests and replies

    @property
    def ip(self) -> str:
        return self.peer.rpartition(":")[0]

    @property
    def is_mid_frame(self) -> bool:
        return self._frames.is_mid_frame and not self._is_reading_paused

    @property
    def is_idle(self) -> bool:
        return not self._replies

    def open_reply(self, correlation_id: int, is_flexible: bool, frame_bytes: int) -> Reply:
        reply = Reply(self, correlation_id, is_flexible, frame_bytes)
        self._replies.append(reply)
        self._listener.budget_used += frame_bytes
        return reply

    def on_reply_ready(self, reply: Reply) -> None:
        if self.is_closed or self._replies[0] is not reply or self._is_flush_due:
            return
        # Replies that get ready together leave together: a send costs more than making the reply.
        self._is_flush_due = True
        asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """Send every reply whose turn it is."""
        self._is_flush_due = False
        buffers: list[Buffer] = []
        replies = self._replies
        while replies and replies[0].is_ready:
            done = replies.popleft()
            buffers += done.take()
            self._listener.release(done.frame_bytes)
        if buffers and self._transport is not None and not self.is_closed:
            self._transport.writelines(buffers)
        if self._is_reading_paused:
            self._update_reading()

    def _update_reading(self) -> None:
        if self.is_closed or self._transport is None:
            return
        open_max = REQUESTS_OPEN_RESUME if self._is_reading_paused else REQUESTS_OPEN_MAX - 1
        must_pause = self._is_writing_paused or len(self._replies) > open_max
        if not must_pause and self._listener.is_over_budget:
            must_pause = True
            self._listener.wait_for_budget(self)
        if must_pause and not self._is_reading_paused:
            self._is_reading_paused = True
            self._transport.pause_reading()
        elif not must_pause and self._is_reading_paused:
            self._is_reading_paused = False
            self._transport.resume_reading()

    def on_budget_freed(self) -> None:
        self._update_reading()

    def close(self, reason: str, *, after_writing: bool = False) -> None:
        """Drop the connection and the requests in it; `after_writing` lets replies leave that are on their way."""
        if not self.is_closed and self._transport is not None:
            log.debug("connection closed", peer=self.peer, reason=reason)
            self.is_closed = True
            if after_writing and not self._is_writing_paused:
                self._transport.close()
            else:
                self._transport.abort()

    def close_gently(self) -> None:
        """Close once the replies that are ready have been sent."""
        if self._transport is not None:
            self._transport.close()
