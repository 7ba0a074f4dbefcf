"""ListOffsets: first, last or by-time offset of each partition.

v2 adds the isolation level: for read_committed the last offset is the last stable one, and nothing behind it is found.
v4 adds leader-epoch checks (KIP-320), v7 the record with the largest timestamp (-3), v8 the earliest local (-4) and v9
the last tiered offset (-5): without tiered storage all is local and nothing tiered, which is answered as Kafka does. By
time looks up the sparse indexes, scans one gap, and looks through one batch. A batch that claims a time which none of
its records has is answered as it claims, with its first offset: to look further could take for ever.
"""

from functools import partial

from penstock.base.errors import ErrorCode, Refused
from penstock.base.steps import Steps, run_now
from penstock.base.types import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP, Offset
from penstock.partition.partition import Partition
from penstock.server.api import ApiKey, RequestHeader, handler
from penstock.server.context import Context
from penstock.storage.disk_read import with_disk
from penstock.storage.log import TimestampOffset
from penstock.wire.batch import HEADER_BYTES, BatchHeader, CorruptBatch, read_header
from penstock.wire.codec import Struct
from penstock.wire.compression import Codec, TooLarge
from penstock.wire.record_walk import SLICE_COUNT, FoundRecord, find_record, plain_records

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

ISOLATION_VERSION = 2
READ_COMMITTED = 1

NOTHING = TimestampOffset(NO_TIMESTAMP, NO_OFFSET, NO_EPOCH)


@handler(ApiKey.LIST_OFFSETS, versions=range(1, 12))
async def list_offsets(context: Context, header: RequestHeader, request: Struct) -> Struct:
    only_stable = header.version >= ISOLATION_VERSION and request.isolation_level == READ_COMMITTED
    seen: set[tuple[str, int]] = set()
    repeated = set()
    for topic in request.topics:
        for item in topic.partitions:
            key = (topic.name, item.partition_index)
            if key in seen:
                repeated.add(key)
            seen.add(key)
    return Struct(
        topics=[
            Struct(
                name=topic.name,
                partitions=[
                    await _list_partition(
                        context,
                        topic.name,
                        item,
                        is_repeated=(topic.name, item.partition_index) in repeated,
                        only_stable=only_stable,
                    )
                    for item in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


async def _list_partition(
    context: Context, topic: str, item: Struct, *, is_repeated: bool, only_stable: bool
) -> Struct:
    try:
        if is_repeated:
            raise Refused(ErrorCode.invalid_request, "the partition is asked for twice")
        partition = context.partitions.leader(topic, item.partition_index)
        partition.check_epoch(item.current_leader_epoch)
        found = await _look_up(context, partition, item.timestamp, only_stable)
        code = ErrorCode.none
    except Refused as refused:
        found, code = NOTHING, refused.code
    except (CorruptBatch, TooLarge):
        found, code = NOTHING, ErrorCode.corrupt_message
    except OSError:
        found, code = NOTHING, ErrorCode.kafka_storage_error
    return Struct(
        partition_index=item.partition_index,
        error_code=code,
        timestamp=found.timestamp,
        offset=found.offset,
        leader_epoch=found.leader_epoch,
    )


async def _look_up(context: Context, partition: Partition, timestamp: int, only_stable: bool) -> TimestampOffset:
    end = partition.last_stable_offset if only_stable else partition.high_watermark
    if timestamp == LATEST:
        partition.check_settled()
        return TimestampOffset(NO_TIMESTAMP, end, partition.leader_epoch)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return TimestampOffset(NO_TIMESTAMP, partition.log_start, partition.epoch_at(partition.log_start))
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return NOTHING
    if timestamp == MAX_TIMESTAMP:
        largest = await with_disk(context.fs, lambda: partition.log.max_timestamp)
        return (
            NOTHING if largest == NO_TIMESTAMP else await _by_time(context, partition, largest, partition.log.log_end)
        )
    partition.check_settled()
    if timestamp < 0:
        raise Refused(ErrorCode.unsupported_version, f"timestamp {timestamp} has no meaning")
    return await _by_time(context, partition, timestamp, end)


async def _by_time(context: Context, partition: Partition, timestamp: int, end: Offset) -> TimestampOffset:
    """The first record below `end` with `timestamp` or a later one."""
    log, start = partition.log, partition.log_start
    while True:
        batch = await with_disk(context.fs, partial(log.batch_for_timestamp, timestamp, start, end))
        if batch is None:
            return NOTHING
        header = read_header(batch)
        steps = _find(header, memoryview(batch), timestamp, start, end, partition.decompressed_bytes_max)
        is_short = header.codec == Codec.NONE and header.records_count <= SLICE_COUNT
        found = run_now(steps) if is_short else await context.record_work.run(steps)
        if found is not None:
            return TimestampOffset(found.timestamp, Offset(found.offset), header.partition_leader_epoch)
        if header.base_offset >= start:
            return TimestampOffset(header.max_timestamp, Offset(header.base_offset), header.partition_leader_epoch)
        start = Offset(header.next_offset)  # What it claims lies below the start of the log.


def _find(
    header: BatchHeader, batch: memoryview, timestamp: int, start: Offset, end: Offset, decompressed_bytes_max: int
) -> Steps[FoundRecord | None]:
    data = yield from plain_records(header, batch[HEADER_BYTES:], decompressed_bytes_max)
    return (yield from find_record(header, data, timestamp=timestamp, start=start, end=end))
