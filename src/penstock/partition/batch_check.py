"""Is this a batch that we may store? Every produced batch passes here; records are not decoded one by one.

What costs nothing per record is always checked: sizes, checksum, counts, codec, timestamps, and how far compressed
bytes can expand. Whether the records really are as many as the header says is checked by hopping over their lengths,
up to `RECORDS_HOPPED_MAX` of them; beyond that, who lies with a right checksum harms the readers of its own topic, and
penstock.verify.records has every record looked at.

What looks at every record (that setting, keys in a compacted topic, another codec than the producer's) takes long for
batches that are made for it: `prepare` does it in steps, before the append.
"""

from typing import NamedTuple

from penstock.base.errors import ErrorCode, Refused
from penstock.base.steps import Steps, run_now
from penstock.base.topic_config import TopicConfig
from penstock.wire import compression
from penstock.wire.batch import (
    BATCH_LENGTH_MIN,
    CODEC_MASK,
    CONTROL_MASK,
    HEADER_BYTES,
    MAGIC,
    NO_PRODUCER_ID,
    PREFIX_BYTES,
    RECORD_BYTES_MIN,
    TRANSACTIONAL_MASK,
    BatchHeader,
    CorruptBatch,
    has_valid_crc,
    read_header,
    with_payload,
)
from penstock.wire.compression import Codec
from penstock.wire.record_walk import check_records, is_plain_record, plain_records
from penstock.wire.varint import InvalidVarint, read_varint

RECORDS_HOPPED_MAX = 128  # About 20 microseconds; a larger batch has enough bytes that this would slow it.
# The most that librdkafka puts into a batch, and more than fit into a megabyte. Compressed they may take a kilobyte,
# and whoever looks at them takes a second.
RECORDS_MAX = 1_000_000
ZSTD_PRODUCE_VERSION_MIN = 7
MAGIC_POSITION = 16
CODEC_POSITION = 22  # The low byte of the attributes.
COUNT_POSITION = 57
COUNT_LOW_BYTE = 60  # Without it: 256 records or more.
LONG_BYTES = 16 << 10  # A millisecond to compress, or to hop over the headers that fit.
RECORD_LENGTH_MIN = RECORD_BYTES_MIN - 1  # A record's length does not count itself.
ZSTD = int(Codec.ZSTD)  # To compare with an enum takes ten times as long.

CODECS = {"uncompressed": Codec.NONE, "gzip": Codec.GZIP, "snappy": Codec.SNAPPY, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}


class Prepared(NamedTuple):
    """A batch whose records have been looked at, so that appending it takes no time."""

    recompressed: bytearray | None  # The batch in the topic's own codec, if that is another.


def check_batch(
    view: memoryview,
    config: TopicConfig,
    *,
    produce_version: int,
    now_ms: int,
    decompressed_bytes_max: int,
    are_records_checked: bool = False,
) -> BatchHeader:
    """The header of the one batch that `view` is; Refused with Kafka's error code when it must not be stored."""
    if len(view) <= MAGIC_POSITION or view[MAGIC_POSITION] != MAGIC:
        raise Refused(ErrorCode.invalid_record, "one batch of message format 2 is needed")
    if len(view) < HEADER_BYTES:
        raise Refused(ErrorCode.corrupt_message, "batch header cut short")
    header = read_header(view)
    size = header.batch_length + PREFIX_BYTES
    if header.batch_length < BATCH_LENGTH_MIN or size > len(view):
        raise Refused(ErrorCode.corrupt_message, f"batch claims {size} bytes, {len(view)} are there")
    if size > config.max_message_bytes:
        raise Refused(
            ErrorCode.message_too_large, f"batch of {size} bytes, max.message.bytes is {config.max_message_bytes}"
        )
    if not has_valid_crc(view, 0, header):
        raise Refused(ErrorCode.corrupt_message, "checksum does not match")
    if size < len(view):
        raise Refused(ErrorCode.invalid_record, f"{len(view) - size} bytes follow the batch")
    _check_header(header, config, produce_version, now_ms)
    if not are_records_checked:
        try:
            _check_records(header, view[HEADER_BYTES:], config, decompressed_bytes_max)
        except REFUSALS as error:
            raise _refused(error) from error
    return header


# What takes long


def is_check_slow(view: memoryview, decompressed_bytes_max: int) -> bool:
    """Whether the batch must be decompressed to know its size."""
    if len(view) <= HEADER_BYTES or not (codec := view[CODEC_POSITION] & CODEC_MASK):
        return False
    return compression.is_check_slow(codec, view[HEADER_BYTES:], decompressed_bytes_max)


def is_short(view: memoryview) -> bool:
    """Whether it is looked at in no time, whatever the topic asks for: `is_check_slow` and `is_long` are both false."""
    return HEADER_BYTES < len(view) <= LONG_BYTES and not (
        view[CODEC_POSITION] & CODEC_MASK or any(view[COUNT_POSITION:COUNT_LOW_BYTE])
    )


def is_long(view: memoryview) -> bool:
    """Whether it would take long to look at every record, if the topic asks for that (`wants_records`)."""
    return len(view) > HEADER_BYTES and (
        len(view) > LONG_BYTES or bool(view[CODEC_POSITION] & CODEC_MASK or any(view[COUNT_POSITION:COUNT_LOW_BYTE]))
    )


def wants_records(view: memoryview, config: TopicConfig) -> bool:
    """Whether every record has to be looked at to store the batch."""
    if config.is_compacted or config.verify_records:
        return True
    return (
        config.compression_type != "producer" and CODECS[config.compression_type] != view[CODEC_POSITION] & CODEC_MASK
    )


def prepare(
    view: memoryview, config: TopicConfig, *, produce_version: int, now_ms: int, decompressed_bytes_max: int
) -> Steps[Prepared]:
    """Everything that takes long, before the append; Refused when the batch must not be stored."""
    header = check_batch(
        view,
        config,
        produce_version=produce_version,
        now_ms=now_ms,
        decompressed_bytes_max=decompressed_bytes_max,
        are_records_checked=True,
    )
    payload = view[HEADER_BYTES:]
    try:
        if not wants_records(view, config):
            size = yield lambda: compression.check_decompressed_size(header.codec, payload, decompressed_bytes_max)
            _check_count(header, size)
            return Prepared(None)
        data = yield from plain_records(header, payload, decompressed_bytes_max)
        yield from check_records(header, data, needs_key=config.is_compacted)
        codec = topic_codec(config, header)
        if codec == header.codec:
            return Prepared(None)
        compressed = data if codec == Codec.NONE else (yield lambda: compression.compress(codec, data))
        size = HEADER_BYTES + len(compressed)
        if size > config.max_message_bytes:
            raise compression.TooLarge(
                f"batch of {size} bytes in the topic's own codec, max.message.bytes is {config.max_message_bytes}"
            )
        return Prepared(with_payload(header, compressed, codec))
    except REFUSALS as error:
        raise _refused(error) from error


def topic_codec(config: TopicConfig, header: BatchHeader) -> Codec:
    """The codec in which the topic stores the batch."""
    return Codec(header.codec) if config.compression_type == "producer" else CODECS[config.compression_type]


REFUSALS = (compression.TooLarge, compression.BadData, CorruptBatch)


def _refused(error: Exception) -> Refused:
    if isinstance(error, compression.TooLarge):
        return Refused(ErrorCode.message_too_large, str(error))
    if isinstance(error, compression.BadData):
        return Refused(ErrorCode.corrupt_message, str(error))
    return Refused(ErrorCode.invalid_record, str(error))


# What does not


def _check_header(header: BatchHeader, config: TopicConfig, produce_version: int, now_ms: int) -> None:
    count, attributes = header.records_count, header.attributes
    if attributes & CONTROL_MASK:
        raise Refused(ErrorCode.invalid_record, "clients cannot write control batches")
    if count <= 0 or header.last_offset_delta != count - 1:
        raise Refused(ErrorCode.invalid_record, f"{count} records with last offset delta {header.last_offset_delta}")
    if count > RECORDS_MAX:
        raise Refused(ErrorCode.invalid_record, f"{count} records, {RECORDS_MAX} are allowed in a batch")
    if header.producer_id < NO_PRODUCER_ID or (attributes & TRANSACTIONAL_MASK and header.producer_id < 0):
        raise Refused(ErrorCode.invalid_record, f"producer id {header.producer_id}")
    codec = attributes & CODEC_MASK
    if codec >= ZSTD and (codec > ZSTD or produce_version < ZSTD_PRODUCE_VERSION_MIN):
        raise Refused(ErrorCode.unsupported_compression_type, f"codec {codec} at Produce v{produce_version}")
    if config.message_timestamp_type == "CreateTime":
        oldest, newest = header.base_timestamp, header.max_timestamp
        latest_ms = now_ms + config.message_timestamp_after_max_ms
        if oldest > latest_ms or newest > latest_ms:
            raise Refused(ErrorCode.invalid_timestamp, f"timestamp {max(oldest, newest)} is too far in the future")
        if oldest < -1 or newest < -1 or (oldest >= 0 and oldest < now_ms - config.message_timestamp_before_max_ms):
            raise Refused(ErrorCode.invalid_timestamp, f"timestamp {oldest} is too old")


def _check_records(header: BatchHeader, payload: memoryview, config: TopicConfig, decompressed_bytes_max: int) -> None:
    if config.is_compacted or config.verify_records:
        steps = _check_every_record(header, payload, config, decompressed_bytes_max)
        run_now(steps)  # Few and plain: see `is_long`.
    elif header.attributes & CODEC_MASK:
        _check_count(header, compression.check_decompressed_size(header.codec, payload, decompressed_bytes_max))
    else:
        _check_plain_records(header, payload)


def _check_every_record(
    header: BatchHeader, payload: memoryview, config: TopicConfig, decompressed_bytes_max: int
) -> Steps[None]:
    data = yield from plain_records(header, payload, decompressed_bytes_max)
    yield from check_records(header, data, needs_key=config.is_compacted)


def _check_plain_records(header: BatchHeader, payload: memoryview) -> None:
    _check_count(header, len(payload))
    count = header.records_count
    if count == 1:
        if not is_plain_record(payload):
            run_now(check_records(header, payload, needs_key=False, headers_max=RECORDS_HOPPED_MAX))
    elif count <= RECORDS_HOPPED_MAX and count_records(payload) != count:
        raise CorruptBatch(f"header says {count} records, {count_records(payload)} are there")


def _check_count(header: BatchHeader, size_max: int) -> None:
    if header.records_count * RECORD_BYTES_MIN > size_max:
        raise CorruptBatch(f"{header.records_count} records in at most {size_max} bytes")


def count_records(payload: memoryview) -> int:
    """How many records fill `payload`, by hopping from length to length; CorruptBatch when one does not fit."""
    position, end, count = 0, len(payload), 0
    try:
        while position < end:
            # Zigzag lengths of one and two bytes (records up to 8 KiB) are read here: a call would cost as much again.
            length = payload[position]
            if length < 0x80:
                position += 1
            elif (byte := payload[position + 1]) < 0x80:
                length += (byte - 1) << 7
                position += 2
            else:
                length, position = read_varint(payload, position)
                length <<= 1
            if length & 1 or length < RECORD_LENGTH_MIN << 1:
                raise CorruptBatch(f"record {count} has no sensible length")
            position += length >> 1
            count += 1
    except (InvalidVarint, IndexError) as error:
        raise CorruptBatch(f"record {count} has no length") from error
    if position != end:
        raise CorruptBatch(f"record {count - 1} is cut short")
    return count
