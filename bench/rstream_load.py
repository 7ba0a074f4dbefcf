"""rstream as the load: batches with their confirms for RabbitMQ's streams, and chunks by credit."""

import asyncio
import time
from contextlib import suppress

import uvloop
from rstream import ConfirmationStatus, Consumer, Producer

from bench.client_load import ClientLoad, Moved
from bench.latencies import Latencies
from bench.pace import Pace
from ports import HOST

IN_FLIGHT = 10_000
BATCH_BYTES = 100_000  # Of one frame; its maximum is 1 MiB.
CREDIT = 50  # Chunks on their way to the consumer.
ANSWER_S_MAX = 120
GUEST = {"username": "guest", "password": "guest"}  # Who may come in over loopback only.


class RstreamLoad(ClientLoad):
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
        async with self._producer() as producer:
            await producer.create_stream(stream)

    async def _delete(self, stream: str) -> None:
        async with self._producer() as producer:
            await producer.delete_stream(stream)

    async def _produce(self, stream: str, value: bytes, seconds: float) -> Moved:
        batch = [value] * (BATCH_BYTES // len(value))
        answered, refused, has_news = 0, 0, asyncio.Event()

        def on_answer(status: ConfirmationStatus) -> None:
            nonlocal answered, refused
            answered += 1
            refused += not status.is_confirmed
            has_news.set()

        async def wait_until_open_are(count: int) -> None:
            while sent - answered > count:
                has_news.clear()
                await asyncio.wait_for(has_news.wait(), ANSWER_S_MAX)
            if refused:
                raise RuntimeError(f"{refused} records were not stored")

        async with self._producer() as producer:
            begun, sent = time.perf_counter(), 0
            while time.perf_counter() - begun < seconds:
                await producer.send_batch(stream, batch, on_publish_confirm=on_answer)
                sent += len(batch)
                await wait_until_open_are(IN_FLIGHT)
            await wait_until_open_are(0)
            return Moved(sent, time.perf_counter() - begun)

    async def _consume(self, stream: str, count: int, seconds: float) -> Moved:
        received, is_complete = 0, asyncio.Event()

        def on_record(_record: bytes, _context: object) -> None:
            nonlocal received
            received += 1
            if received == count:
                is_complete.set()

        async with self._consumer() as consumer:
            begun = time.perf_counter()
            await consumer.subscribe(stream, on_record, initial_credit=CREDIT)
            with suppress(TimeoutError):
                await asyncio.wait_for(is_complete.wait(), seconds)
            return Moved(received, time.perf_counter() - begun)

    async def _at_rate(self, stream: str, rate: int, seconds: float) -> Latencies:
        loop, pace = asyncio.get_running_loop(), Pace(rate, seconds)
        async with self._consumer() as consumer, self._producer() as producer:
            await consumer.subscribe(stream, lambda record, _context: pace.on_record(record), initial_credit=CREDIT)

            def send(record: bytes) -> None:
                asyncio.run_coroutine_threadsafe(producer.send_batch(stream, [record]), loop)

            await asyncio.to_thread(pace.send_all, send)
            await asyncio.to_thread(pace.wait_until_complete)
        return pace.latencies()

    def _producer(self) -> Producer:
        return Producer(HOST, self._port, **GUEST)

    def _consumer(self) -> Consumer:
        return Consumer(HOST, self._port, **GUEST)
