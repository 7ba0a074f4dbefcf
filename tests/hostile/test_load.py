"""S18: peers that never read, pipeline thousands of requests, or come and go. Queues are bounded, others are served."""

import socket
import struct
import time
from contextlib import ExitStack, suppress

import pytest

from penstock.server.api import ApiKey
from penstock.wire.codec import Struct

from .broker_process import HOST, BrokerProcess
from .client import Client, batch_of, eventually, fetch_fields, framed, produce_fields, read_reply, request_frame
from .latency import ATTEMPTS, check_others_unaffected, innocent_client
from .samples import sample

MEMORY_BYTES_MAX = 64 << 20


def frames(count: int, key: int, version: int, **fields: object) -> bytes:
    """Requests with the correlation ids 0, 1, 2, …"""
    body = request_frame(key, version, Struct(**fields))
    size = struct.pack(">i", len(body))
    return b"".join(size + body[:4] + struct.pack(">i", number) + body[8:] for number in range(count))


@pytest.fixture
def megabytes(client: Client, topic: str) -> str:
    """A topic with twenty batches of a megabyte."""
    for _ in range(20):
        assert client.produce(topic, batch_of(b"x" * 1_000_000))[0] == 0
    return topic


@pytest.mark.parametrize(
    ("key", "version"),
    [(ApiKey.API_VERSIONS, 0), (ApiKey.METADATA, 1), (ApiKey.LIST_OFFSETS, 7), (ApiKey.PRODUCE, 9), (ApiKey.FETCH, 12)],
    ids=lambda value: getattr(value, "name", value),
)
def test_s18_ten_thousand_pipelined_requests_are_answered_in_order(
    client: Client, topic: str, key: ApiKey, version: int
) -> None:
    fields = sample(key, version, topic).__dict__
    count = 2_000 if key == ApiKey.PRODUCE else 10_000
    data = frames(count, key, version, **fields)
    client._socket.setblocking(False)
    sent, received, replies = 0, bytearray(), 0
    end = time.monotonic() + 60
    while replies < count and time.monotonic() < end:
        with suppress(BlockingIOError):
            sent += client._socket.send(data[sent : sent + 65536]) if sent < len(data) else 0
        try:
            piece = client._socket.recv(1 << 20)
            assert piece, "the broker closed the connection"
            received += piece
        except BlockingIOError:
            time.sleep(0.001)
        while len(received) >= 4 and len(received) >= 4 + struct.unpack_from(">i", received)[0]:
            (size,) = struct.unpack_from(">i", received)
            if replies % 1000 == 0:
                read_reply(key, version, bytes(received[4 : 4 + size]), replies)
            assert struct.unpack_from(">i", received, 4)[0] == replies
            del received[: 4 + size]
            replies += 1
    assert replies == count


def test_s18_pipelined_requests_of_one_client_do_not_hold_up_others(broker: BrokerProcess, topic: str) -> None:
    count = 10_000
    data = frames(count, ApiKey.METADATA, 1, topics=[Struct(name=topic)])

    def attack() -> None:
        with Client(broker.port) as client:
            end = time.monotonic() + 1.5
            while time.monotonic() < end:
                client.send(data)
                reply = client.receive()
                client._receive_exactly((count - 1) * (4 + len(reply)))

    check_others_unaffected(broker, topic, attack)


def test_s18_fetches_of_a_reader_that_never_reads_are_bounded(broker: BrokerProcess, megabytes: str) -> None:
    """3,000 fetches of a megabyte fit into one receive buffer: they must not all be read from disk at once."""
    fields = fetch_fields([(megabytes, 0, 0)], max_bytes=1 << 20)
    data = frames(3_000, ApiKey.FETCH, 12, **fields)
    broker.forget_peak()
    before = broker.rss_bytes()
    with Client(broker.port, receive_buffer_bytes=4096) as client:
        client.send_some(data, 2.0)
        time.sleep(0.5)
        assert broker.peak_bytes() - before < MEMORY_BYTES_MAX


def test_s18_large_fetches_of_a_reader_that_never_reads_are_bounded(broker: BrokerProcess, megabytes: str) -> None:
    fields = fetch_fields([(megabytes, 0, 0)], max_bytes=2**31 - 1, partition_max_bytes=2**31 - 1)
    data = frames(60, ApiKey.FETCH, 12, **fields)
    broker.forget_peak()
    before = broker.rss_bytes()
    with Client(broker.port, receive_buffer_bytes=4096) as client:
        client.send_some(data, 2.0)
        time.sleep(0.5)
        assert broker.peak_bytes() - before < MEMORY_BYTES_MAX


def test_s18_fetches_behind_one_that_waits_are_bounded(broker: BrokerProcess, megabytes: str, client: Client) -> None:
    """Replies that are ready, but behind one that is not, are memory too."""
    end = client.log_end(megabytes)
    waiting = framed(
        request_frame(1, 12, Struct(**fetch_fields([(megabytes, 0, end)], wait_ms=3000)), correlation_id=-1)
    )
    fields = fetch_fields([(megabytes, 0, 0)], max_bytes=2**31 - 1, partition_max_bytes=2**31 - 1)
    broker.forget_peak()
    before = broker.rss_bytes()
    with Client(broker.port) as other:
        other.send(waiting)
        other.send_some(frames(60, ApiKey.FETCH, 12, **fields), 1.0)
        time.sleep(0.3)
        assert broker.peak_bytes() - before < 2 * MEMORY_BYTES_MAX


def test_s18_many_readers_that_never_read_are_bounded(broker: BrokerProcess, megabytes: str) -> None:
    fields = fetch_fields([(megabytes, 0, 0)], max_bytes=2**31 - 1, partition_max_bytes=2**31 - 1)
    frame = framed(request_frame(1, 12, Struct(**fields)))
    before = broker.rss_bytes()
    with ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(Client(broker.port, receive_buffer_bytes=4096)).send(frame * 2)
        seen, now = 0, broker.rss_bytes()
        while now > seen:  # Until it grows no more.
            time.sleep(0.5)
            seen, now = now, broker.rss_bytes()
        # 256 MiB for all of them, and one batch each, which every fetch is promised: of 800 MB that were asked for.
        assert now - before < (256 << 20) + 40 * (1 << 20) + MEMORY_BYTES_MAX
        with Client(broker.port) as reader:
            assert len(reader.fetch(megabytes, 0).records) > 1_000_000


def test_s18_metadata_for_a_reader_that_never_reads_is_bounded(broker: BrokerProcess, client: Client) -> None:
    assert client.create_topic("wide", partitions=300) in (0, 36)
    data = frames(14_000, ApiKey.METADATA, 1, topics=None)
    worst = []
    for _ in range(ATTEMPTS):
        broker.forget_peak()
        before = broker.rss_bytes()
        with Client(broker.port, receive_buffer_bytes=4096) as other:
            with innocent_client(broker, "health") as waits:
                other.send_some(data, 2.0)
                time.sleep(0.5)
            assert broker.peak_bytes() - before < MEMORY_BYTES_MAX
        worst.append(waits.longest_s())
        if worst[-1] < 0.5:
            return
    raise AssertionError(f"others waited for {worst} seconds")


def test_s18_a_reader_that_comes_back_gets_everything_in_order(broker: BrokerProcess, megabytes: str) -> None:
    data = frames(200, ApiKey.FETCH, 12, **fetch_fields([(megabytes, 0, 3)], max_bytes=1 << 20))
    with Client(broker.port, receive_buffer_bytes=4096) as client:
        assert client.send_some(data, 60.0) == len(data)
        time.sleep(0.3)
        for number in range(200):
            answer = read_reply(1, 12, client.receive(), number)
            assert len(answer.responses[0].partitions[0].records) > 1_000_000


def test_s18_a_peer_that_gets_no_answer_for_a_bad_request_is_not_kept(broker: BrokerProcess, megabytes: str) -> None:
    """It is owed a reply that it does not read, and then sends garbage."""
    fetch = framed(
        request_frame(
            1, 12, Struct(**fetch_fields([(megabytes, 0, 0)], max_bytes=2_100_000, partition_max_bytes=2_100_000))
        )
    )
    with Client(broker.port, receive_buffer_bytes=4096) as client:
        client.send(fetch + struct.pack(">i", -1))
        time.sleep(0.2)
        assert client.send_some(b"x" * 100, 0.3) <= 100


def test_s18_twenty_thousand_connects_a_minute_do_not_hold_up_others(broker: BrokerProcess, topic: str) -> None:
    hello = framed(request_frame(18, 0, Struct()))

    def attack() -> None:
        began = time.monotonic()
        for number in range(500):
            with socket.create_connection((HOST, broker.port), timeout=10) as peer:
                if number % 2:
                    peer.sendall(hello)
                if number % 4 == 1:
                    peer.recv(1000)
                if number % 4 == 2:
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # Reset.
            ahead_s = began + (number + 1) * 60 / 20_000 - time.monotonic()
            if ahead_s > 0:
                time.sleep(ahead_s)

    check_others_unaffected(broker, topic, attack)


def test_s18_long_polls_of_peers_that_left_cost_nothing(broker: BrokerProcess, topic: str) -> None:
    """20,000 fetches that would wait a minute, from connections that are closed at once."""
    data = frames(64, ApiKey.FETCH, 12, **fetch_fields([(topic, 0, 0)], wait_ms=60_000))
    before = broker.rss_bytes()
    for _ in range(320):
        with Client(broker.port) as client:
            client.send(data)
    eventually(lambda: broker.rss_bytes() - before < 16 << 20, "the memory is given back")


def test_s18_a_slow_produce_of_many_partitions_is_answered(client: Client) -> None:
    batches = [("no-such-topic", number, b"") for number in range(5000)]
    answer = client.ask(ApiKey.PRODUCE, 9, **produce_fields(batches))
    assert sum(len(topic.partition_responses) for topic in answer.responses) == 5000
