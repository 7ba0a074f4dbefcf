"""A proxy that loses answers: the request reaches the broker, its response is dropped, the connection is cut."""

import asyncio
import contextlib
import struct
import threading
from random import Random

from ports import HOST

PRODUCE = 0


class LossyProxy:
    """Loses the response of about one in ten Produce requests. Use as a context manager."""

    LOSS = 0.1

    def __init__(self, port: int, broker_port: int, seed: int) -> None:
        self.begin(seed)
        self._port, self._broker_port = port, broker_port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    def begin(self, seed: int) -> None:
        """Count anew, and lose as a new one with this seed would."""
        self.produce_count = self.lost_count = 0
        self._random = Random(seed)

    def __enter__(self) -> "LossyProxy":
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, HOST, self._port)

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, client_reader: asyncio.StreamReader, client_writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        broker_reader, broker_writer = await asyncio.open_connection(HOST, self._broker_port)
        to_lose: set[int] = set()
        ways = [
            asyncio.ensure_future(self._pass_requests(client_reader, broker_writer, to_lose)),
            asyncio.ensure_future(self._pass_responses(broker_reader, client_writer, to_lose)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for writer in (client_writer, broker_writer):
                writer.transport.abort()  # A reset: nothing that is still under way arrives.
            self._tasks.discard(task)

    async def _pass_requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to_lose: set[int]
    ) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                frame = await _frame(reader)
                key, _, correlation_id = struct.unpack_from(">hhi", frame, 4)
                if key == PRODUCE:
                    self.produce_count += 1
                    if self._random.random() < self.LOSS:
                        to_lose.add(correlation_id)
                writer.write(frame)
                await writer.drain()

    async def _pass_responses(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to_lose: set[int]
    ) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                frame = await _frame(reader)
                if struct.unpack_from(">i", frame, 4)[0] in to_lose:
                    self.lost_count += 1
                    return
                writer.write(frame)
                await writer.drain()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(4)
    return head + await reader.readexactly(int.from_bytes(head, "big"))
