"""S6 acks, S7 batches that lie, S8 decompression bombs, S9 sizes and times. What is refused is not appended."""

import time
from random import Random

import pytest

from penstock.base.errors import ErrorCode
from penstock.server.api import ApiKey
from penstock.wire.batch import Record, build_batch
from penstock.wire.compression import Codec, compress, decompress

from .batches import (
    BOMB_BYTES,
    gzip_bomb,
    lz4_with_content_size,
    record,
    with_header,
    with_payload,
    zstd_bomb,
    zstd_with_window,
)
from .broker_process import BrokerProcess
from .client import Client, batch_of, produce_fields
from .latency import innocent_client

CORRUPT, INVALID, TOO_LARGE = ErrorCode.corrupt_message, ErrorCode.invalid_record, ErrorCode.message_too_large
GOOD = batch_of(b"one", b"two")
YEAR_9999_MS = 253_370_764_800_000


def check_refused(client: Client, topic: str, batch: bytes | bytearray | None, *codes: int, version: int = 9) -> None:
    code, offset = client.produce(topic, batch, version=version)
    assert ErrorCode(code) in codes
    assert offset == -1
    assert client.log_end(topic) == 0


# S6 -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", [2, -2, 32767, -32768])
@pytest.mark.parametrize("version", [3, 9, 12])
def test_s6_other_acks_are_refused(client: Client, topic: str, acks: int, version: int) -> None:
    assert client.produce(topic, GOOD, acks=acks, version=version) == (ErrorCode.invalid_required_acks, -1)
    assert client.log_end(topic) == 0


# S7 -------------------------------------------------------------------------------------------------------------------

LENGTH = len(GOOD) - 12
BAD_BATCHES = {
    "checksum": (GOOD[:-1] + b"\xff", CORRUPT),
    "checksum of the header": (GOOD[:22] + b"\x08" + GOOD[23:], CORRUPT),
    "length too long": (with_header(GOOD, batch_length=LENGTH + 1), CORRUPT),
    "length too long by far": (with_header(GOOD, batch_length=2**31 - 1), CORRUPT),
    "length too short": (with_header(GOOD, batch_length=LENGTH - 1), CORRUPT),
    "length shorter than a header": (with_header(GOOD, batch_length=10), CORRUPT),
    "length negative": (with_header(GOOD, batch_length=-1), CORRUPT),
    "cut short": (GOOD[:-5], CORRUPT),
    "header cut short": (GOOD[:40], CORRUPT),
    "magic 0": (with_header(GOOD, magic=0), INVALID),
    "magic 1": (with_header(GOOD, magic=1), INVALID),
    "magic 3": (with_header(GOOD, magic=3), INVALID),
    "two batches": (GOOD + GOOD, INVALID),
    "bytes after the batch": (GOOD + b"\0", INVALID),
    "no batch": (b"", INVALID),
    "null": (None, INVALID),
    "more records than there are": (with_header(GOOD, records_count=3, last_offset_delta=2), INVALID),
    "fewer records than there are": (with_header(GOOD, records_count=1, last_offset_delta=0), INVALID),
    "no records": (with_header(GOOD, records_count=0, last_offset_delta=-1), INVALID),
    "negative records": (with_header(GOOD, records_count=-1, last_offset_delta=-2), INVALID),
    "2^31-1 records": (with_header(GOOD, records_count=2**31 - 1, last_offset_delta=2**31 - 2), INVALID),
    "last offset delta too small": (with_header(GOOD, last_offset_delta=0), INVALID),
    "last offset delta too large": (with_header(GOOD, last_offset_delta=5), INVALID),
    "last offset delta negative": (with_header(GOOD, last_offset_delta=-1), INVALID),
    "last offset delta 2^31-1": (with_header(GOOD, last_offset_delta=2**31 - 1), INVALID),
    "control bit": (with_header(GOOD, attributes=0x20), INVALID),
    "negative key length": (with_payload(record(b"\0\0\0\x03\0\0")), INVALID),
    "key longer than the record": (with_payload(record(b"\0\0\0\x7e\0\0")), INVALID),
    "negative value length": (with_payload(record(b"\0\0\0\x01\x03\0")), INVALID),
    "negative header count": (with_payload(record(b"\0\0\0\x01\x01\x01")), INVALID),
    "more headers than bytes": (with_payload(record(b"\0\0\0\x01\x01\x7e")), INVALID),
    "header without a name": (with_payload(record(b"\0\0\0\x01\x01\x02\x01\x01")), INVALID),
    "record that ends early": (with_payload(record(b"\0\0\0\x01\x01\0\0")), INVALID),
    "record of length 0": (with_payload(b"\0" * 7), INVALID),
    "negative record length": (with_payload(b"\x01" + b"\0" * 6), INVALID),
    "record longer than the batch": (with_payload(b"\x7e\0\0\0\x01\x01\0"), INVALID),
    "record length of 11 bytes": (with_payload(b"\xff" * 10 + b"\x01"), INVALID),
    "offset delta of one record is 7": (with_payload(record(b"\0\0\x0e\x01\x01\0")), INVALID),
    "offset delta of one record is negative": (with_payload(record(b"\0\0\x01\x01\x01\0")), INVALID),
}


@pytest.mark.parametrize(("batch", "code"), BAD_BATCHES.values(), ids=BAD_BATCHES)
def test_s7_a_batch_that_lies_is_refused(client: Client, topic: str, batch: bytes, code: ErrorCode) -> None:
    check_refused(client, topic, batch, code)


@pytest.mark.parametrize("compression", ["gzip", "zstd", "uncompressed"])
def test_s7_a_batch_to_recompress_cannot_move_offsets(client: Client, topic: str, compression: str) -> None:
    name = f"{topic}-{compression}"
    assert client.create_topic(name, compression_type=compression) == 0
    first, second = record(b"\0\0\0\x01\x01\0"), record(b"\0\0\x02\x01\x01\0")  # Offset deltas 0 and 1.
    for body, count in ((second + first, 2), (first + first, 2), (first * 200, 199), (first * 200, 200)):
        batch = with_payload(compress(Codec.LZ4, body), codec=Codec.LZ4, records_count=count)
        check_refused(client, name, batch, INVALID)
    good = build_batch([Record(0, 0, None, b"a"), Record(1, 0, None, b"b")], base_offset=0, codec=Codec.LZ4)
    assert client.produce(name, good) == (0, 0)
    assert client.log_end(name) == 2


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name)
def test_s7_a_topic_can_have_every_record_looked_at(client: Client, topic: str, codec: Codec) -> None:
    """Whatever is wrong inside, also in the last record of a compressed batch."""
    name = f"{topic}-verified-{codec.name}"
    assert client.create_topic(name, penstock_verify_records="true") == 0
    good = [bytes((0, 0, number << 1, 1, 1, 0)) for number in range(40)]
    wrong = {
        "a record less": good[:-1],
        "a record more": [*good, good[-1]],
        "an offset twice": [*good[:-1], good[0]],
        "a negative key length": [*good[:-1], bytes((0, 0, 78, 5, 1, 0))],
        "a value that does not fit": [*good[:-1], bytes((0, 0, 78, 1, 60, 0))],
        "headers that are not there": [*good[:-1], bytes((0, 0, 78, 1, 1, 4))],
        "bytes after the headers": [*good[:-1], bytes((0, 0, 78, 1, 1, 0, 0))],
    }
    for records in wrong.values():
        body = b"".join(record(fields) for fields in records)
        check_refused(client, name, with_payload(compress(codec, body), codec=codec, records_count=40), INVALID)
    sound = with_payload(compress(codec, b"".join(map(record, good))), codec=codec, records_count=40)
    assert client.produce(name, sound) == (0, 0)


def test_s7_a_compacted_topic_takes_no_record_without_a_key(client: Client, topic: str) -> None:
    name = f"{topic}-compacted"
    assert client.create_topic(name, cleanup_policy="compact") == 0
    check_refused(client, name, GOOD, INVALID)


def test_s7_one_bad_partition_does_not_spoil_the_others(client: Client, topic: str) -> None:
    batches = [(topic, 0, with_header(GOOD, magic=1)), (topic, 0, GOOD), ("no-such", 0, GOOD), (topic, 99, GOOD)]
    answer = client.ask(ApiKey.PRODUCE, 9, **produce_fields(batches))
    codes = [ErrorCode(part.error_code).name for topic in answer.responses for part in topic.partition_responses]
    assert codes == ["invalid_record", "none", "unknown_topic_or_partition", "unknown_topic_or_partition"]
    assert client.log_end(topic) == 2


# S8 -------------------------------------------------------------------------------------------------------------------

NESTED = gzip_bomb(BOMB_BYTES)


BOMBS = {
    "zstd": (Codec.ZSTD, zstd_bomb(BOMB_BYTES + 1), (TOO_LARGE,)),
    "gzip": (Codec.GZIP, gzip_bomb(BOMB_BYTES + 1), (TOO_LARGE,)),
    "gzip in many members": (Codec.GZIP, gzip_bomb(10 << 20) * 11, (TOO_LARGE,)),
    "gzip of too many members": (Codec.GZIP, gzip_bomb(0) * 20_000, (TOO_LARGE,)),
    "lz4": (Codec.LZ4, compress(Codec.LZ4, bytes(BOMB_BYTES + 1)), (TOO_LARGE,)),
    "snappy": (Codec.SNAPPY, compress(Codec.SNAPPY, bytes(1 << 20))[:16] + b"\0\0\0\x06\x80\x80\x80\x80\x08\0",
               (TOO_LARGE, CORRUPT)),
    "zstd in many frames": (Codec.ZSTD, zstd_bomb(10 << 20) * 11, (TOO_LARGE,)),
    "zstd that wants a window of 2 GiB": (Codec.ZSTD, zstd_with_window(21), (CORRUPT,)),
    "zstd that wants a window of 256 MiB": (Codec.ZSTD, zstd_with_window(18), (CORRUPT,)),
    "lz4 with a wrong content size": (Codec.LZ4, lz4_with_content_size(b"abcdefgh" * 100, 7), (CORRUPT,)),
    "lz4 with a huge content size": (Codec.LZ4, lz4_with_content_size(b"abcdefgh" * 100, 2**62), (CORRUPT, TOO_LARGE)),
    "gzip that is none": (Codec.GZIP, b"not gzip at all, but long enough", (CORRUPT,)),
    "zstd that is none": (Codec.ZSTD, b"not zstd", (CORRUPT,)),
    "lz4 that is none": (Codec.LZ4, b"not lz4", (CORRUPT,)),
    "snappy that is none": (Codec.SNAPPY, b"\xff" * 20, (CORRUPT,)),
    "nothing at all": (Codec.ZSTD, b"", (CORRUPT,)),
}  # fmt: skip


@pytest.mark.parametrize(("codec", "payload", "codes"), BOMBS.values(), ids=BOMBS)
def test_s8_a_bomb_is_refused(
    broker: BrokerProcess, client: Client, topic: str, codec: int, payload: bytes, codes: tuple[int, ...]
) -> None:
    assert len(payload) < 1 << 20
    broker.forget_peak()
    before = broker.rss_bytes()
    check_refused(client, topic, with_payload(payload, codec=codec), *codes)
    assert broker.peak_bytes() - before <= BOMB_BYTES + (64 << 20)


def test_s8_gzip_in_many_honest_members_is_accepted(client: Client, topic: str) -> None:
    body = record(b"\0\0\0\x01\x01\0")
    members = gzip_bomb(3 << 20) * 5 + compress(Codec.GZIP, body) + gzip_bomb(1 << 20)
    padding = Random(8).randbytes(120_000)  # Enough bytes that the broker has to look inside.
    payload = members + compress(Codec.GZIP, padding)
    assert decompress(Codec.GZIP, payload, BOMB_BYTES) == bytes(15 << 20) + body + bytes(1 << 20) + padding
    assert client.produce(topic, with_payload(payload, codec=Codec.GZIP))[0] == 0


def test_s8_a_bomb_inside_a_bomb_is_never_opened(broker: BrokerProcess, client: Client, topic: str) -> None:
    """The outer layer is what a consumer would open: small. Its content is no record, and the broker does not look."""
    broker.forget_peak()
    before = broker.rss_bytes()
    payload = compress(Codec.ZSTD, NESTED)
    code, _ = client.produce(topic, with_payload(payload, codec=Codec.ZSTD))
    assert ErrorCode(code) in (ErrorCode.none, CORRUPT, INVALID, TOO_LARGE)
    assert broker.peak_bytes() - before <= 64 << 20


@pytest.mark.parametrize("compression", ["uncompressed", "gzip", "producer"])
def test_s8_a_small_batch_of_millions_of_records_is_refused(
    broker: BrokerProcess, client: Client, topic: str, compression: str
) -> None:
    """A kilobyte that would take whoever decodes it, here a topic's own codec or a look-up by time, half a minute."""
    name = f"{topic}-{compression}"
    assert client.create_topic(name, compression_type=compression) == 0
    count = 5_000_000
    payload = compress(Codec.ZSTD, record(b"\0\0\0\x01\x01\0") * count)
    assert len(payload) < 10_000
    before_s = broker.cpu_s()
    check_refused(client, name, with_payload(payload, codec=Codec.ZSTD, records_count=count), INVALID, TOO_LARGE)
    assert broker.cpu_s() - before_s < 2.0


def test_s8_a_batch_is_not_stored_larger_than_the_topic_allows(client: Client, topic: str) -> None:
    """Decompressed for a topic whose compression.type is `uncompressed`, a kilobyte would fill 50 MB of disk."""
    name = f"{topic}-uncompressed"
    assert client.create_topic(name, compression_type="uncompressed") == 0
    batch = batch_of(bytes(50_000_000), codec=Codec.ZSTD)
    assert len(batch) < 10_000
    check_refused(client, name, batch, TOO_LARGE)
    assert client.produce(name, batch_of(bytes(500_000), codec=Codec.ZSTD)) == (0, 0)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_s8_an_unknown_codec_is_refused(client: Client, topic: str, codec: int) -> None:
    check_refused(client, topic, with_payload(b"x" * 100, codec=codec), ErrorCode.unsupported_compression_type)


@pytest.mark.parametrize("version", [3, 6])
def test_s8_zstd_is_refused_before_produce_v7(client: Client, topic: str, version: int) -> None:
    batch = batch_of(b"x", codec=Codec.ZSTD)
    check_refused(client, topic, batch, ErrorCode.unsupported_compression_type, version=version)
    assert client.produce(topic, batch, version=7) == (0, 0)


def test_s8_bombs_end_within_their_time(broker: BrokerProcess, client: Client, topic: str) -> None:
    """The slowest are gzip's: it has no block headers to look at. Figures are in the failure message.

    Of the broker's processor, so that nobody else's work counts.
    """
    bombs = {name: with_payload(payload, codec=codec) for name, (codec, payload, _) in BOMBS.items()}
    seconds = {}
    for name, batch in bombs.items():
        best = 9.9
        for _ in range(3):
            before_s = broker.cpu_s()
            client.produce(topic, batch)
            best = min(best, broker.cpu_s() - before_s)
        seconds[name] = round(best, 3)
    assert max(seconds.values()) < 1.0, seconds


def test_s8_one_bomb_holds_others_up_no_longer_than_it_takes(broker: BrokerProcess, client: Client, topic: str) -> None:
    bomb = with_payload(gzip_bomb(BOMB_BYTES + 1), codec=Codec.GZIP)
    best = 9.9
    for _ in range(3):
        with innocent_client(broker, "health") as waits:
            time.sleep(0.1)
            client.produce(topic, bomb)
            time.sleep(0.1)
        best = min(best, waits.longest_s())
    assert best < 1.0


# S9 -------------------------------------------------------------------------------------------------------------------


def test_s9_a_batch_above_max_message_bytes_is_refused(client: Client, topic: str) -> None:
    overhead = len(batch_of(b"x" * 100_000)) - 100_000
    largest = 1_048_588 - overhead
    check_refused(client, topic, batch_of(b"x" * (largest + 1)), TOO_LARGE)
    assert client.produce(topic, batch_of(b"x" * largest)) == (0, 0)


def test_s9_a_topic_has_its_own_limit(client: Client, topic: str) -> None:
    name = f"{topic}-small"
    assert client.create_topic(name, max_message_bytes="1000") == 0
    check_refused(client, name, batch_of(b"x" * 1000), TOO_LARGE)
    assert client.produce(name, batch_of(b"x" * 900)) == (0, 0)


@pytest.mark.parametrize(
    "fields",
    [
        {"base_timestamp": YEAR_9999_MS, "max_timestamp": YEAR_9999_MS},
        {"max_timestamp": YEAR_9999_MS},
        {"base_timestamp": YEAR_9999_MS},
        {"base_timestamp": 2**63 - 1, "max_timestamp": 2**63 - 1},
        {"base_timestamp": -2, "max_timestamp": -2},
        {"base_timestamp": -(2**63), "max_timestamp": -(2**63)},
        {"base_timestamp": -(2**63)},
        {"max_timestamp": -2},
    ],
    ids=str,
)
def test_s9_a_timestamp_out_of_this_world_is_refused(client: Client, topic: str, fields: dict[str, int]) -> None:
    for batch in (GOOD, batch_of(b"one")):
        check_refused(client, topic, with_header(batch, **fields), ErrorCode.invalid_timestamp)


def test_s9_a_batch_without_timestamps_is_accepted(client: Client, topic: str) -> None:
    assert client.produce(topic, batch_of(b"x", timestamp_ms=-1)) == (0, 0)
