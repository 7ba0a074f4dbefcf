import asyncio
from random import Random

import pytest

from penstock.sim.clock import SimLoop
from penstock.sim.network import HOST, SimNetwork
from penstock.sim.process import Process


class Server(asyncio.BufferedProtocol):
    """Keeps what it is told; its buffer is small on purpose."""

    def __init__(self) -> None:
        self.buffer = bytearray(100)
        self.received = bytearray()
        self.updates: list[int] = []
        self.events: list[object] = []
        self.keep_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.events.append("made")

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self.buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.updates.append(nbytes)
        self.received += self.buffer[:nbytes]

    def eof_received(self) -> bool:
        self.events.append("eof")
        return self.keep_open

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append(("lost", type(exc).__name__))


class Client(asyncio.Protocol):
    def __init__(self) -> None:
        self.received = bytearray()
        self.lost: list[str] = []

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(type(exc).__name__)


def connected(test, seed: int = 0) -> SimLoop:
    """Run `test(network, server, client_transport, client)` on a fresh connection."""
    loop = SimLoop()
    network = SimNetwork(loop=loop, random=Random(seed))
    servers: list[Server] = []

    def factory() -> Server:
        servers.append(Server())
        return servers[-1]

    async def main() -> None:
        listener = await network.listen(factory, "localhost", 0)
        transport, client = await network.connect(Client, HOST, listener.port)
        await asyncio.sleep(0)  # For the server to accept it.
        await test(network, servers[0], transport, client)
        listener.close()
        await listener.wait_closed()

    loop.run(main())
    assert not loop.failures
    return loop


def test_bytes_arrive_in_order_and_in_pieces():
    async def test(network, server, transport, client):
        sent = bytes(range(256)) * 10
        transport.write(sent[:1000])
        transport.writelines([sent[1000:2000], memoryview(sent)[2000:]])
        await asyncio.sleep(1)
        assert server.received == sent
        assert max(server.updates) <= 100
        assert server.transport.get_extra_info("peername")[0] == "127.0.0.1"
        server.transport.write(b"answer")
        await asyncio.sleep(1)
        assert client.received == b"answer"

    connected(test)


def test_a_paused_reader_gets_nothing_until_it_resumes():
    async def test(network, server, transport, client):
        await asyncio.sleep(0.1)
        server.transport.pause_reading()
        transport.write(b"x" * 1000)
        await asyncio.sleep(1)
        assert not server.received
        server.transport.resume_reading()
        await asyncio.sleep(1)
        assert len(server.received) == 1000

    connected(test)


def test_a_slow_reader_pauses_the_writer():
    async def test(network, server, transport, client):
        await asyncio.sleep(0.1)
        transport.pause_reading()
        server.transport.set_write_buffer_limits(high=1000, low=10)
        server.transport.write(b"x" * 1001)
        assert server.events == ["made", "pause"]
        assert server.transport.get_write_buffer_size() == 1001
        transport.resume_reading()
        await asyncio.sleep(1)
        assert server.events == ["made", "pause", "resume"]

    connected(test)


def test_close_delivers_what_was_written_then_end_of_file():
    async def test(network, server, transport, client):
        transport.write(b"last words")
        transport.close()
        transport.write(b"too late")
        assert transport.is_closing()
        await asyncio.sleep(1)
        assert server.received == b"last words"
        assert server.events == ["made", "eof", ("lost", "NoneType")]
        assert client.lost == ["NoneType"]

    connected(test)


def test_a_server_may_answer_after_end_of_file():
    async def test(network, server, transport, client):
        server.keep_open = True
        transport.close()
        await asyncio.sleep(1)
        assert server.events == ["made", "eof"]
        server.transport.write(b"to nobody")
        await asyncio.sleep(1)
        assert server.events == ["made", "eof", ("lost", "BrokenPipeError")]

    connected(test)


def test_abort_resets_the_peer():
    async def test(network, server, transport, client):
        await asyncio.sleep(0.1)
        server.transport.abort()
        await asyncio.sleep(1)
        assert server.events == ["made", ("lost", "NoneType")]
        assert client.lost == ["ConnectionResetError"]

    connected(test)


def test_a_cut_connection_loses_what_was_under_way():
    received = set()
    for seed in range(50):

        async def test(network, server, transport, client):
            await asyncio.sleep(0.1)
            transport.write(b"0123456789")
            assert network.cut_one()
            assert not network.cut_one()
            await asyncio.sleep(1)
            received.add(bytes(server.received))
            assert server.events[-1] == ("lost", "ConnectionResetError")
            assert client.lost == ["ConnectionResetError"]

        connected(test, seed)
    assert all(b"0123456789".startswith(part) for part in received)
    assert len(received) > 5


def test_nobody_listening_refuses():
    loop = SimLoop()
    network = SimNetwork(loop=loop, random=Random(0))

    async def main() -> None:
        with pytest.raises(ConnectionRefusedError):
            await network.connect(Client, HOST, 9092)
        listener = await network.listen(Server, "localhost", 9092)
        with pytest.raises(OSError, match="in use"):
            await network.listen(Server, "localhost", 9092)
        listener.close()
        with pytest.raises(ConnectionRefusedError):
            await network.connect(Client, HOST, 9092)

    loop.run(main())


def test_a_dead_server_hears_nothing_and_its_clients_are_cut_off():
    loop = SimLoop()
    network = SimNetwork(loop=loop, random=Random(0))
    server = Server()

    async def main() -> None:
        process = Process(loop, "broker")
        listener = await process.call(network.listen(lambda: server, "localhost", 9092))
        transport, client = await network.connect(Client, HOST, listener.port)
        await asyncio.sleep(1)
        transport.write(b"hello?")
        process.kill()
        await asyncio.sleep(1)
        assert server.events == ["made"]
        assert not server.received
        assert client.lost == ["ConnectionResetError"]
        with pytest.raises(ConnectionRefusedError):
            await network.connect(Client, HOST, 9092)

    loop.run(main())


def test_a_process_that_dies_loses_the_connections_that_it_made() -> None:
    loop = SimLoop()
    network = SimNetwork(loop=loop, random=Random(1))
    other = Server()

    async def main() -> None:
        await network.listen(lambda: other, "localhost", 9092)
        process = Process(loop, "broker")
        await process.call(network.listen(Server, "localhost", 9093))
        await process.call(network.connect(Client, HOST, 9092))
        await asyncio.sleep(1)
        assert other.events == ["made"]
        process.kill()
        await asyncio.sleep(1)
        assert other.events == ["made", ("lost", "ConnectionResetError")]

    loop.run(main())


def linked(test) -> None:
    """Run `test(network, server_process, server, client_transport, client)` on a connection between two machines."""
    loop = SimLoop()
    network = SimNetwork(loop=loop, random=Random(0))
    server = Server()

    async def main() -> None:
        there, here = Process(loop, "broker", "there"), Process(loop, "client", "here")
        await there.call(network.listen(lambda: server, "localhost", 9092))
        transport, client = await here.call(network.connect(Client, HOST, 9092))
        await asyncio.sleep(1)
        await test(network, there, server, transport, client)

    loop.run(main())
    assert not loop.failures


def test_a_cut_link_holds_everything_back_and_tells_nobody():
    async def test(network, there, server, transport, client):
        network.cut_link(("here", "there"))
        transport.write(b"to the broker")
        server.transport.write(b"to the client")
        await asyncio.sleep(100)
        assert client.received == b"to the client"
        assert not server.received
        network.heal_link(("here", "there"))
        await asyncio.sleep(1)
        assert server.received == b"to the broker"
        assert not client.lost

    linked(test)


def test_a_link_that_was_cut_twice_is_healed_twice():
    async def test(network, there, server, transport, client):
        for _ in range(2):
            network.cut_link(("here", "there"))
        transport.write(b"hello")
        network.heal_link(("here", "there"))
        await asyncio.sleep(1)
        assert not server.received
        network.heal_link(("here", "there"))
        await asyncio.sleep(1)
        assert server.received == b"hello"

    linked(test)


def test_a_connection_over_a_cut_link_takes_until_it_heals():
    async def test(network, there, server, transport, client):
        here = Process(network.loop, "another client", "here")
        for link in (("here", "there"), ("there", "here")):
            network.cut_link(link)
            with pytest.raises(TimeoutError):
                await here.call(asyncio.wait_for(network.connect(Client, HOST, 9092), 10))
            connecting = asyncio.create_task(here.call(network.connect(Client, HOST, 9092)))
            await asyncio.sleep(10)
            assert not connecting.done()
            network.heal_link(link)
            await asyncio.wait_for(connecting, 1)

    linked(test)


def test_what_is_closed_over_a_cut_link_is_closed_at_once_here_and_later_there():
    async def test(network, there, server, transport, client):
        network.cut_link(("here", "there"))
        transport.write(b"last words")
        transport.close()
        await asyncio.sleep(1)
        assert client.lost == ["NoneType"]
        assert server.events == ["made"]
        network.heal_link(("here", "there"))
        await asyncio.sleep(1)
        assert server.received == b"last words"
        assert server.events[:2] == ["made", "eof"]

    linked(test)


def test_a_slow_link_takes_longer():
    async def test(network, there, server, transport, client):
        network.slow_link(("here", "there"), 5.0)
        transport.write(b"hello")
        await asyncio.sleep(4.9)
        assert not server.received
        await asyncio.sleep(0.2)
        assert server.received

    linked(test)


def test_a_paused_process_is_connected_to_and_answers_later():
    async def test(network, there, server, transport, client):
        there.pause()
        _, late = await network.connect(Client, HOST, 9092)
        transport.write(b"hello")
        await asyncio.sleep(10)
        assert server.events == ["made"]
        assert not server.received
        there.resume()
        await asyncio.sleep(1)
        assert server.events == ["made", "made"]
        assert server.received == b"hello"
        assert not late.lost

    linked(test)
