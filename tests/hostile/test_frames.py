"""S1 sizes and other protocols, S2 slow and silent peers, S3 keys and versions (see also test_versions.py)."""

import asyncio
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from penstock.base.config import BrokerConfig
from penstock.server import listener as listener_module
from penstock.server.connection import Connection
from penstock.server.listener import FRAME_STALL_S, GIVE_BACK_BYTES, ConnectionListener
from penstock.wire.framing import FRAME_GROWTH, FRAME_START_BYTES, RECEIVE_BYTES, FrameReader

from .broker_process import HOST, BrokerProcess
from .client import Client, eventually, framed, request_frame
from .latency import check_others_unaffected
from .samples import sample

FRAME_BYTES_MAX = 100 << 20

# S1 -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [-1, -(2**31), 0x7FFFFFFF, FRAME_BYTES_MAX + 1])
def test_s1_a_size_out_of_bounds_closes_without_allocation(broker: BrokerProcess, client: Client, size: int) -> None:
    broker.forget_peak()
    before = broker.rss_bytes()
    client.send(struct.pack(">i", size) + b"x" * 100)
    assert client.is_closed_by_broker()
    assert broker.peak_bytes() - before < 8 << 20


@pytest.mark.parametrize("size", [0, 1, 9])
def test_s1_a_frame_too_small_for_a_header_closes(client: Client, size: int) -> None:
    client.send(framed(b"\0" * size))
    assert client.is_closed_by_broker()


@pytest.mark.parametrize(
    "greeting",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /topics HTTP/1.1\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # A TLS ClientHello.
        b"AMQP\x00\x00\x09\x01",
        b"\xff" * 1000,
    ],
)
def test_s1_other_protocols_are_closed(client: Client, greeting: bytes) -> None:
    client.send(greeting)
    assert client.is_closed_by_broker()


def test_s1_a_tls_client_is_turned_away_at_once(broker: BrokerProcess) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((HOST, broker.port), timeout=10) as plain, pytest.raises(OSError):
        context.wrap_socket(plain)


def test_s1_requests_before_a_bad_size_are_answered(client: Client) -> None:
    good = framed(request_frame(18, 0, sample(18, 0), correlation_id=5))
    client.send(good + struct.pack(">i", -1))
    assert struct.unpack_from(">i", client.receive())[0] == 5
    assert client.is_closed_by_broker()


# S2 -------------------------------------------------------------------------------------------------------------------


@contextmanager
def connections(broker: BrokerProcess, count: int) -> Iterator[list[Client]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Client(broker.port)) for _ in range(count)]


def test_s2_500_announcements_of_50_mib_cost_what_was_sent(broker: BrokerProcess, topic: str) -> None:
    before = broker.rss_bytes()

    def attack() -> None:
        with connections(broker, 500) as clients:
            for client in clients:
                client.send(struct.pack(">i", 50 << 20) + b"x")
            time.sleep(0.3)
            assert broker.rss_bytes() - before < 64 << 20

    check_others_unaffected(broker, topic, attack)


def test_s2_5000_idle_connections_are_cheap(broker: BrokerProcess, topic: str) -> None:
    before = broker.rss_bytes()

    def attack() -> None:
        with connections(broker, 5) as some:
            assert {client.ask(18, 0).error_code for client in some} == {0}
            with connections(broker, 5000):  # Silent, so that the broker closes them if this takes ten seconds.
                assert broker.rss_bytes() - before < 64 << 20
                assert {client.ask(18, 0).error_code for client in some} == {0}

    check_others_unaffected(broker, topic, attack)


def test_s2_a_frame_never_reserves_much_more_than_was_sent() -> None:
    reader = FrameReader(bytearray(RECEIVE_BYTES), FRAME_BYTES_MAX)
    sent, start = 1, struct.pack(">i", 50 << 20) + b"x"
    reader.get_buffer()[: len(start)] = start
    assert reader.received(len(start)) == []
    for _ in range(4000):
        room = len(reader.get_buffer())
        assert sent + room <= max(FRAME_START_BYTES, sent * FRAME_GROWTH)
        sent += min(room, 1460)
        assert reader.received(min(room, 1460)) == []


ANY_REQUEST = framed(b"The dispatcher below looks at none.")


class FakeTransport:
    def __init__(self) -> None:
        self.aborted = False
        self.closed = False
        self.paused = False
        self.written: list[bytes] = []

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_extra_info(self, name: str) -> tuple[str, int] | None:
        return ("127.0.0.1", 1) if name == "peername" else None

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self.written))

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def writelines(self, buffers: list[bytes]) -> None:
        self.written += buffers

    def write(self, data: bytes) -> None:
        self.written.append(data)


class FakeTime:
    """A listener with a clock of its own, no network and no dispatcher."""

    def __init__(self, **settings: int) -> None:
        self.now_s = 1000.0
        dispatcher = type("Nobody", (), {"dispatch": staticmethod(lambda connection, frame: None)})()
        config = BrokerConfig(port=0, **settings)
        self.listener = ConnectionListener(config=config, network=None, dispatcher=dispatcher)  # type: ignore[arg-type]
        self.listener.now = lambda: self.now_s

    def connect(self) -> tuple[Connection, FakeTransport]:
        connection, transport = Connection(self.listener), FakeTransport()
        connection.connection_made(transport)  # type: ignore[arg-type]
        return connection, transport

    def receive(self, connection: Connection, data: bytes) -> None:
        view = memoryview(data)
        while view and not connection.is_closed:
            room = connection.get_buffer(-1)
            count = min(len(room), len(view))
            room[:count] = view[:count]
            del room  # As a transport does: the buffer may have to grow.
            connection.buffer_updated(count)
            view = view[count:]

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds
        self.listener.sweep()


def make_fake_time(**settings: int) -> FakeTime:
    async def make() -> FakeTime:
        return FakeTime(**settings)

    return asyncio.run(make())


@pytest.fixture
def fake_time() -> FakeTime:
    return make_fake_time()


def test_s2_a_peer_that_stalls_inside_a_frame_is_closed(fake_time: FakeTime) -> None:
    connection, transport = fake_time.connect()
    fake_time.receive(connection, struct.pack(">i", 50 << 20) + b"x")
    fake_time.pass_s(FRAME_STALL_S)
    assert not transport.aborted
    fake_time.pass_s(0.1)
    assert transport.aborted


@pytest.mark.parametrize("start", [b"\0", b"\0\0\0", b"\0\0\0\x50"])
def test_s2_a_peer_that_stalls_inside_a_size_is_closed(fake_time: FakeTime, start: bytes) -> None:
    connection, transport = fake_time.connect()
    fake_time.receive(connection, start)
    fake_time.pass_s(FRAME_STALL_S + 0.1)
    assert transport.aborted


@pytest.mark.parametrize("seconds", [1.0, 4.0, 9.0, 10.0])
def test_s2_a_peer_that_sends_a_byte_now_and_then_is_closed(fake_time: FakeTime, seconds: float) -> None:
    connection, transport = fake_time.connect()
    fake_time.receive(connection, struct.pack(">i", 50 << 20) + b"x")
    for _ in range(int(3 * FRAME_STALL_S / seconds)):
        fake_time.pass_s(seconds)
        if transport.aborted:
            return
        fake_time.receive(connection, b"x")
    raise AssertionError("the broker waits for ever")


def test_s2_a_slow_but_steady_peer_is_not_closed(fake_time: FakeTime) -> None:
    connection, transport = fake_time.connect()
    fake_time.receive(connection, struct.pack(">i", 1 << 20) + b"x")
    for _ in range(100):
        fake_time.pass_s(1.0)
        fake_time.receive(connection, b"x" * 2000)
    assert not transport.aborted


def test_s2_many_frames_one_after_the_other_are_not_a_stall(fake_time: FakeTime) -> None:
    connection, transport = fake_time.connect()
    for _ in range(30):
        fake_time.receive(connection, struct.pack(">i", 70_000) + b"x" * 10)
        fake_time.pass_s(1.0)
        fake_time.receive(connection, b"x" * 69_990)
    assert not transport.aborted


def test_s2_a_peer_that_sends_no_request_is_closed_after_ten_seconds(fake_time: FakeTime) -> None:
    connection, transport = fake_time.connect()
    fake_time.pass_s(10.0)
    assert not transport.aborted
    fake_time.pass_s(0.1)
    assert transport.aborted
    assert connection.is_closed


def test_s2_the_time_for_the_first_request_is_a_setting() -> None:
    fake_time = make_fake_time(penstock_first_request_timeout_ms=60_000)
    _, transport = fake_time.connect()
    fake_time.pass_s(60.0)
    assert not transport.aborted
    fake_time.pass_s(0.1)
    assert transport.aborted


def test_s2_a_large_first_request_may_take_longer(fake_time: FakeTime) -> None:
    connection, transport = fake_time.connect()
    fake_time.receive(connection, struct.pack(">i", 1 << 20))
    for _ in range(30):
        fake_time.receive(connection, b"x" * 5000)
        fake_time.pass_s(1.0)
    assert not transport.aborted


def test_s2_ten_thousand_silent_connections_are_looked_through_quickly(fake_time: FakeTime) -> None:
    for _ in range(10_000):
        fake_time.connect()
    took_s = []
    for _ in range(3):
        began = time.thread_time()
        fake_time.pass_s(3.0)
        took_s.append(time.thread_time() - began)
    assert min(took_s) < 0.1


def test_s2_an_idle_peer_is_closed_after_its_time_and_not_before(fake_time: FakeTime) -> None:
    connection, transport = fake_time.connect()
    fake_time.receive(connection, ANY_REQUEST)
    fake_time.pass_s(600.0)
    assert not transport.aborted
    fake_time.pass_s(0.1)
    assert transport.aborted
    assert connection.is_closed


def test_s2_a_peer_that_is_muted_for_days_is_closed_when_idle(fake_time: FakeTime) -> None:
    """It is not read, so nobody would notice that it has left."""

    async def scenario() -> None:
        connection, transport = fake_time.connect()
        fake_time.receive(connection, ANY_REQUEST)
        connection.mute(10**6)
        assert transport.paused
        fake_time.pass_s(600.1)
        assert transport.aborted
        connection.connection_lost(None)
        assert connection._unmuting is not None and connection._unmuting.cancelled()

    asyncio.run(scenario())


def test_s18_a_peer_that_is_turned_away_is_not_read_before_it_is_closed(fake_time: FakeTime) -> None:
    """Two timers, one to read on and one to close, once let it have its answer in between."""
    resumed = []

    async def scenario() -> None:
        fake_time.listener.rates._ip_limit = 0.1
        _, served = fake_time.connect()
        connection, refused = fake_time.connect()
        assert refused.paused and not served.paused
        refused.resume_reading = lambda: resumed.append(connection)  # type: ignore[method-assign]
        await asyncio.sleep(1.1)
        assert refused.aborted and not served.aborted

    asyncio.run(scenario())
    assert resumed == []


def test_s18_what_a_crowd_of_replies_took_is_given_back_once(
    fake_time: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_back: list[int] = []
    monkeypatch.setattr(listener_module, "give_back_freed", lambda: given_back.append(1))
    for held_bytes, count in ((0, 0), (GIVE_BACK_BYTES - 1, 0), (0, 0), (GIVE_BACK_BYTES, 0), (1, 0), (0, 1), (0, 1)):
        fake_time.listener.unsent_bytes = held_bytes
        fake_time.pass_s(1.0)
        assert len(given_back) == count
    leaving, _ = fake_time.connect()
    fake_time.listener.unsent_bytes = 2 * GIVE_BACK_BYTES  # More than at any sweep, when somebody leaves.
    leaving.connection_lost(None)
    fake_time.listener.unsent_bytes = 0
    fake_time.pass_s(1.0)
    assert len(given_back) == 2


def test_s2_idle_connections_stay_when_the_limit_is_off() -> None:
    fake_time = make_fake_time(connections_max_idle_ms=-1)
    connection, transport = fake_time.connect()
    fake_time.receive(connection, ANY_REQUEST)
    for _ in range(10):
        fake_time.pass_s(10_000.0)
    assert not transport.aborted


def is_served(broker: BrokerProcess) -> bool:
    """Whether one more connection is answered."""
    with Client(broker.port) as client, suppress(ConnectionResetError):
        return client.ask(18, 0).error_code == 0
    return False


def test_s2_connections_beyond_the_limits_are_closed(tmp_path_factory: pytest.TempPathFactory) -> None:
    process = BrokerProcess(tmp_path_factory.mktemp("few"), max_connections_per_ip="20")
    process.start()
    try:
        with ExitStack() as stack:
            clients = [stack.enter_context(Client(process.port)) for _ in range(20)]
            assert all(client.ask(18, 0).error_code == 0 for client in clients)
            late = stack.enter_context(Client(process.port))
            assert late.is_closed_by_broker()
            clients[0].close()
            eventually(lambda: is_served(process), "there is room for one again")
        process.stop()
    finally:
        process.kill()
