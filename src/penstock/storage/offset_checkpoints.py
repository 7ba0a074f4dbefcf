"""Recovery point, log start and high watermark of every partition: in memory, and in Kafka's files on disk.

A high watermark is one that the partition had once: a leader who starts with a lower one finds out, and nobody may
start with a higher one. So a file of them that is damaged or behind costs a moment and nothing else.
"""

import itertools
import threading

from penstock.base.types import Offset, TopicPartition
from penstock.storage.checkpoint import encode_offsets, read_offsets, write_atomically
from penstock.storage.format import HIGH_WATERMARK_CHECKPOINT, LOG_START_CHECKPOINT, RECOVERY_POINT_CHECKPOINT
from penstock.storage.fs import FileSystem

Contents = dict[str, bytes]  # By file name.


class OffsetCheckpoints:
    def __init__(self, *, fs: FileSystem, data_dir: str) -> None:
        self.recovery_points: dict[TopicPartition, Offset] = {}
        self.log_starts: dict[TopicPartition, Offset] = {}
        self.high_watermarks: dict[TopicPartition, Offset] = {}  # Only where there are other replicas.
        self._fs = fs
        self._data_dir = data_dir
        self._is_readable = True  # False: the recovery points were damaged, and say nothing of any partition.
        self._left: set[TopicPartition] = set()  # Partitions that are gone and may still stand in the files.
        self._numbers = itertools.count(1)
        # Two writers can be at work, one in a thread and one that could not wait: the later content has to win.
        self._lock = threading.Lock()
        self._written: Contents = {}
        self._written_number = 0

    def load(self) -> None:
        recovery_points = read_offsets(self._fs, f"{self._data_dir}/{RECOVERY_POINT_CHECKPOINT}")
        self._is_readable = recovery_points is not None
        self.recovery_points = recovery_points or {}
        self.log_starts = read_offsets(self._fs, f"{self._data_dir}/{LOG_START_CHECKPOINT}") or {}
        self.high_watermarks = read_offsets(self._fs, f"{self._data_dir}/{HIGH_WATERMARK_CHECKPOINT}") or {}

    def recovery_point(self, topic_partition: TopicPartition) -> Offset | None:
        """The partition's; 0 when nothing of it was ever synced, None when that cannot be known."""
        return self.recovery_points.get(topic_partition, Offset(0) if self._is_readable else None)

    def raise_recovery_point(self, topic_partition: TopicPartition, offset: Offset) -> None:
        """The partition has been synced so far at least."""
        known = self.recovery_point(topic_partition)
        if known is not None and known < offset:
            self.recovery_points[topic_partition] = offset

    def log_start(self, topic_partition: TopicPartition) -> Offset:
        return self.log_starts.get(topic_partition, Offset(0))

    async def store(self) -> None:
        """Make what is known now durable."""
        contents, number, left = self._contents(), next(self._numbers), set(self._left)
        # Also if it is what was written last: something else may be on its way by now.
        await self._fs.run(lambda: self._write(contents, number))
        self._left -= left

    def remove(self, topic_partition: TopicPartition) -> None:
        """The partition was deleted."""
        for offsets in (self.recovery_points, self.log_starts, self.high_watermarks):
            if offsets.pop(topic_partition, None) is not None:
                self._left.add(topic_partition)

    def store_now(self) -> None:
        """The same. Waits for the disk."""
        self._write(self._contents(), next(self._numbers))
        self._left.clear()

    def begin(self, topic_partition: TopicPartition) -> None:
        """Drop what a deleted partition of that name left, for good before the new one gets a record."""
        self.remove(topic_partition)
        if topic_partition in self._left:
            self.store_now()

    def _contents(self) -> Contents:
        log_starts = {tp: start for tp, start in self.log_starts.items() if start}
        contents = {
            RECOVERY_POINT_CHECKPOINT: encode_offsets(self.recovery_points),
            LOG_START_CHECKPOINT: encode_offsets(log_starts),
        }
        if self.high_watermarks or HIGH_WATERMARK_CHECKPOINT in self._written:
            contents[HIGH_WATERMARK_CHECKPOINT] = encode_offsets(self.high_watermarks)
        return contents

    def _write(self, contents: Contents, number: int) -> None:
        with self._lock:
            if number < self._written_number:
                return
            for name, content in contents.items():
                if self._written.get(name) != content:
                    write_atomically(self._fs, f"{self._data_dir}/{name}", content)
                    self._written[name] = content
            self._written_number = number
