import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import uvloop
from in_process_broker import RunningBroker, until
from in_process_broker import run as run_broker

from penstock.base import kernel_queue
from penstock.base.kernel_queue import KernelQueue
from penstock.server.api import ApiKey
from penstock.server.outbox import JOINED_BYTES_MAX, REPLIES_MAX, Outbox


@pytest.fixture(autouse=True)
def _have_kernel_queues() -> None:
    try:
        KernelQueue(1).close()
    except OSError as error:
        pytest.skip(f"NOT TESTED: this system sends replies one by one only: {error}")


class Line:
    """A connection: a real socket, and a transport that notes what it is given instead of sending it."""

    def __init__(self) -> None:
        self.socket, self.peer = socket.socketpair()
        self.socket.setblocking(False)
        self.peer.setblocking(False)
        self.given = b""
        self.is_lost = False

    def close(self) -> None:
        self.socket.close()
        self.peer.close()

    def is_closing(self) -> bool:
        return self.is_lost

    def get_write_buffer_size(self) -> int:
        return len(self.given)

    def write(self, data: bytes) -> None:
        self.given += data

    def abort(self) -> None:
        self.is_lost = True

    def received(self) -> bytes:
        data = b""
        try:
            while piece := self.peer.recv(1 << 20):
                data += piece
        except BlockingIOError:
            pass
        return data


@pytest.fixture
def lines() -> Iterator[list[Line]]:
    made = [Line() for _ in range(REPLIES_MAX + 10)]
    yield made
    for line in made:
        line.close()


def send(outbox: Outbox, line: Any, reply: bytes) -> None:
    outbox.send(line, line.socket.fileno(), reply)


def run(scenario: Callable[[Outbox], Awaitable[None]]) -> None:
    async def main() -> None:
        outbox = Outbox()
        await scenario(outbox)
        outbox.close()

    asyncio.run(main())


async def turn() -> None:
    await asyncio.sleep(0)


def test_replies_of_a_turn_leave_together_at_its_end(lines: list[Line], monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    submit = KernelQueue.submit
    monkeypatch.setattr(KernelQueue, "submit", lambda queue, count: counts.append(count) or submit(queue, count))

    async def scenario(outbox: Outbox) -> None:
        replies = [bytes([number]) * (number * 60) for number in range(1, 60)]
        for _ in range(3):
            for line, reply in zip(lines, replies, strict=False):
                send(outbox, line, reply)
                assert line.received() == b""
            await turn()
            assert [line.received() for line in lines[:59]] == replies
        assert not any(line.given for line in lines)
        assert counts == [59] * 3

    run(scenario)


def test_more_replies_than_one_call_takes(lines: list[Line]) -> None:
    async def scenario(outbox: Outbox) -> None:
        for line in lines:
            send(outbox, line, b"r" * JOINED_BYTES_MAX)
        await turn()
        assert [len(line.received()) for line in lines] == [JOINED_BYTES_MAX] * len(lines)

    run(scenario)


def test_a_reply_alone_is_the_transports(lines: list[Line]) -> None:
    async def scenario(outbox: Outbox) -> None:
        send(outbox, lines[0], b"alone")
        await turn()
        assert (lines[0].given, lines[0].received()) == (b"alone", b"")

    run(scenario)


def test_replies_to_one_connection_stay_in_order(lines: list[Line]) -> None:
    async def scenario(outbox: Outbox) -> None:
        first, second = lines[:2]
        send(outbox, first, b"1")
        send(outbox, second, b"other")
        send(outbox, first, b"2")  # The two before it are sent at once.
        assert (first.received(), second.received()) == (b"1", b"other")
        send(outbox, second, b"more")
        await turn()
        assert (first.received(), second.received()) == (b"2", b"more")

    run(scenario)


def test_what_a_full_socket_does_not_take_goes_through_its_transport_in_order(lines: list[Line]) -> None:
    async def scenario(outbox: Outbox) -> None:
        full, other = lines[:2]
        filled = 0
        try:
            while True:
                filled += full.socket.send(b"." * 1000)
        except BlockingIOError:
            pass
        send(outbox, full, b"late")
        send(outbox, other, b"now")
        send(outbox, full, b"r")
        assert (full.given, other.received()) == (b"later", b"now")
        assert len(full.received()) == filled

    run(scenario)


def test_a_connection_that_is_lost_gets_nothing_and_nobody_gets_its_replies(lines: list[Line]) -> None:
    async def scenario(outbox: Outbox) -> None:
        lost, heir, other = lines[:3]
        send(outbox, lost, b"secret")
        send(outbox, other, b"now")
        lost.is_lost = True
        # Another connection has its descriptor by now.
        taken = lost.socket.fileno()
        lost.socket.close()
        heir_socket = socket.socket(fileno=socket.dup(heir.socket.fileno()))
        assert heir_socket.fileno() == taken
        await turn()
        assert (heir.received(), lost.given, other.given + other.received()) == (b"", b"", b"now")
        heir_socket.close()

    run(scenario)


def test_an_error_of_one_socket_is_met_by_its_transport_alone(lines: list[Line]) -> None:
    async def scenario(outbox: Outbox) -> None:
        broken, other, third = lines[:3]
        broken.peer.close()
        for line in (other, broken, third):
            send(outbox, line, b"reply")
        await turn()
        assert (broken.given, other.received(), third.received()) == (b"reply", b"reply", b"reply")

    run(scenario)


def test_without_such_a_queue_transports_send(lines: list[Line], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_queue, "_CALL_NUMBERS", {})

    async def scenario(outbox: Outbox) -> None:
        for line in lines[:3]:
            send(outbox, line, b"reply")
        await turn()
        assert [line.given for line in lines[:3]] == [b"reply"] * 3

    run(scenario)


def test_a_kernel_that_does_not_tell_what_it_sent_is_not_asked_again(
    lines: list[Line], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KernelQueue, "events", lambda self, count_min: memoryview(b""))

    async def scenario(outbox: Outbox) -> None:
        for line in lines[:3]:
            send(outbox, line, b"reply")
        await turn()
        assert all(line.is_lost for line in lines[:3])
        monkeypatch.undo()
        for line in lines[3:6]:
            send(outbox, line, b"reply")
        await turn()
        assert [line.given for line in lines[:6]] == [b""] * 3 + [b"reply"] * 3

    run(scenario)


def test_what_is_due_at_the_end_of_a_turn_comes_before_its_replies_and_fails_alone(
    lines: list[Line], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(outbox: Outbox) -> None:
        def fail() -> None:
            raise RuntimeError("out of order")

        outbox.call_at_end(fail)
        for line in lines[:2]:
            outbox.call_at_end(lambda line=line: send(outbox, line, b"reply"))  # type: ignore[misc]
        await turn()
        assert [line.received() for line in lines[:2]] == [b"reply"] * 2

    run(scenario)
    assert "out of order" in caplog.text


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_each_client_of_a_broker_gets_its_own_replies_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """Many at a time, with clients that leave in the midst of it, and whose descriptors others get."""
    counts: list[int] = []
    submit = KernelQueue.submit
    monkeypatch.setattr(KernelQueue, "submit", lambda queue, count: counts.append(count) or submit(queue, count))
    random = Random(7)

    async def talk(port: int, number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        answered = 0
        for _ in range(20):
            asked = random.randint(1, 5)
            for correlation_id in range(number + answered, number + answered + asked):
                writer.write(struct.pack(">ihhih", 10, ApiKey.API_VERSIONS, 0, correlation_id, -1))
            if random.random() < 0.02:
                writer.transport.abort()  # Without a look at the replies.
                return
            for _ in range(asked):
                size, correlation_id = struct.unpack(">ii", await reader.readexactly(8))
                assert correlation_id == number + answered
                await reader.readexactly(size - 4)
                answered += 1
        writer.close()

    async def scenario(broker: RunningBroker) -> None:
        for round_number in range(3):
            numbers = (round_number * 1_000_000 + client * 1_000 for client in range(60))
            await asyncio.gather(*(talk(broker.listener.port, number) for number in numbers))
        await until(lambda: not broker.listener._connections, "connections are gone")

    run_broker(scenario, tmp_path, new_loop=new_loop)
    assert max(counts) > 5
