"""One client connection: frames in, replies out in the order of their requests.

A request starts work once its frame is whole, also behind one that still waits; its reply keeps its place in line.
A peer that does not read its replies, or has too many requests open, is not read from until that has changed.
One read can bring thousands of small requests for large replies: those for whose replies there is no room wait as well.
"""

import asyncio
import math
import os
import struct
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

from penstock.base.errors import BadPeer
from penstock.base.logging import get_logger
from penstock.server.authentication import Authentication
from penstock.server.network import tune
from penstock.server.outbox import JOINED_BYTES_MAX
from penstock.storage import page_cache
from penstock.storage.log_slice import LogSlice, SliceGone
from penstock.storage.segment import NotCached
from penstock.wire.fetch import StoredRecords
from penstock.wire.framing import BadSize, FrameReader

if TYPE_CHECKING:
    from penstock.server.dispatch import KnownHeader
    from penstock.server.listener import ConnectionListener

log = get_logger(__name__)

Buffer = bytes | bytearray | memoryview
Part = Buffer | StoredRecords  # Of a reply.

REQUESTS_OPEN_MAX = 64  # Java clients keep 5 open, librdkafka up to a million: beyond this they wait in the socket.
REQUESTS_OPEN_RESUME = 32
WRITE_BUFFER_BYTES = 4 << 20  # Four fetch replies of the default size; then the peer is too slow to be read from.
# Given to the transport and not taken by the socket: with any of it no more is written. And what is written leaves at
# once, where with a higher limit uvloop would hold it until the end of the turn, and no file could be sent behind it.
TRANSPORT_BYTES_MAX = 0
NO_DESCRIPTOR = -1
TURN_REQUESTS_MAX = 16  # That one client gets in a turn of the loop, about a millisecond.
TURN_BYTES = 16 << 10  # Of their replies: the large ones take longer to make.
FRAME_PROGRESS_BYTES = 4096  # What has to come of a frame within FRAME_STALL_S: 400 bytes a second.

_SIZE_AND_ID = struct.Struct(">ii")


class Reply:
    """The place of one reply in the line. `send` or `skip` may come at any time, once."""

    __slots__ = (
        "_connection",
        "_correlation_id",
        "_is_flexible",
        "frame_bytes",
        "is_stored",
        "on_lost",
        "on_sent",
        "parts",
        "size",
    )

    def __init__(self, connection: "Connection", correlation_id: int, is_flexible: bool, frame_bytes: int) -> None:
        self._connection = connection
        self._correlation_id = correlation_id
        self._is_flexible = is_flexible  # Response header v1 ends in an empty tag section.
        self.frame_bytes = frame_bytes
        self.parts: list[Part] | None = None  # The reply, once it is ready.
        self.size = 0  # Bytes of it that are in memory, once it is ready.
        self.is_stored = False  # More of it is in files.
        self.on_lost: Callable[[], None] | None = None  # Called when the client leaves before that.
        # Called with the reply, if some of it is in files, in the turn after the one in which its last byte has left.
        self.on_sent: Callable[[Reply], None] | None = None

    def send(self, parts: list[Part]) -> None:
        assert self.parts is None, "replied twice"
        size = 4
        stored_size = 0
        for part in parts:
            size += len(part)
            if isinstance(part, LogSlice):
                stored_size += len(part)
        if self._is_flexible:
            size += 1
            head = _SIZE_AND_ID.pack(size, self._correlation_id) + b"\0"
        else:
            head = _SIZE_AND_ID.pack(size, self._correlation_id)
        self.parts = [head, *parts]
        self.size = 4 + size - stored_size
        self.is_stored = stored_size > 0
        self.on_lost = None  # It refers to the request, which refers to this.
        self._connection.on_reply_ready(self)

    def tell_sent(self) -> None:
        assert self.on_sent is not None
        self.attempt(self.on_sent, self)

    def skip(self) -> None:
        """Leave the place without a reply (acks=0)."""
        assert self.parts is None, "replied twice"
        self.parts = []
        self._connection.on_reply_ready(self)

    def fail(self, reason: str) -> None:
        """There is no reply: close the connection, which every client takes as a reason to try again."""
        self._connection.close(reason)

    def hold_others(self) -> None:
        """Let no later request of this connection begin before `release_others`: its order would be lost."""
        self._connection.is_held = True

    def release_others(self) -> None:
        self._connection.release()

    def throttle(self, throttle_ms: int) -> None:
        """Take no more requests of this connection for so long; the reply says so."""
        if throttle_ms:
            self._connection.mute(throttle_ms / 1000)

    def close_later(self, delay_s: float, reason: str) -> None:
        """Take no more requests of this connection, and close it when this reply has had time to leave."""
        self._connection.mute(delay_s, then_close=reason)

    def attempt(self, work: Callable[..., None], *arguments: object) -> None:
        """Do what may send the reply later. Whatever goes wrong there ends this connection and nobody else's turn."""
        try:
            work(*arguments)
        except Exception:
            log.exception("request failed after its first turn", peer=self._connection.peer)
            self.fail("internal error")

    @property
    def room_bytes(self) -> int:
        """How much a reply may hold that could also be shorter."""
        return self._connection.room_bytes

    @property
    def is_wanted(self) -> bool:
        """False once the client is gone and nobody needs the answer."""
        return not self._connection.is_closed


class Connection(asyncio.BufferedProtocol):
    def __init__(self, listener: "ConnectionListener") -> None:
        self._listener = listener
        self._frames = FrameReader(listener.receive_buffer, listener.frame_bytes_max)
        self._received: deque[memoryview] = deque()  # Frames that nobody works on yet.
        self._replies: deque[Reply] = deque()
        self._outgoing: deque[Part] = deque()  # Of replies whose turn it is; the transport has no room for them yet.
        self._loading: asyncio.Task[None] | None = None  # What comes next, from the disk.
        self._leaving: Reply | None = None  # The last one in there that wants to know when it has left.
        self._unsent_bytes = 0  # Of replies that are ready, and not given to the transport.
        self._transport: asyncio.Transport | None = None
        self._descriptor = NO_DESCRIPTOR  # Of the socket, if it is a real one.
        self._room_descriptor = NO_DESCRIPTOR  # Of the same, while we wait for room in it.
        self._is_writing_paused = False
        self._is_reading_paused = False
        self._is_flush_due = False
        self._is_work_due = False
        self._is_busy = False  # Had as many requests open as it may have, and still has many.
        self._receiving_bytes = 0  # Of the frame that is on its way, in the listener's budget.
        self._stuck_bytes = 0  # Given to the transport and not taken by the peer, once that is too much.
        self._progress = (-1, 0)  # Of the frame that is being received, when it was last worth mentioning.
        self._progress_at = 0.0
        self.is_closed = False
        self.is_held = False  # A request is not done with its first part; those behind it must not overtake it.
        self._unmuting: asyncio.TimerHandle | None = None  # Set while the peer is muted, until `_muted_until`.
        self._muted_until = 0.0
        self._has_asked = False  # A whole request has come.
        self.known_header: KnownHeader | None = None  # Of the last request.
        self.authentication = Authentication()
        self.peer = self.ip = "?"
        self.served_since = 0.0  # Loop time; the first request is due soon after.
        self.active_at = 0.0  # Loop time of the last received byte.

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's has the methods but not the base class.
        self._transport = transport
        transport.set_write_buffer_limits(high=TRANSPORT_BYTES_MAX)
        connected = transport.get_extra_info("socket")
        if connected is not None:
            self._descriptor = connected.fileno()
            tune(connected, self._listener.send_buffer_bytes)
        peername = transport.get_extra_info("peername")
        if peername:
            self.ip = peername[0]
            self.peer = f"{peername[0]}:{peername[1]}"
        self.served_since = self.active_at = self._listener.now()
        if not self._listener.on_connected(self):
            self.close("too many connections")
            return
        self._listener.admit(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed = True
        self._stop_waiting_for_room()
        if self._unmuting is not None:
            self._unmuting.cancel()
        self._note_stuck(-self._stuck_bytes)
        self._note_receiving(0)
        self._listener.unsent_bytes -= self._unsent_bytes
        self._unsent_bytes = 0
        self._listener.on_disconnected(self, sum(reply.frame_bytes for reply in self._replies))
        replies, self._replies = self._replies, deque()
        self._received.clear()
        self._outgoing.clear()
        self._leaving = None
        for reply in replies:
            on_lost, reply.on_lost = reply.on_lost, None
            if on_lost is not None and reply.parts is None:
                on_lost()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.get_buffer()

    def buffer_updated(self, count: int) -> None:
        self.active_at = self._listener.now()
        try:
            self._received += self._frames.received(count)
        except BadSize as error:
            self._received += error.frames
            self._work()
            self._on_bad_peer(error)
            return
        if self._frames.reserved_bytes != self._receiving_bytes:
            self._note_receiving(self._frames.reserved_bytes)
        self._work()
        if self._listener.is_over_budget and self._frames.is_mid_frame and not self.is_closed:
            # To wait would be to hold the memory that others wait for. The client tries again.
            self.close("too much memory in requests")

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._is_writing_paused = True
        assert self._transport is not None
        self._note_stuck(self._transport.get_write_buffer_size())
        self._update_reading()

    def resume_writing(self) -> None:
        self._is_writing_paused = False
        self._note_stuck(-self._stuck_bytes)
        self._pump()
        self._update_reading()

    # Requests and replies

    def _work(self) -> None:
        """Begin with the requests that have come, as far as there is room for their replies."""
        self._is_work_due = False
        self._is_flush_due = True  # Below, once for all requests that came together.
        received = self._received
        if received:
            self._has_asked = True
        turn_end = self._unsent_bytes + TURN_BYTES
        try:
            for _ in range(TURN_REQUESTS_MAX):
                if not received or self.is_closed or self._unsent_bytes >= turn_end or not self._has_room():
                    break
                self._listener.dispatch(self, received.popleft())
        except BadPeer as error:
            self._flush()
            self._on_bad_peer(error)
            return
        if self._is_reading_paused or (self._replies and self._replies[0].parts is not None):
            self._flush()
        else:
            self._is_flush_due = False  # What has come waits for something.
        if received or not self._has_room():
            self._update_reading()

    def _on_bad_peer(self, error: BadPeer) -> None:
        if not self.is_closed:
            self._listener.note_bad_peer(self.peer, str(error))
        self.close(str(error), after_writing=True)

    def _has_room(self) -> bool:
        return (
            len(self._replies) < REQUESTS_OPEN_MAX
            and self._unsent_bytes < WRITE_BUFFER_BYTES
            and not self._is_writing_paused
            and not self._outgoing
            and not self.is_held
            and self._unmuting is None
            and not self._listener.is_over_budget
        )

    def stalled_s(self, now: float) -> float:
        """How long the frame that is being received has made no progress worth the memory it holds."""
        if not self._frames.is_mid_frame or self._is_reading_paused:
            self._progress = (-1, 0)
            return 0.0
        number, filled = self._frames.progress
        if number != self._progress[0] or filled >= self._progress[1] + FRAME_PROGRESS_BYTES:
            self._progress, self._progress_at = (number, filled), now
        return now - min(self._progress_at, self.active_at)

    @property
    def room_bytes(self) -> int:
        """What a reply may hold that could also be shorter: less and less while others do not read theirs."""
        return self._listener.replies_room_bytes

    def _note_receiving(self, reserved: int) -> None:
        """Count the buffer of a frame that is on its way like a request that is being worked on."""
        change, self._receiving_bytes = reserved - self._receiving_bytes, reserved
        if change < 0:
            self._listener.release(-change)
        else:
            self._listener.budget_used += change

    def _note_stuck(self, change: int) -> None:
        self._stuck_bytes += change
        self._listener.unsent_bytes += change

    @property
    def is_idle(self) -> bool:
        return not self._replies

    @property
    def is_waiting_for_first_request(self) -> bool:
        """Nothing has come, or next to nothing: a large first request may take its time (see `stalled_s`)."""
        return not self._has_asked and self._unmuting is None and self._frames.progress[1] < FRAME_PROGRESS_BYTES

    def open_reply(self, correlation_id: int, is_flexible: bool, frame_bytes: int) -> Reply:
        reply = Reply(self, correlation_id, is_flexible, frame_bytes)
        self._replies.append(reply)
        self._listener.budget_used += frame_bytes
        return reply

    def on_reply_ready(self, reply: Reply) -> None:
        if self.is_closed:
            return
        self._unsent_bytes += reply.size
        self._listener.unsent_bytes += reply.size
        if self._replies[0] is not reply or self._is_flush_due:
            return
        if len(self._replies) == 1:
            self._flush()  # Nothing could leave together with it.
            return
        # Replies that get ready together leave together: a send costs more than making the reply.
        self._is_flush_due = True
        self._listener.outbox.call_at_end(self._flush)

    def _flush(self) -> None:
        """Send every reply whose turn it is."""
        self._is_flush_due = False
        parts: list[Part] = []
        size = frame_bytes = 0
        is_stored = False
        replies = self._replies
        while replies and (ready := replies[0].parts) is not None:
            done = replies.popleft()
            size += done.size
            frame_bytes += done.frame_bytes
            is_stored = is_stored or done.is_stored
            if done.on_sent is not None:
                self._leaving = done
            parts += ready
        if frame_bytes:
            self._listener.release(frame_bytes)
        if size <= JOINED_BYTES_MAX and not is_stored and not self._outgoing and not self._is_writing_paused:
            if parts and not self.is_closed:
                self._write(cast(list[Buffer], parts), size)
        else:
            self._outgoing += parts
            self._pump()
        if self._is_reading_paused:
            self._update_reading()

    def _pump(self) -> None:
        """Give the transport what the socket takes; the rest when it has room again."""
        parts = self._outgoing
        try:
            while parts and not self._is_writing_paused and not self.is_closed and self._loading is None:
                part = parts[0]
                if isinstance(part, LogSlice):
                    self._send_some(part)
                    if part.is_done:
                        parts.popleft()
                else:
                    self._write_plain()
            if not parts and self._leaving is not None and not self.is_closed:
                leaving, self._leaving = self._leaving, None
                asyncio.get_running_loop().call_soon(leaving.tell_sent)
        except NotCached as miss:
            assert isinstance(part, LogSlice)
            self._loading = asyncio.get_running_loop().create_task(self._load(part, miss))
        except (SliceGone, OSError) as error:
            # The size of the reply is sent already. The client asks again, and is then told what there is.
            # Not now: the transport may be in the midst of telling us that it has room.
            asyncio.get_running_loop().call_soon(self.close, f"a reply could not be sent to its end: {error}")

    def _send_some(self, part: LogSlice) -> None:
        """What the socket takes from the file; where there is none, a piece for the transport."""
        assert self._transport is not None
        if self._transport.is_closing():
            raise SliceGone("the connection is lost")  # Its descriptor may be another connection's by now.
        self._listener.outbox.flush_before(self._descriptor)
        has_socket = self._descriptor != NO_DESCRIPTOR and page_cache.can_tell()
        if has_socket and not self._transport.get_write_buffer_size():
            part.send(self._descriptor)
            if not part.is_done:
                self._wait_for_room()
        else:
            self._transport.write(part.next_piece())

    def _wait_for_room(self) -> None:
        """Go on once the socket has room. Its own descriptor is the transport's to watch, so it gets a second one."""
        self._room_descriptor = os.dup(self._descriptor)
        self._is_writing_paused = True
        asyncio.get_running_loop().add_writer(self._room_descriptor, self._on_room)

    def _on_room(self) -> None:
        self._stop_waiting_for_room()
        self.resume_writing()

    def _stop_waiting_for_room(self) -> None:
        if self._room_descriptor != NO_DESCRIPTOR:
            asyncio.get_running_loop().remove_writer(self._room_descriptor)
            os.close(self._room_descriptor)
            self._room_descriptor = NO_DESCRIPTOR

    def _write_plain(self) -> None:
        """All that need not be read first, up to the next that does."""
        plain, size = [], 0
        while self._outgoing and isinstance(part := self._outgoing[0], bytes | bytearray | memoryview):
            plain.append(part)
            size += len(part)
            self._outgoing.popleft()
        self._write(plain, size)

    def _write(self, buffers: list[Buffer], size: int) -> None:
        assert self._transport is not None
        self._unsent_bytes -= size
        self._listener.unsent_bytes -= size
        outbox = self._listener.outbox
        if size > JOINED_BYTES_MAX:
            outbox.flush_before(self._descriptor)
            self._transport.writelines(buffers)
        elif self._descriptor == NO_DESCRIPTOR or self._transport.get_write_buffer_size():
            self._transport.write(b"".join(buffers))
        else:
            outbox.send(self._transport, self._descriptor, b"".join(buffers))

    async def _load(self, part: LogSlice, miss: NotCached) -> None:
        await part.load(miss)
        self._loading = None
        self._pump()
        self._update_reading()

    def _update_reading(self) -> None:
        """Read on, or no more; what has been read comes first."""
        if self.is_closed or self._transport is None:
            return
        is_full = (
            self._is_writing_paused
            or bool(self._outgoing)
            or self.is_held
            or self._unmuting is not None
            or len(self._replies) >= REQUESTS_OPEN_MAX
            or self._unsent_bytes >= WRITE_BUFFER_BYTES
        )
        if not is_full and self._listener.is_over_budget:
            is_full = True
            self._listener.wait_for_budget(self)
        if self._received and not is_full and not self._is_work_due:
            # In the next turn of the loop: other connections have requests, too.
            self._is_work_due = True
            asyncio.get_running_loop().call_soon(self._work)
        if len(self._replies) >= REQUESTS_OPEN_MAX:
            self._is_busy = True
        elif len(self._replies) <= REQUESTS_OPEN_RESUME:
            self._is_busy = False
        must_pause = is_full or self._is_busy or bool(self._received)
        if must_pause and not self._is_reading_paused:
            self._is_reading_paused = True
            self._transport.pause_reading()
        elif not must_pause and self._is_reading_paused:
            self._is_reading_paused = False
            self._transport.resume_reading()

    def release(self) -> None:
        self.is_held = False
        self._update_reading()

    def mute(self, delay_s: float, *, then_close: str | None = None) -> None:
        """Take no further request for so long, or ever if there is a reason to close then; replies still leave."""
        until = math.inf if then_close is not None else self._listener.now() + delay_s
        if self.is_closed or until <= self._muted_until:
            return
        if self._unmuting is not None:
            self._unmuting.cancel()
        self._muted_until = until
        after = self._unmute if then_close is None else partial(self.close, then_close)
        self._unmuting = asyncio.get_running_loop().call_later(delay_s, after)
        self._update_reading()

    def _unmute(self) -> None:
        self._unmuting = None
        self.served_since = self._listener.now()
        self._update_reading()

    def on_budget_freed(self) -> None:
        self._update_reading()

    def close(self, reason: str, *, after_writing: bool = False) -> None:
        """Drop the connection and the requests in it; `after_writing` lets replies leave that are on their way."""
        if self.is_closed and self._transport is not None and not after_writing:
            self._transport.abort()  # It was closing, and its peer did not read what was on the way.
        elif not self.is_closed and self._transport is not None:
            log.debug("connection closed", peer=self.peer, reason=reason)
            self.is_closed = True
            self._listener.outbox.flush_before(self._descriptor)
            if after_writing and not self._is_writing_paused:
                self._transport.close()
            else:
                self._transport.abort()

    def close_gently(self) -> None:
        """Close once the replies that are ready have been sent."""
        if self._transport is not None:
            self._listener.outbox.flush_before(self._descriptor)
            self._transport.close()
