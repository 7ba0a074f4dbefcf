"""A TCP proxy that can be cut, or fall silent in one or both directions: what a network does."""

import asyncio
import contextlib

from ports import HOST


class CuttableProxy:
    """Passes connections on to a port of this machine. Everything runs on the loop of the test."""

    def __init__(self, target_port: int, *, listen_host: str = HOST) -> None:
        self._target_port = target_port
        self._listen_host = listen_host
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_cut = False
        self._may_send = asyncio.Event()
        self._may_reply = asyncio.Event()
        self.connection_count = 0
        self.port = 0

    async def start(self) -> None:
        self.heal()
        self._server = await asyncio.start_server(self._pass_on, self._listen_host, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Reset every connection, and each new one, until `heal`."""
        self._is_cut = True
        for writer in list(self._writers):
            writer.transport.abort()

    def silence(self) -> None:
        """Pass nothing on, and leave the connections open."""
        self._may_send.clear()
        self._may_reply.clear()

    def silence_replies(self) -> None:
        self._may_reply.clear()

    def heal(self) -> None:
        self._is_cut = False
        self._may_send.set()
        self._may_reply.set()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        target: asyncio.StreamWriter | None = None
        try:
            if not self._is_cut:
                answers, target = await asyncio.open_connection(HOST, self._target_port)
                self._writers |= {writer, target}
                self.connection_count += 1
                ways = [_copy(reader, target, self._may_send), _copy(answers, writer, self._may_reply)]
                await asyncio.wait([asyncio.ensure_future(way) for way in ways], return_when=asyncio.FIRST_COMPLETED)
        except OSError:
            pass
        finally:
            for end in (writer, target):
                if end is not None:
                    self._writers.discard(end)
                    end.transport.abort()
            self._tasks.discard(task)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, may: asyncio.Event) -> None:
    with contextlib.suppress(OSError):
        while chunk := await reader.read(65536):
            await may.wait()
            writer.write(chunk)
            await writer.drain()
