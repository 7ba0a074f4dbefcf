"""All logs of one data directory: opening, checkpoints, retention, deletion, and what happens when the disk fails.

meta.properties                    which node and cluster the data belongs to
recovery-point-offset-checkpoint   per partition, below what everything has been synced
log-start-offset-checkpoint        per partition, where the log begins
replication-offset-checkpoint      per partition with other replicas, a high watermark that it had
cleaner-offset-checkpoint          per compacted partition, below what no key is there twice (cleaner.py)
.kafka_cleanshutdown               there after a clean stop: which directories need no recovery scan
.penstock_sync_failed              there after a failed sync: what the page cache holds may be on no disk
penstock.journal                   the newest records of many logs, unless the stop was clean (journal.py)
<topic>-<partition>/               one log (format.py)
"""

import asyncio
import errno
import itertools
from collections.abc import Callable, Collection, Coroutine, Iterable
from random import Random, SystemRandom
from typing import NamedTuple
from uuid import UUID

from penstock.base.clock import Clock
from penstock.base.config import BrokerConfig
from penstock.base.errors import ErrorCode, Refused
from penstock.base.logging import get_logger
from penstock.base.topic_config import TopicConfig
from penstock.base.types import Offset, TopicPartition
from penstock.storage.checkpoint import read_offsets
from penstock.storage.cleaner import Cleaner, CleanerHost
from penstock.storage.directory_marks import DirectoryMarks
from penstock.storage.format import (
    CLEANER_CHECKPOINT,
    JOURNAL,
    PARTITION_METADATA,
    parse_partition_directory,
    partition_directory,
)
from penstock.storage.fs import FileSystem
from penstock.storage.group_commit import GroupCommit
from penstock.storage.journal import Journal
from penstock.storage.journal_format import LogKey
from penstock.storage.journal_replay import JournalReplay
from penstock.storage.limits import SegmentLimits
from penstock.storage.log import Log
from penstock.storage.offset_checkpoints import OffsetCheckpoints
from penstock.storage.partition_metadata import encode_topic_id, read_topic_id
from penstock.storage.recovery import Recovery, SyncFailed, open_log, sync_dir
from penstock.storage.retention import JumpGuard, SegmentAge, expired_count

log = get_logger(__name__)

DELETE_MARK = "-delete"  # Directories of deleted partitions, on their way out.
STRAY_MARK = "-stray"  # Directories whose topic id is not the one that is due; kept for the operator.
CHECKPOINT_INTERVAL_S = 1.0  # What a start after kill -9 has to scan where each record is synced: a second's worth.
CLEANING_POLL_S = 0.01
YIELD_EVERY_LOGS = 64  # Background passes over 10,000 logs let requests through this often.


class LogDirDescription(NamedTuple):
    path: str
    error: ErrorCode
    total_bytes: int
    usable_bytes: int
    partitions: Iterable[tuple[TopicPartition, int]]


class LogManager:
    def __init__(
        self,
        *,
        config: BrokerConfig,
        fs: FileSystem,
        clock: Clock,
        files_max: int = 1000,
        random: Random | None = None,
    ) -> None:
        self.data_dir = config.data_dir
        self.logs: dict[TopicPartition, Log] = {}
        self.damaged: dict[TopicPartition, list[str]] = {}  # What recovery found unsound of records that were promised.
        self.offline: str | None = None  # Why the directory takes no more writes.
        self.on_offline: Callable[[], None] = lambda: None
        self.high_watermark_of: Callable[[TopicPartition], Offset] = lambda tp: self.logs[tp].synced_end
        self.last_stable_offset_of: Callable[[TopicPartition], Offset] = lambda tp: self.high_watermark_of(tp)
        # Of partitions with other replicas, to be found again after a restart.
        self.replicated_high_watermarks: Callable[[], dict[TopicPartition, Offset]] = dict
        self._fs = fs
        self._journal: Journal | None = None
        if config.penstock_journal_bytes:
            self._journal = Journal(
                fs=fs,
                path=self._path(JOURNAL),
                size=config.penstock_journal_bytes,
                files_max=files_max,
                random=random or SystemRandom(),
            )
        self._replay = JournalReplay(fs, self._path(JOURNAL))
        self.commit = GroupCommit(on_failure=self._on_sync_failed, journal=self._journal)
        self._clock = clock
        self._retention_interval_s = config.log_retention_check_interval_ms / 1000
        self._sync_interval_s = config.log_flush_offset_checkpoint_interval_ms / 1000
        self._cleaner_enable = config.log_cleaner_enable
        self._limits = SegmentLimits(files_max=files_max)
        self._marks = DirectoryMarks(fs, self.data_dir)
        self._checkpoints = OffsetCheckpoints(fs=fs, data_dir=self.data_dir)
        self._topic_ids: dict[TopicPartition, UUID] = {}
        self._jump_guard = JumpGuard()
        self._tasks: list[asyncio.Task[None]] = []
        self._removals: set[asyncio.TimerHandle] = set()
        self._deletions = itertools.count(1)  # A start leaves no directory of deleted ones.
        self.cleaner = Cleaner(
            fs=fs,
            clock=clock,
            host=CleanerHost(
                logs=self.logs,
                last_stable_offset_of=lambda tp: self.last_stable_offset_of(tp),
                secure=self._secure,
                remove_later=self.remove_later,
                take_offline=self.take_offline,
            ),
            checkpoint_path=self._path(CLEANER_CHECKPOINT),
            backoff_ms=config.log_cleaner_backoff_ms,
            decompressed_bytes_max=config.max_decompressed_message_bytes,
        )

    # Start and stop

    def start(self) -> None:
        """Read the directory's checkpoints and clear away what was being deleted."""
        fs = self._fs
        self._make_data_dir()
        self._checkpoints.load()
        self.cleaner.cleaned_to = read_offsets(fs, self._path(CLEANER_CHECKPOINT)) or {}
        if self._marks.load():
            self._replay.set_aside("it is not of the last life, which has ended in order: that was an older version's")
        else:
            self._replay.load()
        names = fs.listdir(self.data_dir)
        self._marks.begin(names)
        # Also for the directories that a killed broker had just made: new records in them rely on their names.
        fs.sync_dir(self.data_dir)
        for name in names:
            if name.endswith(DELETE_MARK):
                fs.remove_tree(self._path(name))

    def _make_data_dir(self) -> None:
        missing = []
        path = self.data_dir
        while path and not self._fs.exists(path):
            missing.append(path)
            path = path.rstrip("/").rpartition("/")[0]
        self._fs.mkdir(self.data_dir)
        for path in reversed(missing):
            self._fs.sync_dir(path.rstrip("/").rpartition("/")[0] or ("/" if path.startswith("/") else "."))

    def end_replay(self, unopened: Iterable[LogKey]) -> None:
        """All logs have been opened but these: the last life's journal is needed no more.

        OSError when it is. A log that cannot be opened now may be shortened later, when nobody remembers the journal.
        """
        opened = {partition_log.key for partition_log in self.logs.values()}
        damaged = [key for key in self._replay.left if key in opened]
        closed = [key for key in self._replay.left if key not in opened]
        here = self._with_directories(closed)
        lacking = [key for key in closed if self._may_lack(key, here.get(key))]
        if shut := next((key for key in unopened if key in lacking), None):
            raise OSError(
                f"partition {shut.partition} of topic {shut.topic_id} cannot be opened, for the reason above, and its"
                " newest records are in the journal alone. Mend that, on a full disk by making room, and start again"
            )  # Without a number, for which there are words of the system's.
        unasked = {key: here[key] for key in lacking if key in here}
        if damaged or unasked:
            # Up to where they had been: a start without the journal has to miss it, too.
            for key, topic_partition in unasked.items():
                self._checkpoints.raise_recovery_point(topic_partition, self._replay.span_of(key).filed_end)
            self._checkpoints.store_now()
            self._replay.set_aside(f"it has records of logs that are damaged, {damaged}, or not ours, {list(unasked)}")
        self._replay.end()
        self.commit.allow_journal()

    def _with_directories(self, closed: Collection[LogKey]) -> dict[LogKey, TopicPartition]:
        """Those of these logs that are here still, whatever has become of their partitions."""
        found: dict[LogKey, TopicPartition] = {}
        for name in self._fs.listdir(self.data_dir) if closed else ():
            topic_partition = parse_partition_directory(name)
            if topic_partition is None or topic_partition in self.logs:
                continue
            topic_id = read_topic_id(self._fs, self._path(name))
            if topic_id is not None and (key := LogKey(topic_id, topic_partition.partition)) in closed:
                found[key] = topic_partition
        return found

    def _may_lack(self, key: LogKey, topic_partition: TopicPartition | None) -> bool:
        """Whether the log's own file may lack what the journal has of it.

        Below the recovery point it had that, and what is missing there now is a loss that no journal would mend.
        """
        synced = None if topic_partition is None else self._checkpoints.recovery_point(topic_partition)
        return synced is None or synced < self._replay.span_of(key).end

    def start_loops(self) -> None:
        loop = asyncio.get_running_loop()
        # A clock that is set right in the first minutes must not look like the passing of years.
        self._jump_guard.has_jumped(self._clock.now_ms(), self._clock.monotonic())
        self._tasks += [
            loop.create_task(self._checkpoint_loop(), name="checkpoint"),
            loop.create_task(self._retention_loop(), name="retention"),
        ]
        if self._cleaner_enable:
            self._tasks.append(loop.create_task(self.cleaner.run(), name="cleaner"))

    async def stop(self) -> None:
        """Sync everything, note how far, and mark the stop as clean for all that was."""
        self.commit.forbid_journal()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for handle in self._removals:
            handle.cancel()
        await self.commit.finish()
        for partition_log in self.logs.values():
            if self.offline is None and partition_log.failure is None:
                self.commit.request(partition_log, is_filed=True)
        await self.commit.finish()
        if self.offline is None:
            await self._store_clean_stop()
        for partition_log in self.logs.values():
            partition_log.close()

    async def _store_clean_stop(self) -> None:
        try:
            await self.checkpoint()
            await self.commit.drop_journal()
            if self._journal is not None and self._journal.file is not None:
                return  # A log has failed whose records are in there.
            is_damaged = any(partition_log.failure is not None for partition_log in self.logs.values())
            if not is_damaged:
                self._marks.vouch(self._synced_directories())
        except OSError as error:
            log.error("the stop could not be marked as clean: the next start has to look closer", error=error)

    def _synced_directories(self) -> set[str]:
        return {
            partition_directory(topic_partition)
            for topic_partition, partition_log in self.logs.items()
            if partition_log.filed_end == partition_log.log_end and not partition_log.is_cutting
        }

    # Logs

    def open(self, topic_partition: TopicPartition, topic_id: UUID, config: TopicConfig) -> Log:
        """The partition's log, recovered if need be, new if there was none."""
        name = partition_directory(topic_partition)
        directory = self._path(name)
        key = LogKey(topic_id, topic_partition.partition)
        if self._journal is not None and self._journal.is_void_due(key):
            # A start would take the records of the one before for ours.
            self._run(self._forget(key))
            raise OSError(errno.EAGAIN, "the journal has not yet forgotten the partition that was here before")
        found_id = read_topic_id(self._fs, directory)
        if found_id is not None and found_id != topic_id:
            self._move_stray(topic_partition, found_id, directory)
            found_id = None
        if found_id is None and not self._fs.exists(directory):
            self._checkpoints.begin(topic_partition)
            self.cleaner.forget(topic_partition)
            if self._replay.disown(key):
                raise OSError(errno.EAGAIN, "the last life's journal has records of the partition that was here before")
        partition_log = Log(
            topic_partition=topic_partition,
            directory=directory,
            fs=self._fs,
            clock=self._clock,
            config=config,
            limits=self._limits,
        )
        partition_log.key = key
        marks = self._marks
        clean, is_untouched = marks.is_clean(name), marks.is_untouched(name)
        marks.touch(name)
        try:
            if found_id is not None and not is_untouched:
                # Left by a log of this life, which could not be moved away perhaps. Not even its name need be on disk.
                sync_dir(self._fs, self.data_dir)
            recovery = self._recover(partition_log, key, clean=clean)
        except SyncFailed:
            marks.distrust_all()
            raise
        if found_id is None:
            partition_log.note_new_entry(self.data_dir)
            partition_log.put_side_file(PARTITION_METADATA, encode_topic_id(topic_id))
        elif not clean:
            # Read from the page cache, perhaps: who has made the partition may have been killed before its first sync.
            partition_log.note_found_file(PARTITION_METADATA)
        if recovery.damaged:
            self.damaged[topic_partition] = recovery.damaged
        if recovery.bytes_scanned and not clean:
            log.info("log recovered", partition=topic_partition, scanned=recovery.bytes_scanned, cut=recovery.bytes_cut)
        if self.offline is not None:
            partition_log.fail(self.offline)
        partition_log.sync_due_s = self._clock.monotonic() + self._sync_interval_s
        self.logs[topic_partition] = partition_log
        self._topic_ids[topic_partition] = topic_id
        return partition_log

    def _recover(self, partition_log: Log, key: LogKey, *, clean: bool) -> Recovery:
        """Find out what the log's own files hold, then add what only the journal has."""
        journal_span = self._replay.span_of(key)
        self._checkpoints.raise_recovery_point(partition_log.topic_partition, journal_span[0])
        recovery = open_log(
            partition_log,
            self._fs,
            recovery_point=self._checkpoints.recovery_point(partition_log.topic_partition),
            log_start=self._checkpoints.log_start(partition_log.topic_partition),
            clean=clean,
            distrust_cache=self._marks.is_distrusted(partition_directory(partition_log.topic_partition)),
            journal_span=journal_span,
        )
        if partition_log.failure is None:
            try:
                self._replay.apply(partition_log)
            except OSError:
                partition_log.close()
                raise
        return recovery

    def _move_stray(self, topic_partition: TopicPartition, found: UUID, directory: str) -> None:
        """Set aside a directory that belongs to another topic of the same name."""
        target = self._path(f"{found.hex}-{topic_partition.partition}{STRAY_MARK}")
        log.error("data of another topic id set aside", partition=topic_partition, found=found, moved_to=target)
        self._fs.rename(directory, target)

    def delete(self, topic_partition: TopicPartition) -> None:
        """Take the log out of service at once; its files go in the background."""
        partition_log = self.logs.pop(topic_partition)
        partition_log.is_deleted = True
        partition_log.fail("the topic was deleted")
        topic_id = self._topic_ids.pop(topic_partition)
        if self._journal is not None:
            self._journal.on_gone(partition_log)
        self.damaged.pop(topic_partition, None)
        self._checkpoints.remove(topic_partition)
        self.cleaner.forget(topic_partition)
        # Numbered: a partition that goes, comes back and goes again finds what is left of the first time. The form is
        # Kafka's, which does not start beside another one.
        name = f"{topic_id.hex}-{topic_partition.partition}.{next(self._deletions)}{DELETE_MARK}"
        try:
            partition_log.move(self._path(name))
        except OSError as error:
            # It stays where it is; a new topic of that name has another id, and sets it aside.
            log.error("deleted partition could not be moved away", partition=topic_partition, error=error)
            return
        self._run(self._remove_directory(partition_log))

    def _run(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.append(task)
        task.add_done_callback(self._tasks.remove)

    async def _forget(self, key: LogKey) -> None:
        """Have the journal say that a log is gone."""
        try:
            await self.commit.void(key, is_gone=True)
        except OSError as error:
            log.error("the journal cannot forget a partition that is gone, and may not come back", log=key, error=error)

    async def _remove_directory(self, partition_log: Log) -> None:
        # A sync under way holds descriptors: closed before it ends, their numbers could go to another file.
        await self.commit.finish(partition_log)
        partition_log.close()
        path = partition_log.directory
        if partition_log.key is not None:
            await self._forget(partition_log.key)
        try:
            await self._fs.run(lambda: self._fs.remove_tree(path))
        except OSError as error:
            log.error("deleted partition could not be removed; the next start tries again", path=path, error=error)

    def describe(self) -> LogDirDescription:
        error = ErrorCode.none if self.offline is None else ErrorCode.kafka_storage_error
        total, usable = self._fs.free_bytes(self.data_dir)
        partitions = [(tp, partition_log.size) for tp, partition_log in self.logs.items()]
        return LogDirDescription(self.data_dir, error, total, usable, partitions)

    def _path(self, name: str) -> str:
        return f"{self.data_dir}/{name}"

    # Failure

    def _on_sync_failed(self, whose: str, error: OSError) -> None:
        self.take_offline(f"sync of {whose} failed: {error}")

    def take_offline(self, reason: str) -> None:
        """No append and no ack from now on: what the disk holds cannot be known (fsyncgate). Reads go on."""
        if self.offline is None:
            self.offline = reason
            log.error("data directory is offline for writes until the broker restarts", path=self.data_dir, why=reason)
            self._marks.on_sync_failed()
            for partition_log in self.logs.values():
                partition_log.fail(reason)
            self.on_offline()

    # Checkpoints

    async def _checkpoint_loop(self) -> None:
        while True:
            await asyncio.sleep(CHECKPOINT_INTERVAL_S)
            if self.offline is None:
                try:
                    await self.checkpoint()
                except OSError as error:
                    # A full disk: the old checkpoint stands, and recovery would only scan more.
                    log.warning("checkpoint could not be written", error=error)

    async def checkpoint(self) -> None:
        """Note how far each log is synced and where it begins, if that has changed."""
        self._limits.close_surplus()
        checkpoints = self._checkpoints
        now_s = self._clock.monotonic()
        for count, (topic_partition, partition_log) in enumerate(list(self.logs.items()), start=1):
            if count % YIELD_EVERY_LOGS == 0:
                await asyncio.sleep(0)
            if self.logs.get(topic_partition) is not partition_log:
                continue  # Deleted meanwhile.
            # Where records are not synced one by one, this bounds what stays open, and what a start has to scan.
            if partition_log.needs_flush and now_s >= partition_log.sync_due_s:
                partition_log.sync_due_s = now_s + self._sync_interval_s
                self.commit.request(partition_log)
            elif partition_log.has_side_files:
                self.commit.request(partition_log, is_whole=False)
            is_noted = checkpoints.recovery_points.get(topic_partition) == partition_log.filed_end
            if not is_noted and partition_log.failure is None:
                partition_log.store_indexes()
                partition_log.recovery_point = partition_log.filed_end
                checkpoints.recovery_points[topic_partition] = partition_log.filed_end
            if not partition_log.is_cutting:  # That has noted where the log can begin, whatever comes of it.
                checkpoints.log_starts[topic_partition] = _start_to_note(partition_log)
        checkpoints.high_watermarks.update(self.replicated_high_watermarks())
        await checkpoints.store()

    def noted_high_watermark(self, topic_partition: TopicPartition) -> Offset:
        """A high watermark that the partition had before this start, if it has other replicas; else 0."""
        return self._checkpoints.high_watermarks.get(topic_partition, Offset(0))

    async def truncate(self, partition_log: Log, offset: Offset) -> None:
        """Cut a follower's log back to `offset`, for good, before it is written to again.

        First the recovery point goes back: were it to stay beyond the cut, a start after a crash would miss the records
        that were promised up to there, or believe what has come in their place since. At last the cut is synced: were
        the old end to come back, it would stand behind a history that no longer knows of it.
        """
        if offset < partition_log.log_end:
            await self._shorten(partition_log, offset, partition_log.truncate)
            log.info("log truncated", partition=partition_log.topic_partition, log_end=offset)

    async def start_over(self, partition_log: Log, log_start: Offset) -> None:
        """Drop all of a follower's log and begin at `log_start`, beyond its end."""
        assert log_start > partition_log.log_end, f"{log_start=} {partition_log.log_end=}"
        await self._shorten(partition_log, Offset(0), lambda _: partition_log.start_over(log_start))
        log.warning("log begins anew: its leader has nothing older", partition=partition_log.topic_partition,
                    log_start=log_start)  # fmt: skip

    async def _shorten(self, partition_log: Log, offset: Offset, shorten: Callable[[Offset], list[str]]) -> None:
        """Do what takes away everything from `offset` on, between moving the recovery point and a sync.

        OSError: nothing has been taken away, or the log has failed.
        """
        partition_log.is_cutting = True
        try:
            # Cleaning reads segments that are about to go. It is seldom under way, so nobody keeps an event for it.
            while partition_log.is_cleaning:  # noqa: ASYNC110
                await asyncio.sleep(CLEANING_POLL_S)
            await self._shorten_uncleaned(partition_log, offset, shorten)
        finally:
            partition_log.is_cutting = False

    async def _shorten_uncleaned(
        self, partition_log: Log, offset: Offset, shorten: Callable[[Offset], list[str]]
    ) -> None:
        """The same, of a log that nobody cleans meanwhile."""
        # Also without new records: a tail that the start has cut off may wait for its sync.
        self.commit.request(partition_log, is_filed=True)
        await self.commit.finish(partition_log)
        _check_sound(partition_log)
        partition_log.flush_in_flight = True  # Nobody syncs it, deletes of it or appends to it meanwhile.
        try:
            if partition_log.key is not None:
                await self._void(partition_log.key)
                _check_sound(partition_log)  # Deleted meanwhile, perhaps, and another is in its place.
            points = self._checkpoints.recovery_points
            # Not up to `offset`: only names that a power cut may take tell a gap that ends there from a loss.
            end = partition_log.end_below(offset)
            partition_log.synced_end = min(partition_log.synced_end, end)
            partition_log.filed_end = min(partition_log.filed_end, end)
            partition_log.recovery_point = min(partition_log.recovery_point, end)
            points[partition_log.topic_partition] = min(points.get(partition_log.topic_partition, end), end)
            starts = self._checkpoints.log_starts
            if 0 < offset < starts.get(partition_log.topic_partition, 0):  # 0: the new beginning is beyond the start.
                starts[partition_log.topic_partition] = offset
            await self._checkpoints.store()
            _check_sound(partition_log)  # As above: the other may be in the same directory even.
            log_end = partition_log.log_end
            try:
                paths = shorten(offset)
            except OSError as error:
                if partition_log.log_end != log_end:
                    partition_log.fail(f"it was cut in part: {error}")  # The next start finds out what is left.
                raise
            self.cleaner.on_truncated(partition_log.topic_partition, offset)
        finally:
            partition_log.flush_in_flight = False
        self.commit.request(partition_log)
        await self.commit.finish(partition_log)
        self.remove_later(paths, partition_log.config.file_delete_delay_ms)

    async def _void(self, key: LogKey) -> None:
        """Return when nothing of what is cut off can come back from the journal."""
        try:
            await self.commit.void(key)
        except OSError as error:
            raise Refused(ErrorCode.kafka_storage_error, str(error)) from error

    async def _secure(self, partition_log: Log, end: Offset) -> None:
        """Return when everything below `end` is synced and the recovery point says so, or the log has failed."""
        # A start may have cut off a torn tail, whose segment is closed since, without a record that asked for a sync.
        if partition_log.filed_end < end or any(segment.is_dirty for segment in partition_log.segments[:-1]):
            self.commit.request(partition_log, is_filed=True)
            await self.commit.finish(partition_log)
        if self._checkpoints.recovery_points.get(partition_log.topic_partition, Offset(0)) < end:
            await self.checkpoint()
        else:
            await self._checkpoints.store()  # It may be known in memory alone.

    # Retention

    async def _retention_loop(self) -> None:
        while True:
            await asyncio.sleep(self._retention_interval_s)
            try:
                await self.apply_retention()
            except Exception:
                log.exception("retention failed; the next pass tries again")

    async def apply_retention(self) -> None:
        """Delete what is too old or too much."""
        now_ms = self._clock.now_ms()
        if self._jump_guard.has_jumped(now_ms, self._clock.monotonic()):
            log.warning("wall clock jumped: retention skips this pass", now_ms=now_ms)
            return
        for count, (topic_partition, partition_log) in enumerate(list(self.logs.items()), start=1):
            if topic_partition in self.logs and partition_log.failure is None:
                try:
                    self._apply_retention(partition_log, now_ms)
                except OSError as error:
                    log.error("retention failed; the next pass tries again", partition=topic_partition, error=error)
            if count % YIELD_EVERY_LOGS == 0:
                await asyncio.sleep(0)

    def _apply_retention(self, partition_log: Log, now_ms: int) -> None:
        high_watermark = self.high_watermark_of(partition_log.topic_partition)
        segments = partition_log.segments
        ends = [segment.base_offset for segment in segments[1:]] + [partition_log.log_end]
        ages = [
            SegmentAge(segment.base_offset, end, segment.size, segment.max_timestamp, segment.created_ms)
            for segment, end in zip(segments, ends, strict=True)
        ]
        count = expired_count(
            ages,
            partition_log.config,
            now_ms=now_ms,
            log_start=partition_log.log_start,
            high_watermark=high_watermark,
        )
        # A segment that is being synced or compacted stays until that is done; the next pass takes it. Of a busy log
        # there is always a sync under way or due, but not of those that have been synced.
        is_syncing = partition_log.flush_in_flight and any(
            segment.is_dirty or segment is partition_log.active for segment in segments[:count]
        )
        if count and not (is_syncing or partition_log.is_cutting or partition_log.is_cleaning):
            paths = partition_log.delete_oldest(count)
            log.info("segments deleted", partition=partition_log.topic_partition, segments=count,
                     log_start=partition_log.log_start)  # fmt: skip
            self.remove_later(paths, partition_log.config.file_delete_delay_ms)

    def remove_later(self, paths: list[str], delay_ms: int) -> None:
        """Remove renamed files once no reader can be in them."""

        def remove() -> None:
            self._removals.discard(handle)
            for path in paths:
                try:
                    self._fs.remove(path)
                except FileNotFoundError:
                    pass  # Its topic was deleted meanwhile.
                except OSError as error:
                    log.error("file could not be removed; the next start tries again", path=path, error=error)

        handle = asyncio.get_running_loop().call_later(delay_ms / 1000, remove)
        self._removals.add(handle)


def _start_to_note(partition_log: Log) -> Offset:
    """Where the log begins, but no further than it is synced: a start would take one that ends before that for damaged.

    Where records are left to the kernel a start expects that, and goes on from where readers last saw the log begin.
    """
    if partition_log.config.durability == "os":
        return partition_log.log_start
    return min(partition_log.log_start, partition_log.synced_end)


def _check_sound(partition_log: Log) -> None:
    if partition_log.failure is not None:
        raise Refused(ErrorCode.kafka_storage_error, partition_log.failure)
