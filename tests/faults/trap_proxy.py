"""A proxy that watches requests go by, and strikes at the one that a test has set a trap for."""

import asyncio
import contextlib
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Self

from ports import HOST


class Moment(Enum):
    BEFORE = "before the broker gets it"
    AFTER = "once the broker has it"
    ANSWERED = "before the client gets the answer"
    HELD = "and is held back"  # Strikes when it comes; the broker gets it when the test says so, client or no client.


@dataclass
class Trap:
    """For the `number`th request of this kind from now on."""

    api_key: int
    moment: Moment
    strike: Callable[["TrapProxy"], None] = lambda proxy: None
    number: int = 1
    delay_s: float = 0.0  # Between the moment and the strike.
    sprung: threading.Event = field(default_factory=threading.Event)
    release: asyncio.Event = field(default_factory=asyncio.Event)
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    late_answer: bytes = b""  # To what was held back.


class TrapThread:
    """One loop, on a thread of its own, for the proxies of all brokers. Use as a context manager."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="trap proxies", daemon=True)
        self._trap: Trap | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []

    def open(self, port: int, target_port: int) -> "TrapProxy":
        proxy = TrapProxy(self, target_port)

        async def listen() -> None:
            self._servers.append(await asyncio.start_server(proxy.serve, HOST, port))

        asyncio.run_coroutine_threadsafe(listen(), self._loop).result(30)
        return proxy

    def set(self, trap: Trap) -> Trap:
        self._loop.call_soon_threadsafe(setattr, self, "_trap", trap)
        return trap

    def release(self, trap: Trap) -> None:
        self._loop.call_soon_threadsafe(trap.release.set)

    def take(self, api_key: int) -> Trap | None:
        """The trap, if this request springs it. Once."""
        trap = self._trap
        if trap is None or trap.api_key != api_key:
            return None
        trap.number -= 1
        if trap.number:
            return None
        self._trap = None
        return trap

    def own(self, task: "asyncio.Task[None]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        async def close() -> None:
            for server in self._servers:
                server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(close(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


class TrapProxy:
    def __init__(self, thread: TrapThread, target_port: int) -> None:
        self._thread = thread
        self.target_port = target_port

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._thread.own(task)
        try:
            answers, broker = await asyncio.open_connection(HOST, self.target_port)
        except OSError:
            writer.transport.abort()
            return
        waiting: dict[int, Trap] = {}  # By correlation id.
        to_broker = asyncio.ensure_future(self._pass_requests(reader, broker, waiting))
        to_client = asyncio.ensure_future(self._pass_answers(answers, writer, waiting))
        try:
            await asyncio.wait([to_broker, to_client], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pass  # The end of the test; asyncio's streams would log it as a failure.
        finally:
            for way in (to_broker, to_client):
                way.cancel()
            await asyncio.gather(to_broker, to_client, return_exceptions=True)
            for end in (writer, broker):
                end.transport.abort()

    async def _pass_requests(
        self, reader: asyncio.StreamReader, broker: asyncio.StreamWriter, waiting: dict[int, Trap]
    ) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                frame = await _frame(reader)
                api_key, _, correlation_id = struct.unpack_from(">hhi", frame, 4)
                trap = self._thread.take(api_key)
                if trap is not None and trap.moment in (Moment.BEFORE, Moment.HELD):
                    await self._strike(trap)
                if trap is not None and trap.moment is Moment.HELD:
                    await trap.release.wait()  # Whether or not there is still somebody who has sent it.
                if trap is not None and trap.moment in (Moment.ANSWERED, Moment.HELD):
                    waiting[correlation_id] = trap
                broker.write(frame)
                await broker.drain()
                if trap is not None and trap.moment is Moment.AFTER:
                    await self._strike(trap)
                if trap is not None and trap.moment is Moment.HELD:
                    await trap.answered.wait()  # Who has sent it may be gone, and that would end the connection.

    async def _pass_answers(
        self, reader: asyncio.StreamReader, client: asyncio.StreamWriter, waiting: dict[int, Trap]
    ) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                frame = await _frame(reader)
                trap = waiting.pop(struct.unpack_from(">i", frame, 4)[0], None)
                if trap is not None and trap.moment is Moment.HELD:
                    trap.late_answer = frame
                    trap.answered.set()
                elif trap is not None:
                    await self._strike(trap)
                client.write(frame)
                await client.drain()

    async def _strike(self, trap: Trap) -> None:
        if trap.delay_s:
            await asyncio.sleep(trap.delay_s)
        trap.strike(self)
        trap.sprung.set()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(4)
    return head + await reader.readexactly(int.from_bytes(head, "big"))
