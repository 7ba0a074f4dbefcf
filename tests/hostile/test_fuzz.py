"""Damaged frames from a seed, without sockets: nothing but BadPeer comes out, quickly and in little memory."""

import asyncio
import gc
import logging
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.base.clock import SystemClock
from penstock.base.config import BrokerConfig
from penstock.base.errors import BadPeer
from penstock.cluster import topic_plan
from penstock.cluster.store.memory import MemoryStore
from penstock.cluster.topic_plan import NewTopic
from penstock.server import dispatch as dispatch_module
from penstock.server.api import APIS, ApiKey
from penstock.server.authentication import Authentication
from penstock.server.broker import Broker
from penstock.server.connection import Connection
from penstock.server.dispatch import Dispatcher
from penstock.server.network import SocketNetwork
from penstock.storage.disk_threads import DiskThreads
from penstock.storage.fs import PosixFileSystem
from penstock.wire.codec import Struct, decode_request
from penstock.wire.produce import produce_start, read_produce_request
from produce_fields import produce_fields

from .mutations import Mutator, framed
from .test_frames import FakeTransport

PARSED_COUNT = 60_000
SERVED_COUNT = 6_000
SECONDS_MAX = 0.05  # Of processor time for one frame of a few hundred bytes; the usual is 0.00005.


@pytest.fixture
def only_parsing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Handlers that do nothing once they have their request."""

    def parse_produce(context: Any, header: Any, frame: memoryview, position: int, reply: Any) -> None:
        start = header.habits.produce_start
        known = None if start is None else start.read(frame, position)
        request = read_produce_request(frame, position, header.version)
        assert known is None or produce_fields(known) == produce_fields(request)
        header.habits.produce_start = produce_start(frame, position, header.version, request)

    def parse_fetch(context: Any, header: Any, frame: memoryview, position: int, reply: Any) -> None:
        decode_request(header.api_key, header.version, frame, position)

    raw = {ApiKey.PRODUCE: parse_produce, ApiKey.FETCH: parse_fetch}
    for key, api in list(APIS.items()):
        if key in raw:
            monkeypatch.setitem(APIS, key, api._replace(raw_handler=raw[ApiKey(key)]))
        else:
            monkeypatch.setitem(APIS, key, api._replace(handler=lambda *_: Struct(), raw_handler=None))
    monkeypatch.setattr(dispatch_module, "encode_response", lambda *_: bytearray())


class NoConnection:
    """Takes replies and keeps none."""

    peer, ip = "nobody", "127.0.0.1"
    known_header: Any = None
    authentication = Authentication()

    def open_reply(self, *_: Any) -> "NoConnection":
        return self

    def send(self, buffers: Any) -> None: ...

    def fail(self, reason: str) -> None:
        raise AssertionError(reason)


NO_BROKER: Any = SimpleNamespace(quotas=SimpleNamespace(active=None), forwarder=SimpleNamespace(is_needed=False))


def parse(dispatcher: Dispatcher, frame: bytearray) -> bool:
    """Whether the frame is a request."""
    try:
        dispatcher.dispatch(NoConnection(), memoryview(frame))  # type: ignore[arg-type]
    except BadPeer:
        return False
    return True


def timed_parse(dispatcher: Dispatcher, frame: bytearray) -> tuple[bool, float]:
    began = time.thread_time()
    return parse(dispatcher, frame), time.thread_time() - began


@pytest.mark.usefixtures("only_parsing")
def test_damaged_frames_are_requests_or_refused_and_take_no_time() -> None:
    dispatcher = Dispatcher(NO_BROKER)
    mutator = Mutator(seed=1)
    parsed_count = 0
    gc.disable()  # This process may have much work for it, and none of that is what a frame takes.
    try:
        for number in range(PARSED_COUNT):
            frame = mutator.frame()
            parsed, took_s = timed_parse(dispatcher, frame)
            parsed_count += parsed
            if took_s > SECONDS_MAX:  # Or the machine had stopped: then it is not so again.
                _, took_s = timed_parse(dispatcher, frame)
            assert took_s < SECONDS_MAX, f"frame {number}: {frame.hex()}"
    finally:
        gc.enable()
    assert PARSED_COUNT / 20 < parsed_count < PARSED_COUNT * 19 / 20, "the damage is too great or too small to tell"


@pytest.mark.usefixtures("only_parsing")
def test_damaged_frames_take_no_memory() -> None:
    dispatcher = Dispatcher(NO_BROKER)
    mutator = Mutator(seed=2)
    for frame in [mutator.frame() for _ in range(500)]:
        parse(dispatcher, frame)  # What is made once, as the readers of each version, is not counted.
    tracemalloc.start()
    try:
        for number in range(3000):
            frame = mutator.frame()
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            parse(dispatcher, frame)
            peak = tracemalloc.get_traced_memory()[1] - before
            assert peak < 100_000 + 500 * len(frame), f"frame {number} took {peak} bytes: {frame.hex()}"
    finally:
        tracemalloc.stop()


@contextmanager
def no_tracebacks() -> Iterator[None]:
    found: list[logging.LogRecord] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info:
                found.append(record)

    collector = Collector(logging.ERROR)
    logging.getLogger("penstock").addHandler(collector)
    try:
        yield
    finally:
        logging.getLogger("penstock").removeHandler(collector)
    assert [(record.getMessage(), record.exc_info) for record in found] == []


def test_damaged_frames_do_not_harm_a_whole_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A damaged CreateTopics may ask for thousands of partitions, as it may: but then this would test the disk.
    monkeypatch.setattr(topic_plan, "PARTITIONS_MAX", 20)
    with no_tracebacks():
        asyncio.run(_feed_a_broker(tmp_path))


async def _feed_a_broker(directory: Path) -> None:
    unseen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unseen.append(context))
    with DiskThreads(count_max=2) as threads:
        broker = Broker(
            config=BrokerConfig(host="127.0.0.1", port=0, data_dir=str(directory / "data")),
            fs=PosixFileSystem(threads),
            clock=SystemClock(),
            network=SocketNetwork(),
            store=MemoryStore(),
            random=Random(1),
        )
        await broker.start()
        listener: Any = broker.listener
        await dispatch_context(broker).controller.create_topics([NewTopic(name="samples")])
        mutator = Mutator(seed=3)
        connection = _connect(broker)
        for number in range(SERVED_COUNT):
            data = framed(mutator.frame())
            room = connection.get_buffer(-1)
            count = min(len(room), len(data))
            room[:count] = data[:count]
            del room
            connection.buffer_updated(count)
            if connection.is_closed or count < len(data) or number % 50 == 49:
                await asyncio.sleep(0)
                connection.connection_lost(None)
                connection = _connect(broker)
            if number % 20 == 19:
                await asyncio.sleep(0)
        connection.connection_lost(None)
        for _ in range(3000):  # What is under way comes to its end.
            if (listener.budget_used, listener.unsent_bytes) == (0, 0):
                break
            await asyncio.sleep(0.01)
        assert (listener.budget_used, listener.unsent_bytes) == (0, 0)
        assert not listener._connections
        await broker.stop()
    assert unseen == []


def dispatch_context(broker: Broker) -> Any:
    return broker._dispatcher._context


def _connect(broker: Broker) -> Connection:
    connection = Connection(broker.listener)
    connection.connection_made(FakeTransport())  # type: ignore[arg-type]
    return connection
