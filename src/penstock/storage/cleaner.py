"""The loop that compacts: takes the dirtiest log first, has its segments written anew, and puts those in place.

The work runs beside the event loop in short steps; between two of them the log may have gone. Whatever fails up to the
moment of the swap leaves the log as it was.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from penstock.base.clock import Clock
from penstock.base.config_key import LONG_MAX
from penstock.base.logging import get_logger
from penstock.base.types import NO_TIMESTAMP, Offset, TopicPartition
from penstock.storage.checkpoint import encode_offsets, write_atomically
from penstock.storage.compaction import CleanedSegment, Compaction
from penstock.storage.compaction_plan import Closed, Dirty, dirty_part, groups_of
from penstock.storage.fs import FileSystem
from penstock.storage.log import Log
from penstock.storage.offset_map import ENTRIES_MAX
from penstock.storage.retention import JumpGuard
from penstock.storage.scan import BadBatch
from penstock.storage.segment import Segment
from penstock.storage.swap import carry_out_swap, close_swap, decide_swap, store_sources
from penstock.wire.batch import CorruptBatch
from penstock.wire.compression import TooLarge

log = get_logger(__name__)

T = TypeVar("T")

# A thread that computes holds up the event loop for up to 5 ms (sys.getswitchinterval) at every system call that the
# loop makes. A step takes about 5 ms and is followed by a pause as long: a loop that does nothing but small writes
# keeps two thirds of its rate during a compaction; without pauses it keeps one fifth.
STEP_BYTES = 512 << 10
PAUSE_S_MAX = 0.05


class Abandoned(Exception):
    """The log was deleted or has failed: there is nothing to clean any more."""


class CleanerHost(NamedTuple):
    """What the cleaner needs of those who own the logs."""

    logs: Mapping[TopicPartition, Log]
    last_stable_offset_of: Callable[[TopicPartition], Offset]
    # Resolves when everything below an offset is synced and the recovery point is there: above it a gap is a loss.
    secure: Callable[[Log, Offset], Awaitable[None]]
    remove_later: Callable[[list[str], int], None]
    take_offline: Callable[[str], None]


class Cleaner:
    def __init__(
        self,
        *,
        fs: FileSystem,
        clock: Clock,
        host: CleanerHost,
        checkpoint_path: str,
        backoff_ms: int,
        decompressed_bytes_max: int,
        entries_max: int = ENTRIES_MAX,
    ) -> None:
        self.cleaned_to: dict[TopicPartition, Offset] = {}  # First dirty offset of each log that was ever cleaned.
        self.uncleanable: dict[TopicPartition, str] = {}  # Why; until the broker restarts.
        self._fs = fs
        self._clock = clock
        self._host = host
        self._checkpoint_path = checkpoint_path
        self._backoff_s = backoff_ms / 1000
        self._decompressed_bytes_max = decompressed_bytes_max
        self._entries_max = entries_max
        self._jump_guard = JumpGuard()

    async def run(self) -> None:
        """Clean for ever."""
        while True:
            try:
                await self.clean_all()
            except Exception:
                log.exception("compaction failed; it goes on after a pause")
            await asyncio.sleep(self._backoff_s)

    async def clean_all(self) -> None:
        """Clean every log that is dirty enough, the dirtiest first."""
        if self._jump_guard.has_jumped(self._clock.now_ms(), self._clock.monotonic()):
            log.warning("wall clock jumped: compaction skips this pass")  # Tombstones would go too early.
            return
        tried: set[TopicPartition] = set()
        while (found := self._dirtiest(tried)) is not None:
            partition_log, dirty = found
            # A pass that ends early, with its memory full, leaves the log dirty: it takes its turn again.
            if not await self._try_clean(partition_log, dirty):
                tried.add(partition_log.topic_partition)

    def forget(self, topic_partition: TopicPartition) -> None:
        """The partition was deleted."""
        self.cleaned_to.pop(topic_partition, None)
        self.uncleanable.pop(topic_partition, None)

    def on_truncated(self, topic_partition: TopicPartition, log_end: Offset) -> None:
        """What comes from here on has not been looked at."""
        if self.cleaned_to.get(topic_partition, log_end) > log_end:
            self.cleaned_to[topic_partition] = log_end

    # Choosing

    def _dirtiest(self, but_not: set[TopicPartition]) -> tuple[Log, Dirty] | None:
        due: list[tuple[Log, Dirty]] = []
        for topic_partition, partition_log in self._host.logs.items():
            is_free = partition_log.failure is None and not partition_log.is_cutting
            is_candidate = partition_log.config.is_compacted and is_free
            if is_candidate and topic_partition not in but_not and topic_partition not in self.uncleanable:
                dirty = self._dirty(partition_log)
                if dirty.is_due(partition_log.config):
                    due.append((partition_log, dirty))
        return max(due, key=lambda item: (item[1].is_overdue, item[1].ratio), default=None)

    def _dirty(self, partition_log: Log) -> Dirty:
        topic_partition = partition_log.topic_partition
        return dirty_part(
            [closed for closed, _ in _closed_segments(partition_log)],
            partition_log.config,
            cleaned_to=self.cleaned_to.get(topic_partition),
            log_start=partition_log.log_start,
            limit=self._host.last_stable_offset_of(topic_partition),
            now_ms=self._clock.now_ms(),
        )

    # Cleaning

    async def _try_clean(self, partition_log: Log, dirty: Dirty) -> bool:
        """Clean one log as far as one pass reaches; gives whether it worked."""
        partition_log.is_cleaning = True
        try:
            await self._clean(partition_log, dirty)
        except Abandoned:
            return False
        except (BadBatch, CorruptBatch, TooLarge) as error:
            if partition_log.is_deleted:
                return False  # What was read may be of the topic that has its name now.
            self.uncleanable[partition_log.topic_partition] = str(error)
            log.error("log cannot be compacted", partition=partition_log.topic_partition, reason=error)
            return False
        except OSError as error:
            if not partition_log.is_deleted:
                log.error("compaction failed; tried again later", partition=partition_log.topic_partition, error=error)
            return False
        finally:
            partition_log.is_cleaning = False
        return True

    async def _clean(self, partition_log: Log, dirty: Dirty) -> None:
        await self._host.secure(partition_log, dirty.end)
        _check_alive(partition_log)
        segments = {closed: of for closed, of in _closed_segments(partition_log) if closed.base_offset < dirty.end}
        bytes_before = sum(closed.size for closed in segments)
        aborted = None
        if partition_log.has_transactions:
            aborted = partition_log.aborted(partition_log.segments[0].base_offset, dirty.end)
        compaction = Compaction(
            fs=self._fs,
            directory=partition_log.directory,
            segments=list(segments),
            first_dirty=dirty.first_dirty,
            end=dirty.end,
            config=partition_log.config,
            now_ms=self._clock.now_ms(),
            decompressed_bytes_max=self._decompressed_bytes_max,
            entries_max=self._entries_max,
            aborted=aborted,
        )
        await self._drive(compaction.learn(), partition_log)
        bytes_after = 0
        reached = [closed for closed in segments if closed.base_offset < compaction.end]
        for group in groups_of(reached, partition_log.config):
            cleaned = await self._drive(compaction.write(group), partition_log)
            await self._swap(partition_log, cleaned, [segments[closed] for closed in group])
            bytes_after += cleaned.size
        _check_alive(partition_log)
        await self._store_cleaned_to(partition_log.topic_partition, compaction.end)
        log.info("log compacted", partition=partition_log.topic_partition, cleaned_to=compaction.end,
                 bytes_before=bytes_before, bytes_after=bytes_after)  # fmt: skip

    async def _drive(self, work: Generator[int, None, T], partition_log: Log) -> T:
        """What `work` returns, done in steps away from the event loop."""
        try:
            while True:
                begun = self._clock.monotonic()
                finished: Finished[T] | None = await self._fs.run(lambda: _step(work))
                _check_alive(partition_log)
                if finished is not None:
                    return finished.result
                await asyncio.sleep(min(self._clock.monotonic() - begun, PAUSE_S_MAX))
        finally:
            # A step that a cancelled task left behind is still running; then the generator ends when it is collected.
            with contextlib.suppress(ValueError):
                work.close()

    async def _swap(self, partition_log: Log, cleaned: CleanedSegment, old: Sequence[Segment]) -> None:
        fs, directory, base = self._fs, partition_log.directory, cleaned.base_offset
        sources = [int(segment.base_offset) for segment in old]
        await fs.run(lambda: store_sources(fs, directory, base, sources))
        _check_alive(partition_log)
        decide_swap(fs, directory, base)
        try:
            await fs.run(lambda: fs.sync_dir(directory))
            _check_alive(partition_log)
            self._put_in_place(partition_log, cleaned, list(old))
            await fs.run(lambda: close_swap(fs, directory, base))
        except OSError as error:
            _check_alive(partition_log)
            # Half of it is done, and the next start does the rest. Until then the names on disk are not what they seem.
            self._host.take_offline(f"compaction of {partition_log.topic_partition} could not swap segments: {error}")
            raise

    def _put_in_place(self, partition_log: Log, cleaned: CleanedSegment, old: list[Segment]) -> None:
        assert not any(segment.is_dirty for segment in old), f"{partition_log.topic_partition}: sources are not synced"
        for segment in old:
            segment.close()
        sources = [int(segment.base_offset) for segment in old]
        paths = carry_out_swap(self._fs, partition_log.directory, cleaned.base_offset, sources)
        new = partition_log.new_segment(cleaned.base_offset, size=cleaned.size, created_ms=old[-1].created_ms)
        partition_log.replace_segments(old, [new])
        self._host.remove_later(paths, partition_log.config.file_delete_delay_ms)

    async def _store_cleaned_to(self, topic_partition: TopicPartition, offset: Offset) -> None:
        self.cleaned_to[topic_partition] = offset
        known = {tp: cleaned_to for tp, cleaned_to in self.cleaned_to.items() if tp in self._host.logs}
        await self._fs.run(lambda: write_atomically(self._fs, self._checkpoint_path, encode_offsets(known)))


class Finished(NamedTuple, Generic[T]):
    result: T


def _step(work: Generator[int, None, T]) -> Finished[T] | None:
    """Do about `STEP_BYTES` more of the work; None when there is more to do."""
    done_bytes = 0
    try:
        while done_bytes < STEP_BYTES:
            done_bytes += next(work)
    except StopIteration as stop:
        return Finished(stop.value)
    return None


def _check_alive(partition_log: Log) -> None:
    if partition_log.is_deleted or partition_log.failure is not None:
        raise Abandoned(partition_log.failure)


def _closed_segments(partition_log: Log) -> list[tuple[Closed, Segment]]:
    """The closed segments with what compaction must know of them; timestamps only where a lag is set."""
    config = partition_log.config
    ends = [segment.base_offset for segment in partition_log.segments[1:]]
    return [
        (
            Closed(
                segment.base_offset,
                end,
                segment.size,
                NO_TIMESTAMP if config.max_compaction_lag_ms == LONG_MAX else segment.oldest_timestamp(),
                NO_TIMESTAMP if config.min_compaction_lag_ms == 0 else segment.max_timestamp,
            ),
            segment,
        )
        for segment, end in zip(partition_log.segments, ends, strict=False)
    ]
