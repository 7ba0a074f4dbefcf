"""A session with ZooKeeper over one connection at a time: kept alive, moved to another server when one goes.

Everything runs on the event loop, and replies and events reach their callbacks in the order in which the server sent
them, without a turn of the loop in between. ZooKeeper shows a client the event of a change before any reply that
reflects the change, and `tree_follower.py` is built on that.

    CONNECTING  requests are refused. Leaves by: a handshake, to CONNECTED; the server's word that the session is over,
                to CONNECTING with a new session.
    CONNECTED   requests are sent. Leaves by: the connection breaks or is silent for too long, to CONNECTING, and all
                requests that wait for a reply are told that none will come.
    CLOSED      final.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple, Protocol

from penstock.base.clock import Clock
from penstock.base.logging import get_logger
from penstock.cluster.lease import HEARTBEAT_SHARE, LeaseTerm
from penstock.cluster.store.zookeeper import jute
from penstock.cluster.store.zookeeper.jute import Event, Reply, Type

log = get_logger(__name__)

RETRY_S = 0.1  # Between rounds over all servers: an election in the ensemble takes a few of them.
RETRY_S_MAX = 1.0
SILENCE_SHARE = 1 / 2  # Of the session's time: half is left to find another server.
CLOSE_S_MAX = 2.0  # A server that is gone ends the session by itself, later.
PACKET_BYTES_MAX = 256 << 20  # A reply to what we ask for is a few megabytes; more is not ZooKeeper.

OnReply = Callable[[Reply | None], None]  # None: the connection broke first, and nobody knows what was done.


class NotConnected(Exception):
    """No server can be reached now; nothing was sent."""


class SessionListener(Protocol):
    def on_connected(self) -> None:
        """A server serves the session, which may be a new one; watches must be set anew."""

    def on_event(self, event: Event) -> None: ...

    def on_suspended(self) -> None:
        """The connection is gone; the session may or may not be."""

    def on_lost(self) -> None:
        """The session is over, and with it its ephemeral nodes."""


class _Waiting(NamedTuple):
    xid: int
    on_reply: OnReply


class ZooKeeperSession:
    def __init__(
        self,
        *,
        servers: Sequence[tuple[str, int]],
        timeout_ms: int,
        clock: Clock,
        random: Random,
        listener: SessionListener,
    ) -> None:
        self._servers = list(servers)
        self._asked_timeout_ms = timeout_ms
        self._clock = clock
        self._random = random
        self._listener = listener
        self._password = bytes(16)
        self._xid = 0
        self._waiting: deque[_Waiting] = deque()
        self._writer: asyncio.StreamWriter | None = None  # None: not CONNECTED.
        self._received_at = 0.0
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False
        self.id = 0  # 0: there is none yet.
        self.timeout_s = timeout_ms / 1000  # What the server has granted.
        self.term = LeaseTerm(self.timeout_s)  # Of the current session.
        self.last_zxid = 0  # Everything up to here has been seen, as events or in replies. Never goes back.
        self.last_error = "no server has been tried"  # Why we are not connected, for people.

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="zookeeper session")

    async def close(self) -> None:
        """End the session, at once if a server can be reached; its ephemeral nodes go with it."""
        self._is_closing = True
        if self._writer is not None:
            closed = asyncio.Event()
            self.send(Type.CLOSE, b"", lambda _: closed.set())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(closed.wait(), CLOSE_S_MAX)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self.id:
            self._lose()

    @property
    def is_connected(self) -> bool:
        return self._writer is not None

    def send(self, kind: Type, body: bytes, on_reply: OnReply) -> None:
        """Send a request; NotConnected when there is no connection to send it on."""
        if self._writer is None:
            raise NotConnected(self.last_error)
        self._xid = self._xid + 1 if self._xid < 0x7FFFFFFF else 1
        packet = jute.request(self._xid, kind, body)
        self._waiting.append(_Waiting(self._xid, on_reply))
        # One that broke a moment ago takes no more (uvloop raises), and who waits is told when its reader notices.
        if not self._writer.transport.is_closing():
            self._writer.write(len(packet).to_bytes(4, "big") + packet)

    def drop_connection(self) -> None:
        """Break the connection, and find a server anew."""
        if self._writer is not None:
            self._writer.transport.abort()

    # Connections ------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        pause_s = RETRY_S
        while not self._is_closing:
            self._random.shuffle(self._servers)
            for host, port in self._servers:
                try:
                    if await self._connect(host, port):
                        pause_s = RETRY_S
                except Exception:
                    # A mistake of ours in a callback. The session goes on with everything read anew.
                    log.exception("zookeeper session stumbled", server=f"{host}:{port}")
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, RETRY_S_MAX)

    async def _connect(self, host: str, port: int) -> bool:
        """Use one server for as long as it serves; gives whether it did at all."""
        writer: asyncio.StreamWriter | None = None
        try:
            # As much time for each as lets us ask all of them before the session ends.
            async with asyncio.timeout(max(1.0, self.timeout_s / 2 / len(self._servers))):
                reader, writer = await asyncio.open_connection(host, port)
                if not await self._shake_hands(reader, writer):
                    return True
        except (OSError, TimeoutError, EOFError, jute.Malformed) as error:
            self.last_error = f"{host}:{port}: {str(error) or type(error).__name__}"
            if writer is not None:
                writer.transport.abort()
            return False
        try:
            await self._serve(reader, writer, f"{host}:{port}")
        finally:
            writer.transport.abort()
        return True

    async def _shake_hands(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Take up the session, or have one made; False when it is over and there is none now."""
        packet = jute.connect(self.last_zxid, self._asked_timeout_ms, self.id, self._password)
        writer.write(len(packet).to_bytes(4, "big") + packet)
        granted = jute.read_connected(await _packet(reader))
        if granted.timeout_ms <= 0:
            writer.transport.abort()
            self._lose()
            return False
        if granted.session_id != self.id:
            self.term = LeaseTerm(granted.timeout_ms / 1000)
        self.id, self._password, self.timeout_s = granted.session_id, granted.password, granted.timeout_ms / 1000
        return True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: str) -> None:
        self._writer, self._received_at = writer, self._clock.monotonic()
        log.info("zookeeper connected", server=server, session=f"{self.id:x}", timeout_s=self.timeout_s)
        heartbeats = asyncio.get_running_loop().create_task(self._heartbeat(), name="zookeeper heartbeats")
        try:
            self._listener.on_connected()
            while True:
                self._on_packet(await _packet(reader))
        except (OSError, EOFError, jute.Malformed) as error:
            self.last_error = f"{server}: {str(error) or type(error).__name__}"
        finally:
            heartbeats.cancel()
            self._suspend(server)

    async def _heartbeat(self) -> None:
        """Prove again and again that the session lives, and give up a server that says nothing."""
        while True:
            sent_at, term = self._clock.monotonic(), self.term
            if sent_at - self._received_at > self.timeout_s * SILENCE_SHARE:
                self.drop_connection()
                return
            self.send(Type.SYNC, jute.path_body("/"), _renewal(term, sent_at))
            await asyncio.sleep(self.timeout_s * HEARTBEAT_SHARE)

    def _on_packet(self, packet: memoryview) -> None:
        self._received_at = self._clock.monotonic()
        reply = jute.read_reply(packet)
        if reply.xid == jute.EVENT_XID:
            self._listener.on_event(jute.read_event(reply.body))
            return
        if not self._waiting or self._waiting[0].xid != reply.xid:
            raise ConnectionError(f"a reply to request {reply.xid}, which was not the next")
        # Before the callback, which may ask how far we are.
        self.last_zxid = max(self.last_zxid, reply.zxid)
        waiting = self._waiting.popleft()
        if reply.error in (jute.Code.SESSION_EXPIRED, jute.Code.SESSION_MOVED):
            waiting.on_reply(None)
            raise ConnectionError("the server says that the session is over or elsewhere")
        waiting.on_reply(reply)

    def _suspend(self, server: str) -> None:
        self._writer = None
        waiting, self._waiting = self._waiting, deque()
        if not self._is_closing:
            log.warning("zookeeper connection lost", server=server, session=f"{self.id:x}", unanswered=len(waiting))
        self._listener.on_suspended()
        for request in waiting:
            request.on_reply(None)

    def _lose(self) -> None:
        if not self._is_closing:
            log.warning("zookeeper session is over", session=f"{self.id:x}")
        self.term.on_lost()
        self.id, self._password = 0, bytes(16)
        self._listener.on_lost()


def _renewal(term: LeaseTerm, sent_at: float) -> OnReply:
    def on_reply(reply: Reply | None) -> None:
        if reply is not None and reply.error == jute.Code.OK:
            term.on_heartbeat_answered(sent_at)

    return on_reply


async def _packet(reader: asyncio.StreamReader) -> memoryview:
    length = int.from_bytes(await reader.readexactly(4), "big", signed=True)
    if not 0 <= length <= PACKET_BYTES_MAX:
        raise ConnectionError(f"a packet of {length} bytes: this is not ZooKeeper")
    return memoryview(await reader.readexactly(length))
