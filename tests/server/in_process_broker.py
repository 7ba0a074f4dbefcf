"""A whole broker in this process on the real event loop, with a disk whose syncs can be held up or made to fail."""

import asyncio
import itertools
import logging
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random
from typing import Any, TypeVar
from uuid import UUID

from penstock.base.clock import SystemClock
from penstock.base.config import BrokerConfig
from penstock.cluster.store.memory import MemoryStore
from penstock.partition.partition import Partition
from penstock.server.api import ApiKey
from penstock.server.broker import Broker
from penstock.server.network import SocketNetwork
from penstock.storage.disk_threads import DiskThreads
from penstock.storage.fs import PosixFileSystem
from penstock.wire.batch import Record, build_batch
from penstock.wire.codec import (
    Struct,
    is_flexible_request,
    is_flexible_response,
    request_writer,
    response_reader,
)

T = TypeVar("T")
TIMEOUT_S = 60.0


class HeldDisk(PosixFileSystem):
    """Work that waits for the disk waits for us."""

    def __init__(self, threads: DiskThreads) -> None:
        super().__init__(threads)
        self._free = asyncio.Event()
        self._free.set()
        self.error: OSError | None = None

    def hold(self) -> None:
        self._free.clear()

    def release(self) -> None:
        self._free.set()

    async def run(self, function: Callable[[], T]) -> T:
        await self._free.wait()
        if self.error is not None:
            raise self.error
        return await super().run(function)


class RunningBroker:
    def __init__(self, broker: Broker, disk: HeldDisk) -> None:
        self.broker = broker
        self.disk = disk

    @property
    def listener(self) -> Any:
        return self.broker.listener

    def partition(self, topic: str, number: int = 0) -> Partition:
        return self.broker.partitions.get(topic, number)

    @property
    def timers_count(self) -> int:
        return sum(len(slot) for slot in self.broker._timers._slots.values())

    async def connect(self) -> "Client":
        return Client(*await asyncio.open_connection("127.0.0.1", self.listener.port))

    async def create_topic(self, name: str, *, partitions: int = 1, **config: str) -> UUID:
        client = await self.connect()
        entry = Struct(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            assignments=[],
            configs=[Struct(name=key.replace("_", "."), value=value) for key, value in config.items()],
        )
        answer = await client.ask(ApiKey.CREATE_TOPICS, 7, topics=[entry], timeout_ms=60_000, validate_only=False)
        assert answer.topics[0].error_code == 0
        client.close()
        topic_id: UUID = answer.topics[0].topic_id
        return topic_id

    async def delete_topic(self, name: str) -> None:
        client = await self.connect()
        entry = Struct(name=name, topic_id=UUID(int=0))
        answer = await client.ask(ApiKey.DELETE_TOPICS, 6, topics=[entry], timeout_ms=60_000)
        assert answer.responses[0].error_code == 0
        client.close()


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._ids = itertools.count(1)

    def send(self, key: int, version: int, **fields: Any) -> int:
        """The correlation id of a request that is on its way."""
        number = next(self._ids)
        self._writer.write(frame(key, version, number, **fields))
        return number

    def send_bytes(self, data: bytes) -> None:
        self._writer.write(data)

    async def receive(self) -> bytes:
        async with asyncio.timeout(TIMEOUT_S):
            (size,) = struct.unpack(">i", await self._reader.readexactly(4))
            return await self._reader.readexactly(size)

    async def receive_id(self) -> int:
        number: int = struct.unpack_from(">i", await self.receive())[0]
        return number

    async def receive_reply(self, key: int, version: int) -> Struct:
        reply = await self.receive()
        answer, end = response_reader(key, version)(reply, 5 if is_flexible_response(key, version) else 4)
        assert end == len(reply)
        assert isinstance(answer, Struct)
        return answer

    async def ask(self, key: int, version: int, **fields: Any) -> Struct:
        self.send(key, version, **fields)
        return await self.receive_reply(key, version)

    async def produce(self, topic: str, *values: bytes, **fields: Any) -> Struct:
        answer = await self.ask(ApiKey.PRODUCE, 9, **produce_fields(topic, *values, **fields))
        result: Struct = answer.responses[0].partition_responses[0]
        return result

    async def fetch(self, topic: str, offset: int, **fields: Any) -> Struct:
        answer = await self.ask(ApiKey.FETCH, 12, **fetch_fields((topic, 0, offset), **fields))
        result: Struct = answer.responses[0].partitions[0]
        return result

    async def is_closed_by_broker(self) -> bool:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await self._reader.read(1) == b""
        except ConnectionResetError:
            return True

    async def is_silent(self, seconds: float = 0.05) -> bool:
        """Whether the broker sends nothing for a while."""
        try:
            async with asyncio.timeout(seconds):
                await self._reader.readexactly(1)
        except TimeoutError:
            return True
        return False

    def stop_reading(self) -> None:
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    def close(self) -> None:
        self._writer.close()

    def abort(self) -> None:
        self._writer.transport.abort()


def frame(key: int, version: int, correlation_id: int = 1, **fields: Any) -> bytes:
    out = bytearray(struct.pack(">hhih", key, version, correlation_id, -1))
    if is_flexible_request(key, version):
        out.append(0)
    request_writer(key, version)(out, Struct(**fields))
    return struct.pack(">i", len(out)) + out


def batch_of(*values: bytes) -> bytearray:
    now_ms = int(time.time() * 1000)
    records = [Record(number, now_ms, None, value) for number, value in enumerate(values)]
    return build_batch(records, base_offset=0, leader_epoch=-1)


def produce_fields(
    topic: str, *values: bytes, acks: int = -1, timeout_ms: int = 60_000, partitions: tuple[int, ...] = (0,)
) -> dict[str, Any]:
    """One batch with all the values to each partition."""
    records = batch_of(*(values or (b"value",)))
    parts = [Struct(index=index, records=records) for index in partitions]
    topics = [Struct(name=topic, partition_data=parts)]
    return {"transactional_id": None, "acks": acks, "timeout_ms": timeout_ms, "topic_data": topics}


def fetch_fields(
    *wanted: tuple[Any, int, int],
    wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partition_max_bytes: int = 1 << 20,
    session: tuple[int, int] = (0, -1),
    by_id: bool = False,
    forgotten: tuple[tuple[Any, int], ...] = (),
) -> dict[str, Any]:
    name = "topic_id" if by_id else "topic"
    return {
        "max_wait_ms": wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "session_id": session[0],
        "session_epoch": session[1],
        "topics": [
            Struct(
                **{name: topic},
                partitions=[Struct(partition=number, fetch_offset=offset, partition_max_bytes=partition_max_bytes)],
            )
            for topic, number, offset in wanted
        ],
        "forgotten_topics_data": [Struct(**{name: topic}, partitions=[number]) for topic, number in forgotten],
    }


@asynccontextmanager
async def running_broker(
    directory: Path, store: MemoryStore | None = None, properties: Mapping[str, str] | None = None, **settings: Any
) -> AsyncIterator[RunningBroker]:
    """A broker that must leave nothing behind: no connection, no request in memory, no task that failed unseen.

    It belongs to the cluster that `store` describes, or to one of its own. `properties` are as in a file, `settings`
    the fields of BrokerConfig.
    """
    base = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(directory / "data")}
    config = BrokerConfig.load(base | dict(properties or {}))._replace(**settings)
    unseen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unseen.append(context))
    with DiskThreads(count_max=4) as threads:
        disk = HeldDisk(threads)
        broker = Broker(
            config=config,
            fs=disk,
            clock=SystemClock(),
            network=SocketNetwork(),
            store=MemoryStore() if store is None else store,
            random=Random(1),
        )
        await broker.start()
        try:
            yield RunningBroker(broker, disk)
        finally:
            disk.release()
            await broker.stop()
        await asyncio.sleep(0)
        listener: Any = broker.listener
        assert (listener.budget_used, len(listener._connections), len(listener._waiting)) == (0, 0, 0)
        assert (listener.unsent_bytes, dict(listener._per_ip)) == (0, {})
    assert unseen == [], repr(unseen)


async def until(condition: Callable[[], bool], what: str = "") -> None:
    """Return as soon as the condition holds."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"did not happen within {TIMEOUT_S} s: {what}"
        await asyncio.sleep(0.001)


def run(
    scenario: Callable[..., Awaitable[None]],
    *arguments: Any,
    new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
    **settings: Any,
) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_run(scenario, *arguments, **settings))


async def _run(scenario: Callable[..., Awaitable[None]], directory: Path, **settings: Any) -> None:
    async with running_broker(directory, **settings) as broker:
        await scenario(broker)


@contextmanager
def logged_errors() -> Iterator[list[logging.LogRecord]]:
    """What is logged as an error meanwhile."""
    found: list[logging.LogRecord] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record)

    collector = Collector(logging.ERROR)
    logger = logging.getLogger("penstock")
    logger.addHandler(collector)
    try:
        yield found
    finally:
        logger.removeHandler(collector)
