"""The files of a partition directory, byte for byte Kafka's.

    <topic>-<partition>/
      00000000000000000000.log        record batches, one after another (wire/batch.py draws one)
      00000000000000000000.index      offset index, 8 bytes an entry:  | relative_offset u32 | file_position u32 |
      00000000000000000000.timeindex  time index, 12 bytes an entry:   | timestamp i64 | relative_offset u32 |
      00000000000000000000.txnindex   aborted transactions whose markers are in the segment, 34 bytes an entry:
                                      | version i16 = 0 | producer_id i64 | first_offset i64 | last_offset i64 |
                                      | last_stable_offset i64 |; there, if empty, once the log had a transaction
      00000000000000000000.snapshot   producers as of that offset (partition/producer_snapshot.py)
      leader-epoch-checkpoint         which offset each leader epoch began at
      partition.metadata              the topic id

A segment's name is its base offset; `relative_offset` counts from there. An offset entry names the last offset of the
batch that starts at `file_position`; a time entry names the largest timestamp so far and the last offset of its batch.
All integers are big-endian.
"""

import struct

from penstock.base.types import Offset, TopicPartition

OFFSET_ENTRY = struct.Struct(">II")
TIME_ENTRY = struct.Struct(">qI")
TXN_ENTRY = struct.Struct(">hqqqq")

LOG_SUFFIX = ".log"
OFFSET_INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
SEGMENT_SUFFIXES = (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)

DELETED_SUFFIX = ".deleted"  # Renamed out of the way; removed when no reader can need it, or at the next start.
CLEANED_SUFFIX = ".cleaned"  # Compaction's output while it is being written; removed at the next start.
SWAP_SUFFIX = ".swap"  # Compaction's finished output; the next start completes the swap.

LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"

RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT = "replication-offset-checkpoint"
LOG_START_CHECKPOINT = "log-start-offset-checkpoint"
CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"
CLEAN_SHUTDOWN_MARKER = ".kafka_cleanshutdown"
SYNC_FAILED_MARKER = ".penstock_sync_failed"
JOURNAL = "penstock.journal"
META_PROPERTIES = "meta.properties"

RELATIVE_OFFSET_MAX = 2**31 - 1  # Kafka reads the field as signed.
# What the field can hold. The first batch of a segment that an older version has written may be beyond the other one,
# behind a gap of compaction's.
INDEXED_OFFSET_MAX = 2**32 - 1
SEGMENT_BYTES_MAX = 2**31 - 1


def segment_path(directory: str, base_offset: int, suffix: str) -> str:
    return f"{directory}/{base_offset:020d}{suffix}"


def base_offset_of(name: str) -> Offset | None:
    """The base offset that a segment file's name states; None when it is no segment file."""
    digits, dot, _ = name.partition(".")
    return Offset(int(digits)) if dot and len(digits) == 20 and _is_number(digits) else None


def partition_directory(topic_partition: TopicPartition) -> str:
    return f"{topic_partition.topic}-{topic_partition.partition}"


def parse_partition_directory(name: str) -> TopicPartition | None:
    topic, dash, number = name.rpartition("-")
    return TopicPartition(topic, int(number)) if dash and topic and _is_number(number) else None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()  # There are digits that are no part of a number, as in m².
