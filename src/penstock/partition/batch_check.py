"""Is this a batch that we may store? Every produced batch passes here; records are not decoded one by one.

What costs nothing per record is always checked: sizes, checksum, counts, codec, timestamps, and how far compressed
bytes can expand. Whether the records really are as many as the header says is checked by hopping over their lengths,
up to `RECORDS_HOPPED_MAX` of them; beyond that, who lies with a right checksum harms the readers of its own topic.
"""

from penstock.base.errors import ErrorCode, Refused
from penstock.base.topic_config import TopicConfig
from penstock.wire import compression
from penstock.wire.batch import (
    BATCH_LENGTH_MIN,
    CODEC_MASK,
    HEADER_BYTES,
    MAGIC,
    NO_PRODUCER_ID,
    PREFIX_BYTES,
    RECORD_BYTES_MIN,
    BatchHeader,
    CorruptBatch,
    decode_records,
    has_valid_crc,
    plain_payload,
    read_header,
    with_payload,
)
from penstock.wire.compression import Codec
from penstock.wire.varint import InvalidVarint, read_varint

RECORDS_HOPPED_MAX = 128  # About 20 microseconds; a larger batch has enough bytes that this would slow it.
# The most that librdkafka puts into a batch, and more than fit into a megabyte. Compressed they may take a kilobyte,
# and whoever decodes them takes 4 seconds.
RECORDS_MAX = 1_000_000
ZSTD_PRODUCE_VERSION_MIN = 7
MAGIC_POSITION = 16
CODEC_POSITION = 22  # The low byte of the attributes.
RECORD_LENGTH_MIN = RECORD_BYTES_MIN - 1  # A record's length does not count itself.

CODECS = {"uncompressed": Codec.NONE, "gzip": Codec.GZIP, "snappy": Codec.SNAPPY, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}


def check_batch(
    view: memoryview,
    config: TopicConfig,
    *,
    produce_version: int,
    now_ms: int,
    decompressed_bytes_max: int,
    is_size_checked: bool = False,
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
    _check_records(header, view[HEADER_BYTES:], config, decompressed_bytes_max, is_size_checked)
    return header


def has_slow_check(view: memoryview, decompressed_bytes_max: int) -> bool:
    """Whether the batch must be decompressed to know its size: `check_size` then belongs on another thread."""
    if len(view) <= HEADER_BYTES or not (codec := view[CODEC_POSITION] & CODEC_MASK):
        return False
    return compression.is_check_slow(codec, view[HEADER_BYTES:], decompressed_bytes_max)


def check_size(view: memoryview, decompressed_bytes_max: int) -> Refused | None:
    """Why the batch's compressed records may not be stored, as far as their size goes. Touches nothing."""
    try:
        compression.check_decompressed_size(
            view[CODEC_POSITION] & CODEC_MASK, view[HEADER_BYTES:], decompressed_bytes_max
        )
    except compression.TooLarge as error:
        return Refused(ErrorCode.message_too_large, str(error))
    except compression.BadData as error:
        return Refused(ErrorCode.corrupt_message, str(error))
    return None


def _check_header(header: BatchHeader, config: TopicConfig, produce_version: int, now_ms: int) -> None:
    if header.is_control:
        raise Refused(ErrorCode.invalid_record, "clients cannot write control batches")
    if header.records_count <= 0 or header.last_offset_delta != header.records_count - 1:
        raise Refused(
            ErrorCode.invalid_record,
            f"{header.records_count} records with last offset delta {header.last_offset_delta}",
        )
    if header.records_count > RECORDS_MAX:
        raise Refused(ErrorCode.invalid_record, f"{header.records_count} records, {RECORDS_MAX} are allowed in a batch")
    if header.is_transactional:
        raise Refused(ErrorCode.unsupported_for_message_format, "transactional producers are not served yet")
    if header.producer_id < NO_PRODUCER_ID:
        raise Refused(ErrorCode.invalid_record, f"producer id {header.producer_id}")
    codec = header.codec
    if codec > Codec.ZSTD or (codec == Codec.ZSTD and produce_version < ZSTD_PRODUCE_VERSION_MIN):
        raise Refused(ErrorCode.unsupported_compression_type, f"codec {codec} at Produce v{produce_version}")
    if config.message_timestamp_type == "CreateTime":
        oldest, newest = header.base_timestamp, header.max_timestamp
        if max(oldest, newest) > now_ms + config.message_timestamp_after_max_ms:
            raise Refused(ErrorCode.invalid_timestamp, f"timestamp {max(oldest, newest)} is too far in the future")
        if oldest < -1 or newest < -1 or (oldest >= 0 and oldest < now_ms - config.message_timestamp_before_max_ms):
            raise Refused(ErrorCode.invalid_timestamp, f"timestamp {oldest} is too old")


def _check_records(
    header: BatchHeader, payload: memoryview, config: TopicConfig, decompressed_bytes_max: int, is_size_checked: bool
) -> None:
    try:
        if is_size_checked:
            pass
        elif header.codec != Codec.NONE:
            compression.check_decompressed_size(header.codec, payload, decompressed_bytes_max)
        else:
            _check_plain_records(header, payload)
        if config.is_compacted:
            _check_keys(header, payload, decompressed_bytes_max)
    except compression.TooLarge as error:
        raise Refused(ErrorCode.message_too_large, str(error)) from error
    except compression.BadData as error:
        raise Refused(ErrorCode.corrupt_message, str(error)) from error
    except CorruptBatch as error:
        raise Refused(ErrorCode.invalid_record, str(error)) from error


def _check_plain_records(header: BatchHeader, payload: memoryview) -> None:
    count = header.records_count
    if count * RECORD_BYTES_MIN > len(payload):
        raise CorruptBatch(f"{count} records in {len(payload)} bytes")
    if count <= RECORDS_HOPPED_MAX:
        if count == 1:
            for _ in decode_records(header, payload):
                pass
        elif count_records(payload) != count:
            raise CorruptBatch(f"header says {count} records, {count_records(payload)} are there")


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


def _check_keys(header: BatchHeader, payload: memoryview, decompressed_bytes_max: int) -> None:
    """Compaction works by key, so a compacted topic takes no record without one. Decodes: these topics are small."""
    for record in decode_records(header, plain_payload(header, payload, decompressed_bytes_max)):
        if record.key is None:
            raise CorruptBatch("a compacted topic takes no record without a key")


def recompress(view: memoryview, header: BatchHeader, codec: Codec, decompressed_bytes_max: int) -> bytearray:
    """The same batch in another codec, for topics whose `compression.type` is not the producer's.

    More than a few records are counted, not decoded: a million may take a kilobyte, and as objects half a gigabyte.
    """
    try:
        payload = plain_payload(header, view[HEADER_BYTES:], decompressed_bytes_max)
        if header.records_count <= RECORDS_HOPPED_MAX:
            offsets = [record.offset for record in decode_records(header, payload)]
            if offsets != list(range(header.base_offset, header.next_offset)):
                raise CorruptBatch("offsets of the records do not follow one another")
        elif (count := count_records(memoryview(payload))) != header.records_count:
            raise CorruptBatch(f"header says {header.records_count} records, {count} are there")
    except CorruptBatch as error:
        raise Refused(ErrorCode.invalid_record, str(error)) from error
    except compression.TooLarge as error:
        raise Refused(ErrorCode.message_too_large, str(error)) from error
    return with_payload(header, compression.compress(codec, payload), codec)
