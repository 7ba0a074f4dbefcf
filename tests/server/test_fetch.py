"""Fetch: long polls end when they should, leave no waiter and no timer behind, and fail alone."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from in_process_broker import Client, RunningBroker, fetch_fields, logged_errors, run, until

from penstock.base.errors import ErrorCode
from penstock.server import handlers
from penstock.server.api import ApiKey
from penstock.storage import page_cache
from penstock.storage.log import Log
from penstock.storage.log_slice import PIECE_BYTES, LogSlice
from penstock.storage.segment import NotCached

handlers.register_all()

LONG_WAIT_MS = 30_000
DESCRIPTORS = Path("/proc/self/fd")


def waiters(broker: RunningBroker) -> int:
    return sum(len(partition.waiters) for partition in broker.broker.partitions)


def test_a_record_ends_the_wait_and_leaves_no_waiter(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t", partitions=3)
        client, producer = await broker.connect(), await broker.connect()
        client.send(ApiKey.FETCH, 12, **fetch_fields(*(("t", n, 0) for n in range(3)), wait_ms=LONG_WAIT_MS))
        await until(lambda: waiters(broker) == 3)
        await producer.produce("t", b"hello")
        answer = await client.receive_reply(ApiKey.FETCH, 12)
        found = [len(part.records) > 0 for topic in answer.responses for part in topic.partitions]
        assert found == [True, False, False]
        assert (waiters(broker), broker.timers_count) == (0, 0)

    run(scenario, tmp_path)


def test_the_deadline_ends_the_wait_and_leaves_no_waiter(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t", partitions=2)
        client = await broker.connect()
        began = asyncio.get_running_loop().time()
        await client.ask(ApiKey.FETCH, 12, **fetch_fields(("t", 0, 0), ("t", 1, 0), wait_ms=50))
        assert 0.05 <= asyncio.get_running_loop().time() - began < LONG_WAIT_MS / 1000
        assert (waiters(broker), broker.timers_count) == (0, 0)

    run(scenario, tmp_path)


@pytest.mark.parametrize("leave", ["close", "abort"])
def test_a_client_that_leaves_is_not_waited_for(tmp_path: Path, leave: str) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t", partitions=2)
        client = await broker.connect()
        for _ in range(20):
            client.send(ApiKey.FETCH, 12, **fetch_fields(("t", 0, 0), ("t", 1, 0), wait_ms=LONG_WAIT_MS))
        await until(lambda: waiters(broker) == 40)
        getattr(client, leave)()
        await until(lambda: waiters(broker) == 0, "waiters gone")
        assert broker.timers_count == 0

    run(scenario, tmp_path)


def test_a_client_closed_for_a_bad_request_is_not_waited_for(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        client = await broker.connect()
        client.send(ApiKey.FETCH, 12, **fetch_fields(("t", 0, 0), wait_ms=LONG_WAIT_MS))
        await until(lambda: waiters(broker) == 1)
        client.send_bytes(b"\xff" * 8)
        assert await client.is_closed_by_broker()
        await until(lambda: (waiters(broker), broker.timers_count) == (0, 0), "waiters gone")

    run(scenario, tmp_path)


@pytest.mark.parametrize("by_id", [False, True])
def test_a_deleted_topic_ends_the_wait(tmp_path: Path, by_id: bool) -> None:
    async def scenario(broker: RunningBroker) -> None:
        topic_id = await broker.create_topic("t", partitions=2)
        await broker.create_topic("stays")
        stays_id = broker.partition("stays").topic_id
        client = await broker.connect()
        names: tuple[Any, Any] = (topic_id, stays_id) if by_id else ("t", "stays")
        wanted = [(names[0], 0, 0), (names[0], 1, 0), (names[1], 0, 0)]
        client.send(ApiKey.FETCH, 13 if by_id else 12, **fetch_fields(*wanted, wait_ms=LONG_WAIT_MS, by_id=by_id))
        await until(lambda: waiters(broker) == 3)
        leaving = [broker.partition("t", number) for number in range(2)]
        await broker.delete_topic("t")
        answer = await client.receive_reply(ApiKey.FETCH, 13 if by_id else 12)
        codes = [ErrorCode(part.error_code) for topic in answer.responses for part in topic.partitions]
        assert set(codes[:1]) <= {ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id}
        assert codes[2] == ErrorCode.none
        assert (waiters(broker), broker.timers_count) == (0, 0)
        assert not any(len(partition.waiters) for partition in leaving)

    with logged_errors() as errors:
        run(scenario, tmp_path)
    assert [error for error in errors if error.exc_info] == []


def test_a_record_appended_before_the_wait_and_committed_during_it_ends_it(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        client, producer = await broker.connect(), await broker.connect()
        broker.disk.hold()
        await producer.produce("t", b"hello", acks=1)
        client.send(ApiKey.FETCH, 12, **fetch_fields(("t", 0, 0), wait_ms=LONG_WAIT_MS))
        await until(lambda: waiters(broker) == 1)
        broker.disk.release()
        answer = await client.receive_reply(ApiKey.FETCH, 12)
        assert b"hello" in answer.responses[0].partitions[0].records

    run(scenario, tmp_path)


def test_a_wait_for_many_bytes_ends_when_there_are_enough(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        client, producer = await broker.connect(), await broker.connect()
        client.send(ApiKey.FETCH, 12, **fetch_fields(("t", 0, 0), wait_ms=LONG_WAIT_MS, min_bytes=3000))
        for _ in range(2):
            await producer.produce("t", b"x" * 1000)
        assert await client.is_silent()
        await producer.produce("t", b"x" * 1000)
        answer = await client.receive_reply(ApiKey.FETCH, 12)
        assert len(answer.responses[0].partitions[0].records) >= 3000

    run(scenario, tmp_path)


@pytest.mark.parametrize("max_bytes", [0, -1])
def test_without_room_there_is_one_batch_and_no_more(tmp_path: Path, max_bytes: int) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t", partitions=3)
        client = await broker.connect()
        for number in range(3):
            await client.produce("t", b"x" * 1000, partitions=(number,))
        wanted = [("t", number, 0) for number in range(3)]
        answer = await client.ask(ApiKey.FETCH, 12, **fetch_fields(*wanted, max_bytes=max_bytes))
        sizes = [len(part.records) for topic in answer.responses for part in topic.partitions]
        assert sizes[0] > 1000
        assert sizes[1:] == [0, 0]

    run(scenario, tmp_path)


@pytest.mark.parametrize("session_epoch", [-1, 0])
def test_every_partition_has_its_turn_whoever_fills_the_reply(tmp_path: Path, session_epoch: int) -> None:
    """Also for clients without a session that name their partitions in the same order again and again."""

    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t", partitions=3)
        client = await broker.connect()
        for number in range(3):
            await client.produce("t", b"x" * 1000, partitions=(number,))
        wanted = [("t", number, 0) for number in range(3)]
        served, session_id = [], 0
        for turn in range(6):
            epoch = session_epoch if session_epoch < 0 else session_epoch + turn
            fields = fetch_fields(*wanted, max_bytes=1000) | {"session_id": session_id, "session_epoch": epoch}
            answer = await client.ask(ApiKey.FETCH, 12, **fields)
            session_id = answer.session_id
            parts = [part for topic in answer.responses for part in topic.partitions]
            served += [part.partition_index for part in parts if part.records]
        assert served == [0, 1, 2, 0, 1, 2]

    run(scenario, tmp_path)


def test_a_reply_that_is_read_at_once_ends_with_its_fourth_mebibyte_and_has_one_batch_whole(
    tmp_path: Path,
) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t", partitions=6, max_message_bytes=str(8 << 20))
        client = await broker.connect()
        for number in range(6):
            await client.produce("t", b"x" * (1 << 20), partitions=(number,))
        wanted = [("t", number, 0) for number in range(6)]
        sizes: list[int] = []
        for _ in range(2):
            fields = fetch_fields(*wanted, max_bytes=50 << 20, partition_max_bytes=2 << 20)
            answer = await client.ask(ApiKey.FETCH, 12, **fields)
            sizes += [len(part.records) >> 20 for topic in answer.responses for part in topic.partitions]
        assert sizes == [1, 1, 1, 1, 0, 0] * 2
        await client.produce("t", b"x" * (5 << 20), partitions=(0,))
        answer = await client.ask(ApiKey.FETCH, 12, **fetch_fields(("t", 0, 1), max_bytes=50 << 20))
        assert len(answer.responses[0].partitions[0].records) > 5 << 20

    run(scenario, tmp_path)


def test_a_partition_named_twice_is_sent_once(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        client = await broker.connect()
        await client.produce("t", b"one")
        await client.produce("t", b"two")
        answer = await client.ask(ApiKey.FETCH, 12, **fetch_fields(("t", 0, 0), ("t", 0, 1)))
        parts = [part for topic in answer.responses for part in topic.partitions]
        assert len(parts) == 1
        assert b"two" in parts[0].records
        assert b"one" not in parts[0].records

    run(scenario, tmp_path)


# Failures -------------------------------------------------------------------------------------------------------------


class Trap:
    """Makes the next reads of a log fail as a mistake of ours would."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.armed = 0
        original = Log.read

        def read(log: Log, *arguments: Any, **options: Any) -> Any:
            if self.armed > 0:
                self.armed -= 1
                raise RuntimeError("a mistake")
            return original(log, *arguments, **options)

        monkeypatch.setattr(Log, "read", read)


def test_a_waiter_that_fails_does_not_keep_others_from_their_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = Trap(monkeypatch)

    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        clients = [await broker.connect() for _ in range(4)]
        for client in clients:
            client.send(ApiKey.FETCH, 12, **fetch_fields(("t", 0, 0), wait_ms=LONG_WAIT_MS))
            await client._writer.drain()
        await until(lambda: waiters(broker) == 4)
        producer = await broker.connect()
        trap.armed = 1
        result = await producer.produce("t", b"hello")
        assert result.error_code == 0
        ends = await asyncio.gather(*(_end_of(client) for client in clients))
        assert sorted(ends) == ["closed", "records", "records", "records"]
        await until(lambda: (waiters(broker), broker.timers_count) == (0, 0))

    with logged_errors() as errors:
        run(scenario, tmp_path)
    assert len(errors) == 1


async def _end_of(client: Client) -> str:
    try:
        answer = await client.receive_reply(ApiKey.FETCH, 12)
    except (asyncio.IncompleteReadError, ConnectionResetError):
        return "closed"
    return "records" if answer.responses[0].partitions[0].records else "nothing"


def test_a_deadline_that_fails_does_not_keep_others_from_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = Trap(monkeypatch)

    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        producer = await broker.connect()
        await producer.produce("t", b"hello")
        clients = [await broker.connect() for _ in range(4)]
        for client in clients:
            client.send(ApiKey.FETCH, 12, **fetch_fields(("t", 0, 0), wait_ms=300, min_bytes=1 << 20))
        await until(lambda: waiters(broker) == 4)
        trap.armed = 1
        ends = await asyncio.gather(*(_end_of(client) for client in clients))
        assert sorted(ends) == ["closed", "records", "records", "records"]
        # The wheel goes on.
        assert (await producer.fetch("t", 1, wait_ms=20)).error_code == 0

    with logged_errors() as errors:
        run(scenario, tmp_path)
    assert len(errors) == 1


def test_a_fetch_that_fails_after_the_disk_was_read_closes_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        client = await broker.connect()
        await client.produce("t", b"hello")
        tries = 0

        def read(log: Log, *arguments: Any, **options: Any) -> Any:
            nonlocal tries
            tries += 1
            if tries == 1:
                raise NotCached(log.active.file, 0, 10)
            raise RuntimeError("a mistake")

        monkeypatch.setattr(Log, "read", read)
        client.send(ApiKey.FETCH, 12, **fetch_fields(("t", 0, 0)))
        assert await client.is_closed_by_broker()

    with logged_errors() as errors:
        run(scenario, tmp_path)
    assert len(errors) == 1


def test_a_client_that_leaves_while_the_disk_is_read_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Log.read

    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        client, other = await broker.connect(), await broker.connect()
        await client.produce("t", b"hello")
        missed: list[Log] = []

        def read(log: Log, *arguments: Any, **options: Any) -> Any:
            if not missed:
                missed.append(log)
                raise NotCached(log.active.file, 0, 10)
            return original(log, *arguments, **options)

        monkeypatch.setattr(Log, "read", read)
        broker.disk.hold()
        client.send(ApiKey.FETCH, 12, **fetch_fields(("t", 0, 0)))
        await until(lambda: bool(missed))
        client.abort()
        await until(lambda: len(broker.listener._connections) == 1)
        broker.disk.release()
        assert b"hello" in (await other.fetch("t", 0)).records

    with logged_errors() as errors:
        run(scenario, tmp_path)
    assert errors == []


def test_a_deadline_while_the_disk_is_read_gives_one_reply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record that ends the wait has left the page cache again; the deadline passes before it is back."""
    original = Log.read

    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        client, producer = await broker.connect(), await broker.connect()
        missed: list[Log] = []

        def read(log: Log, *arguments: Any, **options: Any) -> Any:
            if not missed:
                missed.append(log)
                broker.disk.hold()
                raise NotCached(log.active.file, 0, 10)
            return original(log, *arguments, **options)

        monkeypatch.setattr(Log, "read", read)
        client.send(ApiKey.FETCH, 12, **fetch_fields(("t", 0, 0), wait_ms=1500))
        await until(lambda: waiters(broker) == 1)
        await producer.produce("t", b"hello")
        await until(lambda: bool(missed))
        await asyncio.sleep(1.6)
        broker.disk.release()
        answer = await client.receive_reply(ApiKey.FETCH, 12)
        assert b"hello" in answer.responses[0].partitions[0].records
        assert await client.is_silent()
        assert broker.timers_count == 0

    with logged_errors() as errors:
        run(scenario, tmp_path)
    assert errors == []


# Sessions -------------------------------------------------------------------------------------------------------------


def test_a_session_outlives_a_topic_in_it(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("goes")
        await broker.create_topic("stays")
        client = await broker.connect()
        opened = await client.ask(ApiKey.FETCH, 12, **fetch_fields(("goes", 0, 0), ("stays", 0, 0), session=(0, 0)))
        session_id = opened.session_id
        assert session_id != 0
        await broker.delete_topic("goes")
        answer = await client.ask(ApiKey.FETCH, 12, **fetch_fields(session=(session_id, 1), wait_ms=LONG_WAIT_MS))
        assert _codes(answer) == {("goes", 0): ErrorCode.unknown_topic_or_partition}
        # Forgotten by the client, it is no longer in the way; nothing else has news.
        forgotten = fetch_fields(session=(session_id, 2), forgotten=(("goes", 0),), wait_ms=20)
        answer = await client.ask(ApiKey.FETCH, 12, **forgotten)
        assert (answer.error_code, _codes(answer)) == (0, {})
        await client.produce("stays", b"hello")
        answer = await client.ask(ApiKey.FETCH, 12, **fetch_fields(session=(session_id, 3), wait_ms=LONG_WAIT_MS))
        assert _codes(answer) == {("stays", 0): ErrorCode.none}

    run(scenario, tmp_path)


def test_a_session_by_id_does_not_take_a_new_topic_for_the_old_one(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        old_id = await broker.create_topic("t")
        client = await broker.connect()
        fields = fetch_fields((old_id, 0, 0), session=(0, 0), by_id=True)
        opened = await client.ask(ApiKey.FETCH, 13, **fields)
        await broker.delete_topic("t")
        await broker.create_topic("t")
        await client.produce("t", b"of the new topic")
        fields = fetch_fields(session=(opened.session_id, 1), by_id=True)
        answer = await client.ask(ApiKey.FETCH, 13, **fields)
        part = answer.responses[0].partitions[0]
        assert (part.error_code, part.records or b"") == (ErrorCode.unknown_topic_id, b"")

    run(scenario, tmp_path)


def _codes(answer: Any) -> dict[tuple[str, int], ErrorCode]:
    return {
        (topic.topic, part.partition_index): ErrorCode(part.error_code)
        for topic in answer.responses
        for part in topic.partitions
    }


async def _slow_reader(broker: RunningBroker, replies: int) -> Client:
    """A client that is owed more than the kernel keeps for a socket, and does not read it yet."""
    await broker.create_topic("t", partitions=3)
    client = await broker.connect()
    for number in range(3):
        for value in range(80):
            await client.produce("t", bytes([number, value]) * 10_000, partitions=(number,))
    client.stop_reading()
    for _ in range(replies):
        client.send(ApiKey.FETCH, 12, **fetch_fields(*(("t", n, 0) for n in range(3)), max_bytes=50 << 20))
    await until(lambda: any(connection._outgoing for connection in broker.listener._connections), "socket is full")
    return client


@pytest.mark.parametrize("has_sockets", [True, False])
def test_a_slow_reader_gets_large_replies_from_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_sockets: bool
) -> None:
    pieces = 0
    next_piece = LogSlice.next_piece

    def counted(piece_of: LogSlice) -> Any:
        nonlocal pieces
        pieces += 1
        return next_piece(piece_of)

    async def scenario(broker: RunningBroker) -> None:
        client = await _slow_reader(broker, replies=8)
        connection = next(each for each in broker.listener._connections if each._outgoing)
        assert connection._transport.get_write_buffer_size() <= PIECE_BYTES
        client._writer.transport.resume_reading()
        for _ in range(8):
            answer = await client.receive_reply(ApiKey.FETCH, 12)
            for part in answer.responses[0].partitions:
                log = broker.partition("t", part.partition_index).log
                everything = bytes(log.active.file.read(0, log.active.size))
                assert everything.startswith(bytes(part.records))
                assert 900_000 < len(part.records) <= 1 << 20
        await until(lambda: not connection._outgoing)
        assert broker.listener.unsent_bytes == broker.listener.budget_used == 0
        # By sendfile none of it needs a copy, if the system can do that at all.
        assert pieces == 0 if has_sockets and can_tell() else pieces >= 8 * 3 * 7

    monkeypatch.setattr(LogSlice, "next_piece", counted)
    can_tell = page_cache.can_tell
    if not has_sockets:
        monkeypatch.setattr(page_cache, "can_tell", lambda: False)
    run(scenario, tmp_path)


@pytest.mark.skipif(not DESCRIPTORS.exists(), reason="only Linux lists what a process has open")
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("leave", ["close", "abort", "is dropped"])
def test_a_reader_that_leaves_in_the_midst_of_a_reply_takes_its_sockets_with_it(
    tmp_path: Path, leave: str, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def scenario(broker: RunningBroker) -> None:
        before = _open_sockets()
        client = await _slow_reader(broker, replies=8)
        if leave == "is dropped":
            next(each for each in broker.listener._connections if each._outgoing).close("a test")
            await until(lambda: _open_sockets() == before + 1, "only the client has its own")
            client.close()
        else:
            getattr(client, leave)()
        await until(lambda: not broker.listener._connections, "connection is lost")
        await until(lambda: _open_sockets() == before, "sockets are closed")

    run(scenario, tmp_path, new_loop=new_loop)


def _open_sockets() -> int:
    return sum(each.is_socket() for each in DESCRIPTORS.iterdir())


def test_a_reply_whose_records_are_deleted_while_it_is_sent_ends_its_connection(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        client = await _slow_reader(broker, replies=8)
        for number in range(3):
            log = broker.partition("t", number).log
            log.roll()
            log.delete_oldest(len(log.segments) - 1)
        client._writer.transport.resume_reading()
        while True:
            try:
                await client.receive()
            except (asyncio.IncompleteReadError, ConnectionResetError):
                break
        assert broker.listener.unsent_bytes == 0
        again = await broker.connect()
        assert (await again.fetch("t", 0)).error_code == ErrorCode.offset_out_of_range

    run(scenario, tmp_path)


def test_a_reply_waits_for_the_disk_where_the_cache_has_holes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def is_cached(descriptor: int, position: int, size: int) -> bool:
        asked.append(position)
        return len(asked) % 2 == 0

    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        client = await broker.connect()
        for value in range(80):
            await client.produce("t", bytes([value]) * 20_000)
        part = await client.fetch("t", 0)
        log = broker.partition("t").log
        assert log.active.file.read(0, len(part.records)) == bytes(part.records)
        assert len(part.records) > 900_000
        if page_cache.can_tell():
            assert asked

    monkeypatch.setattr(page_cache, "is_cached", is_cached)
    run(scenario, tmp_path)


def test_nothing_is_sent_to_a_descriptor_that_may_be_another_connection_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await _slow_reader(broker, replies=8)
        connection = next(each for each in broker.listener._connections if each._outgoing)
        connection._transport.abort()  # As it does by itself when the peer is gone; we are told later.
        sent: list[int] = []
        monkeypatch.setattr(LogSlice, "send", lambda part, descriptor: sent.append(descriptor))
        connection.resume_writing()
        assert not connection.is_closed
        assert sent == []
        await until(lambda: connection not in broker.listener._connections)

    run(scenario, tmp_path)
