"""nats-py as the load: JetStream's asynchronous publish, and its ordered push consumer."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

import nats
import uvloop
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import StorageType

from bench.client_load import ClientLoad, Moved
from bench.latencies import Latencies
from bench.pace import Pace
from ports import HOST

IN_FLIGHT = 4_000  # nats-py's default.
BATCH = 500  # Records between two looks at the clock.
ANSWER_S_MAX = 120


class NatsLoad(ClientLoad):
    def create(self, stream: str) -> None:
        uvloop.run(self._create(stream))

    def delete(self, stream: str) -> None:
        uvloop.run(self._delete(stream))

    def produce(self, stream: str, record_bytes: int, seconds: float) -> Moved:
        return uvloop.run(self._produce(stream, bytes(record_bytes), seconds))

    def consume(self, stream: str, count: int, seconds: float) -> Moved:
        return uvloop.run(self._consume(stream, count, seconds))

    def at_rate(self, stream: str, rate: int, seconds: float) -> Latencies:
        return uvloop.run(self._at_rate(stream, rate, seconds))

    async def _create(self, stream: str) -> None:
        async with await self._connect() as connection:
            await connection.jetstream().add_stream(name=stream, subjects=[stream], storage=StorageType.FILE)

    async def _delete(self, stream: str) -> None:
        async with await self._connect() as connection:
            await connection.jetstream().delete_stream(stream)

    async def _produce(self, stream: str, value: bytes, seconds: float) -> Moved:
        failed: list[BaseException] = []

        def on_answer(answer: asyncio.Future[object]) -> None:
            if error := answer.exception():
                failed.append(error)

        async with await self._connect() as connection:
            jetstream = connection.jetstream(publish_async_max_pending=IN_FLIGHT)
            begun, count = time.perf_counter(), 0
            while time.perf_counter() - begun < seconds:
                for _ in range(BATCH):
                    (await jetstream.publish_async(stream, value)).add_done_callback(on_answer)
                count += BATCH
            await asyncio.wait_for(jetstream.publish_async_completed(), ANSWER_S_MAX)
            elapsed = time.perf_counter() - begun
        if failed:
            raise RuntimeError(f"{len(failed)} records were not stored: {failed[:3]}")
        return Moved(count, elapsed)

    async def _consume(self, stream: str, count: int, seconds: float) -> Moved:
        received, is_complete = 0, asyncio.Event()

        def on_record(_: bytes) -> None:
            nonlocal received
            received += 1
            if received == count:
                is_complete.set()

        async with await self._connect() as connection:
            begun = time.perf_counter()
            await _subscribe(connection, stream, on_record)
            with suppress(TimeoutError):
                await asyncio.wait_for(is_complete.wait(), seconds)
            return Moved(received, time.perf_counter() - begun)

    async def _at_rate(self, stream: str, rate: int, seconds: float) -> Latencies:
        loop, pace = asyncio.get_running_loop(), Pace(rate, seconds)
        async with await self._connect() as consumer, await self._connect() as producer:
            await _subscribe(consumer, stream, pace.on_record)
            jetstream = producer.jetstream()

            def send(record: bytes) -> None:
                asyncio.run_coroutine_threadsafe(jetstream.publish_async(stream, record), loop)

            await asyncio.to_thread(pace.send_all, send)
            await asyncio.to_thread(pace.wait_until_complete)
        return pace.latencies()

    async def _connect(self) -> Client:
        return await nats.connect(f"nats://{HOST}:{self._port}", allow_reconnect=False)


async def _subscribe(connection: Client, stream: str, on_record: Callable[[bytes], None]) -> None:
    async def on_message(message: Msg) -> None:
        on_record(message.data)

    await connection.jetstream().subscribe(stream, cb=on_message, ordered_consumer=True)
