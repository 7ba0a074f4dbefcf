"""A network in memory: bytes arrive in order, late and in pieces of any size, and connections break.

The broker's side sees what asyncio's transports show it: buffered protocols, flow control both ways, end of file,
connection lost. Callbacks run in the context of the process whose protocol is called, so the dead hear nothing.

A link is one direction between two machines. While it is cut nothing gets through, and nobody is told: connections
hang, as when packets are dropped, and go on where they were when the link is healed.
"""

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from random import Random
from typing import Any, TypeVar

from penstock.server.network import ProtocolFactory
from penstock.sim.clock import SimLoop
from penstock.sim.process import CURRENT, Process
from penstock.sim.trace import Trace

AnyProtocol = asyncio.Protocol | asyncio.BufferedProtocol
P = TypeVar("P", bound=AnyProtocol)

DELAY_SECONDS_MIN = 0.00005
DELAY_SECONDS_MAX = 0.005
SPLIT_RATE = 0.2  # Of the deliveries: enough to split every kind of frame somewhere in a run.
WRITE_BUFFER_HIGH = 64 * 1024  # As in asyncio.
HOST = "127.0.0.1"
FIRST_FREE_PORT = 40_000
FIRST_CLIENT_PORT = 50_000
KERNEL_BYTES = 256 * 1024  # What the kernel takes off a writer whose peer does not read, about.

Link = tuple[str, str]  # From a machine to a machine.


class Pipe:
    """One direction of a connection."""

    def __init__(self, network: "SimNetwork", writer: "SimTransport", reader: "SimTransport") -> None:
        self.size = 0  # Bytes under way.
        self.ended = False  # The writer has closed: end of file comes after the bytes under way.
        self.broken = False  # Reset: the bytes under way are the last, and then the connection is lost.
        self.link: Link = (writer.machine, reader.machine)
        self._network = network
        self._writer = writer
        self._reader = reader
        self._timer: asyncio.TimerHandle | None = None
        # Not copied before they arrive, like in uvloop: who changes a buffer after writing it, sends the change.
        self._under_way: deque[memoryview] = deque()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.ended and not self.broken:
            self._under_way.append(memoryview(data))
            self.size += len(data)
            self.schedule()

    def take(self, count: int) -> bytes:
        """The next `count` bytes, which have arrived."""
        taken: list[bytes] = []
        self.size -= count
        while count:
            part = self._under_way.popleft()
            if len(part) > count:
                self._under_way.appendleft(part[count:])
                part = part[:count]
            taken.append(bytes(part))
            count -= len(part)
        return b"".join(taken)

    def end(self) -> None:
        self.ended = True
        self.schedule()

    def cut(self) -> None:
        """Lose some of what is under way, and the connection."""
        if not self.broken:
            self.broken = True
            arriving = self.take(self._network.random.randint(0, self.size))
            self._under_way = deque((memoryview(arriving),))
            self.size = len(arriving)
            self.schedule()

    @property
    def kept_bytes(self) -> int:
        """How much of what is under way the writer still holds; of what does not arrive, the kernel takes its share."""
        process = self._reader.process
        if self._network.is_cut(self.link) or (process is not None and process.paused):
            return max(0, self.size - KERNEL_BYTES)
        return self.size

    def schedule(self) -> None:
        if self._timer is None and (self.size or self.ended or self.broken):
            if self._network.is_cut(self.link):
                self._network.when_healed(self.link, self.schedule)
                return
            delay = self._network.delay(self.link)
            self._timer = self._network.loop.call_later(delay, self._deliver, context=self._reader.context)

    def _deliver(self) -> None:
        self._timer = None
        if self._network.is_cut(self.link):
            self._network.when_healed(self.link, self.schedule)
            self._network.loop.call_soon(self._writer.on_written, context=self._writer.context)
            return
        reader = self._reader
        if reader.lost:
            if not self.broken:
                self._bounce()
            return
        if reader.paused and not self.broken:
            return
        if self.size and not reader.is_closing() and not reader.paused:
            count = self._network.chunk(self.size)
            reader.receive(self, count)
            self._network.note("delivered", reader.name, count)
            self._network.loop.call_soon(self._writer.on_written, context=self._writer.context)
            self.schedule()
        elif self.broken:
            reader.lose(ConnectionResetError("connection reset by peer"))
        elif self.ended and not reader.is_closing():
            reader.receive_eof()

    def _bounce(self) -> None:
        """Nobody is there to read: the writer learns of it as from a reset."""
        self._under_way.clear()
        self.size = 0
        error = None if self._writer.is_closing() else BrokenPipeError("the peer has closed")
        self._network.loop.call_soon(self._writer.lose, error, context=self._writer.context)


class SimTransport(asyncio.Transport):
    def __init__(
        self,
        network: "SimNetwork",
        name: str,
        protocol: AnyProtocol | None,
        context: contextvars.Context,
        peername: tuple[str, int],
    ) -> None:
        super().__init__({"peername": peername})
        self.name = name
        self.context = context
        self.process = context.get(CURRENT)
        self.machine = machine_of(self.process)
        self.paused = False  # Our protocol does not want to read.
        self.lost = False
        self.incoming: Pipe  # Set by SimNetwork.connect, which makes both ends.
        self.outgoing: Pipe
        self._network = network
        if protocol is not None:
            self._protocol = protocol
        self._closing = False
        self._high = WRITE_BUFFER_HIGH
        self._low = WRITE_BUFFER_HIGH // 4
        self._writing_paused = False  # Our protocol was told not to write.

    # What a protocol calls.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or not data:
            return
        self.outgoing.write(data)
        if not self._writing_paused and self.get_write_buffer_size() > self._high:
            self._writing_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        for data in list_of_data:
            self.write(data)

    def close(self) -> None:
        """What was written still arrives, nothing more is read."""
        if not self._closing:
            self._closing = True
            self.outgoing.end()
            self._network.loop.call_soon(self.on_written, context=self.context)

    def abort(self) -> None:
        self._closing = True
        self.outgoing.cut()
        self.lose(None)

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False
        self.incoming.schedule()

    def is_reading(self) -> bool:
        return not self.paused and not self._closing

    def get_write_buffer_size(self) -> int:
        return self.outgoing.kept_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = WRITE_BUFFER_HIGH if low is None else 4 * low
        self._high, self._low = high, high // 4 if low is None else low

    def can_write_eof(self) -> bool:
        return False

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    # What the network calls, in this end's context.

    def accept(self, listener: "SimListener") -> None:
        """Have the process that listens make its protocol, which takes as long as the process is paused."""
        self._protocol = listener.accept()
        self._protocol.connection_made(self)

    def receive(self, pipe: Pipe, count: int) -> None:
        """Hand the first `count` bytes under way to the protocol, as far as it wants them."""
        if isinstance(self._protocol, asyncio.Protocol):
            self._protocol.data_received(pipe.take(count))
            return
        while count and not self.paused and not self._closing:
            buffer: Any = self._protocol.get_buffer(-1)
            size = min(count, len(buffer))
            if size == 0:
                raise RuntimeError("get_buffer() returned an empty buffer")
            buffer[:size] = pipe.take(size)
            count -= size
            self._protocol.buffer_updated(size)

    def receive_eof(self) -> None:
        if not self._protocol.eof_received():
            self.close()

    def on_written(self) -> None:
        """Some bytes have left: more may be written, or a close can be completed."""
        size = self.get_write_buffer_size()
        if self._writing_paused and size <= self._low:
            self._writing_paused = False
            self._protocol.resume_writing()
        if self._closing and size == 0:
            self.lose(None)

    def lose(self, error: Exception | None) -> None:
        if not self.lost:
            self.lost = self._closing = True
            self._network.forget(self)
            self.incoming.schedule()
            self._network.loop.call_soon(self._protocol.connection_lost, error, context=self.context)


class SimListener:
    def __init__(self, network: "SimNetwork", factory: ProtocolFactory, port: int) -> None:
        self.port = port
        self.context = contextvars.copy_context()
        self._network = network
        self._factory = factory

    def accept(self) -> AnyProtocol:
        protocol = self.context.copy().run(self._factory)
        assert isinstance(protocol, AnyProtocol), f"{protocol} takes no stream of bytes"
        return protocol

    def close(self) -> None:
        self._network.unlisten(self)

    async def wait_closed(self) -> None:
        await asyncio.sleep(0)


class SimNetwork:
    def __init__(self, *, loop: SimLoop, random: Random, trace: Trace | None = None) -> None:
        self.loop = loop
        self.random = random
        self._trace = trace
        self._listeners: dict[int, SimListener] = {}
        self._connections: dict[SimTransport, SimTransport] = {}  # Client's end to server's end, oldest first.
        self._connected = 0
        self._ports = FIRST_FREE_PORT
        self._machines: dict[int, str] = {}  # Where each port was last listened on.
        self._mortals: dict[Process, None] = {}  # Processes whose death breaks connections.
        self._cuts: dict[Link, int] = {}  # How many times over.
        self._slow: dict[Link, float] = {}
        self._blocked: dict[Link, dict[Callable[[], None], None]] = {}  # What waits, first come first served.

    async def listen(self, protocol_factory: ProtocolFactory, host: str, port: int) -> SimListener:
        """Accept connections in the calling process until the listener is closed or the process dies."""
        if port == 0:
            self._ports += 1
            port = self._ports
        if port in self._listeners:
            raise OSError(98, "Address already in use")
        listener = SimListener(self, protocol_factory, port)
        self._listeners[port] = listener
        process = CURRENT.get()
        self._machines[port] = machine_of(process)
        if process is not None:
            process.on_death.append(lambda: self.unlisten(listener))
            self._break_with(process)
        return listener

    async def connect(self, protocol_factory: Callable[[], P], host: str, port: int) -> tuple[SimTransport, P]:
        """A client's end of a new connection; ConnectionRefusedError when nobody listens there.

        Every host is this one; ports tell the machines apart.
        """
        process = CURRENT.get()
        here, there = machine_of(process), self._machines.get(port, "")
        await asyncio.sleep(self.delay((here, there)))
        for link in ((here, there), (there, here)):
            while self.is_cut(link):
                healed = self.loop.create_future()
                self.when_healed(link, partial(settle, healed))
                await healed
        listener = self._listeners.get(port)
        if listener is None:
            raise ConnectionRefusedError(111, "Connection refused")
        self._connected += 1
        if process is not None:
            self._break_with(process)
        protocol = protocol_factory()
        number = self._connected
        client = SimTransport(self, f"client-{number}", protocol, contextvars.copy_context(), (HOST, port))
        server = SimTransport(
            self, f"server-{number}", None, listener.context.copy(), (HOST, FIRST_CLIENT_PORT + number)
        )
        client.outgoing = server.incoming = Pipe(self, client, server)
        server.outgoing = client.incoming = Pipe(self, server, client)
        self._connections[client] = server
        self.loop.call_soon(server.accept, listener, context=server.context)
        protocol.connection_made(client)
        return client, protocol

    def cut_one(self) -> bool:
        """Break some connection; False when there is none."""
        if not self._connections:
            return False
        self._cut(self.random.choice(list(self._connections)))
        return True

    # Links

    def is_cut(self, link: Link) -> bool:
        return link in self._cuts

    def cut_link(self, link: Link) -> None:
        """Let nothing through. A link that was cut twice is healed twice."""
        self.note("cut link", *link)
        self._cuts[link] = self._cuts.get(link, 0) + 1

    def heal_link(self, link: Link) -> None:
        self.note("heal link", *link)
        self._cuts[link] -= 1
        if not self._cuts[link]:
            del self._cuts[link]
            for go_on in self._blocked.pop(link, {}):
                go_on()

    def slow_link(self, link: Link, seconds: float) -> None:
        """Have everything take so much longer; 0 for as fast as ever."""
        self.note("slow link", *link, seconds)
        self._slow[link] = seconds

    def when_healed(self, link: Link, go_on: Callable[[], None]) -> None:
        self._blocked.setdefault(link, {})[go_on] = None

    def delay(self, link: Link = ("", "")) -> float:
        slow = self._slow.get(link, 0.0)
        return slow + DELAY_SECONDS_MIN + (DELAY_SECONDS_MAX - DELAY_SECONDS_MIN) * self.random.random() ** 3

    def chunk(self, size: int) -> int:
        return self.random.randint(1, size) if self.random.random() < SPLIT_RATE else size

    def note(self, *fields: object) -> None:
        if self._trace is not None:
            self._trace.add(*fields)

    def forget(self, end: SimTransport) -> None:
        self._connections.pop(end, None)

    def unlisten(self, listener: SimListener) -> None:
        if self._listeners.get(listener.port) is listener:
            del self._listeners[listener.port]

    def _cut(self, client: SimTransport) -> None:
        self.note("cut", client.name)
        server = self._connections.pop(client)
        client.outgoing.cut()
        server.outgoing.cut()

    def _break_with(self, process: Process) -> None:
        """See to it that the connections of the process end with it."""
        if process not in self._mortals:
            self._mortals[process] = None
            process.on_death.append(lambda: self._on_death(process))

    def _on_death(self, process: Process) -> None:
        del self._mortals[process]
        for client in [c for c, server in self._connections.items() if process in (c.process, server.process)]:
            self._cut(client)


def settle(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def machine_of(process: Process | None) -> str:
    return "" if process is None else process.machine
