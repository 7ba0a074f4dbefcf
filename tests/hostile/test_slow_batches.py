"""S8: batches of a kilobyte that take a second to look through. It takes that second; nobody else does."""

import time
from collections.abc import Callable
from functools import cache

import cramjam
import pytest

from penstock.server.api import ApiKey
from penstock.wire.batch import Record, build_batch
from penstock.wire.codec import Struct
from penstock.wire.compression import Codec
from penstock.wire.varint import write_varint

from .batches import record, with_payload
from .broker_process import BrokerProcess
from .client import Client
from .latency import ATTEMPTS, check_others_unaffected, innocent_client

MILLION = 1_000_000
ATTACK_S = 2.0
WAIT_S_MAX = 0.25  # Before, others waited for all of it.
INVALID_RECORD = 87


@cache
def million_records() -> bytearray:
    """725 bytes: the same small record a million times, and a time that none of them has."""
    now_ms = int(time.time() * 1000)
    payload = bytes(cramjam.zstd.compress(record(b"\0\0\0\x01\x01\0") * MILLION, level=19))
    return with_payload(
        payload, codec=Codec.ZSTD, records_count=MILLION, base_timestamp=now_ms - 1000, max_timestamp=now_ms
    )


@cache
def keyed_records(count: int = 200_000) -> bytearray:
    """Records with keys and the right offsets, up to the last one, which has no key."""
    body = bytearray()
    for number in range(count):
        fields = bytearray(b"\0\0")
        write_varint(fields, number)
        fields += b"\0\x01\0" if number < count - 1 else b"\x01\x01\0"  # An empty key, or none.
        write_varint(body, len(fields))
        body += fields
    return with_payload(bytes(cramjam.zstd.compress(body, level=19)), codec=Codec.ZSTD, records_count=count)


@cache
def many_headers() -> bytearray:
    """One record of a megabyte whose last header has a negative length."""
    fields = bytearray(b"\0\0\0\x01\x01")
    write_varint(fields, 500_000)
    fields += b"\0\x01" * 499_999 + b"\0\x03"
    body = bytearray()
    write_varint(body, len(fields))
    return with_payload(bytes(body + fields), records_count=1)


@cache
def large_value() -> bytearray:
    """A hundred megabytes in ten kilobytes."""
    now_ms = int(time.time() * 1000)
    return build_batch([Record(0, now_ms, b"k", bytes(99 << 20))], base_offset=0, codec=Codec.ZSTD)


def worst_wait_s(broker: BrokerProcess, topic: str, attack: Callable[[], None]) -> float:
    """Of the best of three."""
    waits_s = []
    for _ in range(ATTEMPTS):
        with innocent_client(broker, topic) as waits:
            attack()
        waits_s.append(waits.longest_s())
        if waits_s[-1] < WAIT_S_MAX:
            break
    return min(waits_s)


def again_and_again(ask: Callable[[], None]) -> None:
    end = time.monotonic() + ATTACK_S
    while time.monotonic() < end:
        ask()


def check(broker: BrokerProcess, topic: str, ask: Callable[[], None]) -> None:
    check_others_unaffected(broker, topic, lambda: again_and_again(ask))
    assert worst_wait_s(broker, topic, lambda: again_and_again(ask)) < WAIT_S_MAX


def test_s8_looking_for_a_time_among_a_million_records_holds_up_nobody(
    broker: BrokerProcess, client: Client, topic: str
) -> None:
    name = f"{topic}-million"
    assert client.create_topic(name) == 0
    assert len(million_records()) < 1000
    assert client.produce(name, bytearray(million_records())) == (0, 0)
    found = []

    def ask() -> None:
        wanted = Struct(partition_index=0, timestamp=int(time.time() * 1000) - 86_400_000)
        for timestamp in (wanted.timestamp, int.from_bytes(million_records()[35:43], "big")):
            partitions = [Struct(partition_index=0, timestamp=timestamp)]
            topics = [Struct(name=name, partitions=partitions)]
            answer = client.ask(ApiKey.LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=topics)
            found.append(answer.topics[0].partitions[0].offset)

    check(broker, topic, ask)
    assert set(found) == {0}, "a batch that claims a time is answered as it claims"


@pytest.mark.parametrize("setting", ["cleanup_policy", "penstock_verify_records"])
def test_s8_looking_at_every_record_holds_up_nobody(
    broker: BrokerProcess, client: Client, topic: str, setting: str
) -> None:
    name = f"{topic}-{setting}"
    assert client.create_topic(name, **{setting: "compact" if setting == "cleanup_policy" else "true"}) == 0
    if setting == "cleanup_policy":
        check(broker, topic, lambda: _expect(client.produce(name, bytearray(keyed_records())), INVALID_RECORD))
        assert client.log_end(name) == 0
    else:
        check(broker, topic, lambda: _expect(client.produce(name, bytearray(many_headers())), INVALID_RECORD))


def test_s8_a_record_with_half_a_million_headers_holds_up_nobody(
    broker: BrokerProcess, client: Client, topic: str
) -> None:
    name = f"{topic}-headers"
    assert client.create_topic(name) == 0
    check(broker, topic, lambda: _expect(client.produce(name, bytearray(many_headers())), 0))


@pytest.mark.parametrize("compression", ["uncompressed", "gzip", "snappy", "lz4"])
def test_s8_changing_the_codec_of_a_large_batch_holds_up_nobody(
    broker: BrokerProcess, client: Client, topic: str, compression: str
) -> None:
    name = f"{topic}-{compression}"
    assert client.create_topic(name, compression_type=compression) == 0
    code = 0 if compression in ("gzip", "lz4") else 10
    check(broker, topic, lambda: _expect(client.produce(name, bytearray(large_value())), code))


def _expect(answer: tuple[int, int], code: int) -> None:
    assert answer[0] == code, answer
