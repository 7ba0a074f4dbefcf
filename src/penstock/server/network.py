"""The network port: who listens, and the real sockets behind it. Simulation has its own."""

import asyncio
from collections.abc import Callable
from typing import Protocol

ProtocolFactory = Callable[[], asyncio.BaseProtocol]

BACKLOG = 1024  # Connections that may wait while the loop is busy; the kernel's own limit is often 4096.


class Listener(Protocol):
    port: int

    def close(self) -> None:
        """Accept no more connections; those that are open stay."""


class Network(Protocol):
    async def listen(self, protocol_factory: ProtocolFactory, host: str, port: int) -> Listener: ...


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
