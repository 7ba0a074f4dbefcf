"""S4: lengths and counts that lie, requests cut at every byte, random damage. Only BadPeer comes out of the decoder."""

import struct
import time
import tracemalloc
from contextlib import suppress
from random import Random
from typing import NamedTuple

import pytest

from penstock.base.errors import BadPeer
from penstock.server.api import ApiKey
from penstock.wire.codec import Struct, decode_request, is_flexible_request
from penstock.wire.produce import read_produce_request
from penstock.wire.varint import write_uvarint

from .broker_process import BrokerProcess
from .client import Client, framed, request_frame
from .samples import SERVED, SERVED_IDS, sample

BODY_START = 10  # Of a request without client id; one more in flexible versions.


def decode(key: int, version: int, frame: bytes | bytearray, position: int) -> object:
    """As the dispatcher and the handlers do it."""
    if key == ApiKey.PRODUCE:
        return read_produce_request(memoryview(bytearray(frame)), position, version)
    return decode_request(key, version, memoryview(bytearray(frame)), position)


def body_start(key: int, version: int) -> int:
    return BODY_START + is_flexible_request(key, version)


def valid_frame(key: int, version: int) -> bytes:
    return request_frame(key, version, sample(key, version), client_id=None)


@pytest.mark.parametrize(("key", "version"), SERVED, ids=SERVED_IDS)
def test_s4_a_request_cut_at_any_byte_is_refused(key: int, version: int) -> None:
    frame, start = valid_frame(key, version), body_start(key, version)
    decode(key, version, frame, start)
    for end in range(start, len(frame)):
        with pytest.raises(BadPeer):
            decode(key, version, frame[:end], start)


@pytest.mark.parametrize(("key", "version"), SERVED, ids=SERVED_IDS)
def test_s4_a_damaged_request_is_decoded_or_refused(key: int, version: int) -> None:
    random = Random(f"{key}-{version}")
    frame, start = valid_frame(key, version), body_start(key, version)
    for position in range(start, len(frame)):
        for value in (0x00, 0x01, 0x7F, 0x80, 0xFF, random.randrange(256)):
            damaged = bytearray(frame)
            damaged[position] = value
            with suppress(BadPeer):
                decode(key, version, damaged, start)


class Lie(NamedTuple):
    claim: str
    key: int
    version: int
    body: bytes


def _name(text: bytes = b"t") -> bytes:
    return struct.pack(">h", len(text)) + text


_ONE_TOPIC = struct.pack(">hhii", -1, 1, 1000, 1) + _name()  # The start of a Produce.
_UVARINT_MAX = b"\xff\xff\xff\xff\x0f"
LIES = [
    Lie("array of 2^31-1", 3, 1, struct.pack(">i", 2**31 - 1)),
    Lie("array of -2", 3, 1, struct.pack(">i", -2)),
    Lie("array of one more than is left", 3, 1, struct.pack(">i", 2) + _name(b"")),
    Lie("compact array of 2^32-1", 3, 9, _UVARINT_MAX + b"\0" * 20),
    Lie("compact array larger than the rest", 3, 9, b"\x7f" + b"\0" * 20),
    Lie("null array that must not be null", 20, 1, struct.pack(">ii", -1, 1000)),
    Lie("null compact array that must not be null", 20, 4, b"\0" + struct.pack(">i", 1000) + b"\0"),
    Lie("negative string length", 3, 1, struct.pack(">ih", 1, -2)),
    Lie("null string that must not be null", 3, 1, struct.pack(">ih", 1, -1)),
    Lie("null compact string that must not be null", 3, 9, b"\x02\0\0" + b"\0" * 4),
    Lie("string longer than the request", 3, 1, struct.pack(">ih", 1, 32767) + b"abc"),
    Lie("compact string of 2^32-1", 3, 9, b"\x02" + _UVARINT_MAX + b"abc"),
    Lie("varint of 11 bytes", 3, 9, b"\xff" * 10 + b"\x01"),
    Lie("varint that never ends", 3, 9, b"\x80" * 100),
    Lie("varint of more than 32 bits", 3, 9, b"\xff\xff\xff\xff\x1f"),
    Lie("20 million tags", 60, 0, b"\0" + b"\x80\xda\xc4\x09" + b"\x00\x00" * 1000),
    Lie("65 tags", 60, 0, b"\0" + b"\x41" + b"".join(bytes((tag, 0)) for tag in range(65))),
    Lie("the same tag twice", 60, 0, b"\0" + b"\x02" + b"\x05\0\x05\0"),
    Lie("tags out of order", 60, 0, b"\0" + b"\x02" + b"\x06\0\x05\0"),
    Lie("tag longer than the request", 60, 0, b"\0" + b"\x01" + b"\x05\x7f"),
    Lie("tag of 2^32-1 bytes", 60, 0, b"\0" + b"\x01" + b"\x05" + _UVARINT_MAX),
    Lie("invalid UTF-8", 3, 1, struct.pack(">i", 1) + _name(b"\xff\xfe")),
    Lie("half a surrogate pair", 3, 1, struct.pack(">i", 1) + _name(b"\xed\xa0\x80")),
    Lie("records of 2^31-1 bytes", 0, 3, _ONE_TOPIC + struct.pack(">iii", 1, 0, 2**31 - 1)),
    Lie("records of -2 bytes", 0, 3, _ONE_TOPIC + struct.pack(">iii", 1, 0, -2)),
    Lie("2^31-1 produced topics", 0, 3, struct.pack(">hhii", -1, 1, 1000, 2**31 - 1)),
    Lie("2^31-1 produced partitions", 0, 3, _ONE_TOPIC + struct.pack(">i", 2**31 - 1)),
    Lie("null produced topics", 0, 3, struct.pack(">hhii", -1, 1, 1000, -1)),
    Lie("null produced topic name", 0, 3, struct.pack(">hhiih", -1, 1, 1000, 1, -1)),
    Lie("2^32-1 produced topics", 0, 9, b"\0" + struct.pack(">hi", 1, 1000) + _UVARINT_MAX),
    Lie("a nullable struct that is neither null nor there", 75, 0, b"\x01" + struct.pack(">i", 1) + b"\x07\0"),
]  # fmt: skip


@pytest.mark.parametrize("lie", LIES, ids=[lie.claim for lie in LIES])
def test_s4_a_length_that_lies_closes_the_connection(client: Client, lie: Lie) -> None:
    flexible = is_flexible_request(lie.key, lie.version)
    header = struct.pack(">hhih", lie.key, lie.version, 1, -1) + (b"\0" if flexible else b"")
    tracemalloc.start()
    try:
        with pytest.raises(BadPeer):
            decode(lie.key, lie.version, header + lie.body, len(header))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    client.send(framed(header + lie.body))
    assert client.is_closed_by_broker()


@pytest.mark.parametrize(
    "tags",
    [
        b"\x80\xda\xc4\x09" + b"\x00\x00" * 1000,  # 20 million of them.
        b"\x41" + b"".join(bytes((tag, 0)) for tag in range(65)),
        b"\x02\x01\x00\x01\x00",
        b"\x02\x02\x00\x01\x00",
        b"\x01\x01\x7f",
        b"\xff" * 11,
        b"",
    ],
)
def test_s4_tags_of_the_request_header_that_lie_close_the_connection(client: Client, tags: bytes) -> None:
    client.send(framed(struct.pack(">hhih", 60, 0, 1, -1) + tags))
    assert client.is_closed_by_broker()


def test_s4_a_few_unknown_tags_are_skipped(client: Client) -> None:
    header = struct.pack(">hhih", 60, 0, 3, -1) + b"\x02\x05\x01x\x09\x02yz"
    client.send(framed(header + b"\x00" + b"\x01\x63\x03abc"))
    assert struct.unpack_from(">i", client.receive())[0] == 3


@pytest.mark.parametrize("length", [-2, -32768, 32767])
def test_s4_a_client_id_whose_length_lies_closes_the_connection(client: Client, length: int) -> None:
    client.send(framed(struct.pack(">hhih", 18, 0, 1, length)))
    assert client.is_closed_by_broker()


@pytest.mark.parametrize(
    ("key", "version", "element", "head", "tail"),
    [
        pytest.param(3, 9, b"\x01\0", b"", b"\0\0\0\0", id="empty topic names"),
        pytest.param(75, 0, b"\x01\0", b"", b"\0\0\x07\xd0\xff\0", id="empty topics to describe"),
        pytest.param(35, 2, b"\x01\x01\0", b"", b"\0", id="empty log dirs"),
        pytest.param(20, 4, b"\x01", b"", b"\0\0\x03\xe8\0", id="empty topics to delete"),
        pytest.param(0, 9, b"\x01\x01\0", b"\0\0\x01\0\0\x03\xe8", b"\0", id="empty topics to produce to"),
        pytest.param(1, 12, b"\x01\x01\0", b"\xff\xff\xff\xff" + b"\0" * 12 + b"\x7f" + b"\0" * 9, b"\x01\x01\0",
                     id="empty topics to fetch"),
    ],
)  # fmt: skip
def test_s4_a_million_tiny_elements_are_refused_before_they_cost(
    broker: BrokerProcess, client: Client, key: int, version: int, element: bytes, head: bytes, tail: bytes
) -> None:
    count = 5_000_000 // len(element)
    out = bytearray(struct.pack(">hhih", key, version, 1, -1) + b"\0" + head)
    write_uvarint(out, count + 1)
    frame = bytes(out) + element * count + tail
    before = broker.rss_bytes()
    broker.forget_peak()
    began = time.thread_time()
    with pytest.raises(BadPeer):
        decode(key, version, frame, 11)
    assert time.thread_time() - began < 1.0
    client.send(framed(frame))
    assert client.is_closed_by_broker()
    assert broker.peak_bytes() - before < 64 << 20


def test_s4_a_hundred_thousand_elements_with_64_tags_each_do_not_hold_up_others() -> None:
    tags = b"\x40" + b"".join(bytes((tag, 0)) for tag in range(64))
    element = b"\x01" + tags
    frame = struct.pack(">hhih", 3, 9, 1, -1) + b"\0" + b"\xa1\x8d\x06" + element * 100_000 + b"\0\0\0\0"
    began = time.thread_time()
    with pytest.raises(BadPeer):
        decode(3, 9, frame, 11)
    assert time.thread_time() - began < 1.0


def test_s4_large_honest_requests_are_served(client: Client) -> None:
    names = [Struct(name=f"a-topic-with-a-usual-name-{number}") for number in range(20_000)]
    answer = client.ask(
        3, 9, topics=names, allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False, include_topic_authorized_operations=False,
    )  # fmt: skip
    assert len(answer.topics) == 20_000


def test_s4_damaged_requests_over_the_socket_are_answered_or_closed(broker: BrokerProcess) -> None:
    random = Random(4)
    client = Client(broker.port)
    for number in range(400):
        key, version = random.choice(SERVED)
        frame = bytearray(request_frame(key, version, sample(key, version), correlation_id=number))
        for _ in range(random.randint(1, 3)):
            frame[random.randrange(8, len(frame))] = random.randrange(256)
        if random.random() < 0.3:
            frame = frame[: random.randrange(8, len(frame))]
        client.send(framed(frame))
        # Something that is always answered follows, so that acks=0 and long waits need no timeout here.
        try:
            client.end_sending() if random.random() < 0.1 else None
            client.send(framed(request_frame(18, 0, Struct(), correlation_id=-number - 1)))
            client._socket.settimeout(2.0)
            while struct.unpack_from(">i", client.receive())[0] != -number - 1:
                pass
        except (OSError, AssertionError):
            client.close()
            client = Client(broker.port)
    client.close()
