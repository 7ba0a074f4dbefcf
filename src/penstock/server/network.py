"""The network port: who listens, who connects, and the real sockets behind it. Simulation has its own."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TypeVar

ProtocolFactory = Callable[[], asyncio.BaseProtocol]
P = TypeVar("P", bound=asyncio.Protocol | asyncio.BufferedProtocol)

SYSTEM_DECIDES = -1  # How large a socket's buffer is.
BACKLOG = 1024  # Connections that may wait while the loop is busy; the kernel's own limit is often 4096.


class Listener(Protocol):
    port: int

    def close(self) -> None:
        """Accept no more connections; those that are open stay."""


class Network(Protocol):
    async def listen(self, protocol_factory: ProtocolFactory, host: str, port: int) -> Listener: ...

    async def connect(self, protocol_factory: Callable[[], P], host: str, port: int) -> tuple[asyncio.Transport, P]:
        """The near end of a new connection; OSError when nobody is there."""


class SocketListener:
    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        self.port: int = server.sockets[0].getsockname()[1]

    def close(self) -> None:
        self._server.close()


class SocketNetwork:
    async def listen(self, protocol_factory: ProtocolFactory, host: str, port: int) -> SocketListener:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(protocol_factory, host, port, backlog=BACKLOG)
        return SocketListener(server)

    async def connect(self, protocol_factory: Callable[[], P], host: str, port: int) -> tuple[asyncio.Transport, P]:
        # Small requests leave at once: asyncio and uvloop both set TCP_NODELAY.
        return await asyncio.get_running_loop().create_connection(protocol_factory, host, port)


def tune(accepted: socket.socket, send_buffer_bytes: int) -> None:
    """Set up a client's socket for large replies, if the client is still there."""
    with suppress(OSError):  # Who is gone already is noticed by the transport.
        if send_buffer_bytes != SYSTEM_DECIDES:
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
        is_local = accepted.getsockname()[0] == accepted.getpeername()[0]
        if is_local and hasattr(socket, "TCP_CONGESTION"):
            # Within a machine nothing is congested. BBR, the default on many, spaces out what it sends all the same,
            # and takes twice as long for a reply of 1 MB. Every Linux has Reno; its owner may have forbidden it.
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
