"""One sync for all who wait: while a sync is under way, appends gather for the next one.

A lone producer waits for one sync; a thousand wait for at most two. No timer is needed: the disk sets the pace.

Logs with little to sync are synced in rounds: those that get records during one wait for the next. So each gathers more
for its sync, and a file system that syncs several files at a time, as those with a journal do, has them together. A log
with more to sync waits for nobody, and nobody waits for it.

With a journal, what is appended to many logs, little to each, is written there and shares one sync. A log with more to
sync, or with more than its records (a new file, an index), is synced by itself, as all are without a journal.
"""

import asyncio
import errno
from collections.abc import Callable, Coroutine, Sequence
from functools import partial

from penstock.base.logging import get_logger
from penstock.storage.flush import Flush, Journaled
from penstock.storage.journal import ENTRY_BYTES_MAX, Journal, Unwritten, is_piece
from penstock.storage.journal_format import NOWHERE, RECORDS, VOID, LogKey, Piece
from penstock.storage.log import Log

log = get_logger(__name__)

# Said to be void by one entry, or a large topic that is deleted, or a failover that has many followers' logs cut, would
# hold up all others by as many syncs.
VOIDS_MAX = 256

# Of a log that is synced in a round: up to here a sync takes the same time, whatever it is of.
ROUND_BYTES_MAX = 32 << 10


class GroupCommit:
    def __init__(self, *, on_failure: Callable[[str, OSError], None], journal: Journal | None = None) -> None:
        """`on_failure` is told what could not be synced."""
        self._on_failure = on_failure
        # Who sees to each log that has a sync under way or due.
        self._tasks: dict[Log, asyncio.Future[None]] = {}
        self._round = 0  # Syncs of this round that have not ended.
        self._is_round_open = False  # None of them has begun: more may join.
        self._next_round: dict[Log, asyncio.Future[None]] = {}  # Done when that begins.
        self._shareable = 0  # Syncs of single logs that a journal could have taken.
        self._journal = journal
        self._may_journal = False  # Nothing of an older journal is needed any more, and none has been made.
        self._gathered: dict[Log, None] = {}  # For the next entry.
        self._entry: asyncio.Task[None] | None = None  # That is being written.
        # One at a time: of two syncs of a file that fails, the kernel may tell one that all is well.
        self._journal_lock = asyncio.Lock()
        self._voiding: asyncio.Task[None] | None = None  # Who writes what is void, while somebody waits for that.
        self._background: set[asyncio.Task[None]] = set()

    def request(self, partition_log: Log, *, is_whole: bool = True, is_filed: bool = False) -> None:
        """See to it that everything appended up to now gets synced, and `on_synced` called.

        Unless `is_whole` without the active segment, which the kernel then writes when it likes. With `is_filed` in the
        log's own file, be it in the journal or not.
        """
        if is_whole:
            partition_log.is_sync_wanted = True
        if is_filed:
            partition_log.is_filing_wanted = True
        if partition_log.flush_in_flight or partition_log.failure is not None:
            return
        self._begin(partition_log)

    async def finish(self, partition_log: Log | None = None) -> None:
        """Wait for the sync of a log that is under way, or for those of all logs."""
        while tasks := [task for of, task in self._tasks.items() if partition_log in (None, of)]:
            await asyncio.wait(tasks)

    def _begin(self, partition_log: Log) -> None:
        partition_log.flush_in_flight = True
        if self._journal is not None and self._journal.takes(partition_log):
            self._gathered[partition_log] = None
            if self._entry is None:
                self._begin_entry(self._journal)
            else:
                self._tasks[partition_log] = self._entry  # It begins the next one, which then sees to this log.
        else:
            self._begin_alone(partition_log)
            if self._journal is not None:
                self._note_unshared(self._journal, partition_log)

    def _tell(self, partition_log: Log, tell: Callable[[], None]) -> None:
        """Tell the log of its sync, and whoever waits for it."""
        try:
            tell()
        except Exception as error:  # A fault of this log's, and of no other's.
            _report(f"{partition_log.topic_partition} was told of its sync", error)
            self._fail_for(partition_log, "it could not be told of its sync", error)
        else:
            self._go_on(partition_log)

    def _go_on(self, partition_log: Log) -> None:
        """Of a log whose sync has ended: begin the next one if somebody waits for it."""
        del self._tasks[partition_log]
        # Not for records that nobody asked it for: where they are left to the kernel, that would have no end.
        is_wanted = partition_log.is_sync_wanted or partition_log.has_side_files
        if is_wanted and partition_log.failure is None:
            self._begin(partition_log)

    def _fail(self, partition_log: Log) -> None:
        self._tasks.pop(partition_log, None)
        partition_log.on_flush_failed()

    def _fail_for(self, partition_log: Log, reason: str, error: Exception) -> None:
        """Fail a log for a fault of ours, for which nobody may wait in vain."""
        partition_log.fail(f"{reason}: {error!r}")
        self._fail(partition_log)

    def _forget(self, partition_log: Log, task: asyncio.Task[None]) -> None:
        """The task has ended, perhaps by an exception, of which the event loop is told: nobody may wait for it."""
        if self._tasks.get(partition_log) is task:  # The log may have asked for its next sync already.
            del self._tasks[partition_log]

    def _forget_all(self, task: asyncio.Task[None]) -> None:
        for partition_log in list(self._tasks):
            self._forget(partition_log, task)

    # A log by itself

    def _begin_alone(self, partition_log: Log) -> None:
        loop = asyncio.get_running_loop()
        # What only the journal has of it is to be synced as well, and may be much.
        is_filed = partition_log.filed_end == partition_log.synced_end
        is_in_round = is_filed and partition_log.unsynced_bytes <= ROUND_BYTES_MAX
        if is_in_round and self._round and not self._is_round_open:
            self._tasks[partition_log] = self._next_round[partition_log] = loop.create_future()
            return
        if is_in_round:
            self._round += 1
            self._is_round_open = True
        task = self._tasks[partition_log] = loop.create_task(self._sync(partition_log, is_in_round))
        task.add_done_callback(lambda _: self._forget(partition_log, task))

    def _begin_next_round(self) -> None:
        waiting, self._next_round = self._next_round, {}
        for partition_log, begun in waiting.items():
            if partition_log.failure is not None:
                self._fail(partition_log)
            else:
                self._begin_alone(partition_log)
            begun.set_result(None)

    async def _carry_out(self, partition_log: Log, is_whole: bool, is_in_round: bool) -> Flush:
        """What has been synced."""
        try:
            if is_in_round:
                self._is_round_open = False
            flush = partition_log.begin_flush(is_whole=is_whole)
            await flush.carry_out()
            return flush
        finally:
            if is_in_round:
                self._round -= 1
                if not self._round:
                    self._begin_next_round()

    async def _sync(self, partition_log: Log, is_in_round: bool) -> None:
        is_whole, partition_log.is_sync_wanted = partition_log.is_sync_wanted, False
        try:
            flush = await self._carry_out(partition_log, is_whole, is_in_round)
        except OSError as error:
            self._fail(partition_log)
            if not partition_log.is_deleted:  # Its directory has moved away, and no one waits for it any more.
                self._on_failure(str(partition_log.topic_partition), error)
            return
        except Exception as error:  # As in `_tell`.
            _report(f"{partition_log.topic_partition} could not be synced", error)
            self._fail_for(partition_log, "it could not be synced", error)
            return
        if partition_log.failure is not None:
            self._fail(partition_log)  # Another sync failed meanwhile: this one's word counts no more.
            return
        if is_whole and self._journal is not None:
            self._journal.on_filed(partition_log)
        self._tell(partition_log, partial(partition_log.on_flushed, flush))

    # All that have little to sync

    def _begin_entry(self, journal: Journal) -> None:
        task = self._entry = asyncio.get_running_loop().create_task(self._write_entry(journal))
        task.add_done_callback(self._forget_all)
        for partition_log in self._gathered:
            self._tasks[partition_log] = task

    async def _write_entry(self, journal: Journal) -> None:
        logs: list[tuple[Log, Journaled]] = []
        try:
            logs, pieces = self._take_gathered(journal)
            if pieces and not await self._append(journal, pieces, [partition_log for partition_log, _ in logs]):
                for partition_log, _ in logs:
                    partition_log.is_sync_wanted = True
                    self._begin_alone(partition_log)
                logs = []
        except OSError as error:
            for partition_log, _ in logs:
                self._fail(partition_log)
            logs = []
            self._on_failure("the journal", error)
        except Exception as error:  # As in `_tell`.
            _report("an entry of the journal could not be written", error)
            logs = []
            self._fail_entry(error)
        finally:
            self._entry = None
            if self._gathered:
                self._begin_entry(journal)
        for partition_log, journaled in logs:
            if partition_log.failure is not None:
                self._fail(partition_log)
                continue
            self._tell(partition_log, partial(partition_log.on_journaled, journaled))

    def _fail_entry(self, error: Exception) -> None:
        """Fail the logs that the entry has not seen to, but for those that wait for the next one."""
        for partition_log in [of for of, task in self._tasks.items() if task is self._entry]:
            if partition_log not in self._gathered:
                self._fail_for(partition_log, "its entry could not be written", error)

    def _take_gathered(self, journal: Journal) -> tuple[list[tuple[Log, Journaled]], list[Piece]]:
        """What the next entry is to hold. Who does not fit is synced alone, or stays for the one after it."""
        gathered, self._gathered = self._gathered, {}
        logs: list[tuple[Log, Journaled]] = []
        pieces: list[Piece] = []
        size = others = 0
        for partition_log in gathered:
            key = partition_log.key
            if partition_log.failure is not None:
                self._fail(partition_log)
            elif key is None or not journal.takes(partition_log, others=others):  # Much has come since.
                self._begin_alone(partition_log)
            elif size >= ENTRY_BYTES_MAX:
                self._gathered[partition_log] = None
            else:
                try:
                    journaled = partition_log.begin_journaling()
                except OSError:
                    self._begin_alone(partition_log)  # That finds out what is wrong.
                    continue
                partition_log.is_sync_wanted = False
                pieces.append(Piece(key, RECORDS, journaled.start, journaled.batches))
                logs.append((partition_log, journaled))
                size += len(journaled.batches)
                others += journal.is_new(partition_log)
        return logs, pieces

    async def _append(self, journal: Journal, pieces: Sequence[Piece], logs: Sequence[Log]) -> bool:
        """Whether the journal has taken them and has them on disk. OSError: what it has cannot be known."""
        async with self._journal_lock:
            return await self._append_next(journal, pieces, logs)

    async def _append_next(self, journal: Journal, pieces: Sequence[Piece], logs: Sequence[Log]) -> bool:
        if journal.file is None:
            return False
        try:
            return await self._write_next(journal, pieces, logs)
        except Unwritten as error:
            # Nothing is lost: each log is synced by itself then.
            log.warning("the journal could not be written to", error=error)
            return False

    async def _write_next(self, journal: Journal, pieces: Sequence[Piece], logs: Sequence[Log]) -> bool:
        if journal.is_unsynced:
            await journal.sync()
        if not journal.fits(pieces) or (logs and journal.is_turn_due):  # What is void needs no place.
            if not journal.may_turn(pieces):
                return False
            self._turn(journal)
            await journal.sync()
        if logs:
            # Of those that have been deleted meanwhile nothing may follow: nobody would declare it void.
            alive = [pair for pair in zip(pieces, logs, strict=True) if not pair[1].is_deleted]
            pieces, logs = [piece for piece, _ in alive], [partition_log for _, partition_log in alive]
        if not pieces:
            return True
        journal.write(pieces, logs)
        await journal.sync()
        return True

    def _turn(self, journal: Journal) -> None:
        owing = journal.turn()
        if owing:
            self._run_in_background(self._file(journal, owing))

    async def _file(self, journal: Journal, logs: Sequence[Log]) -> None:
        """Have the logs' own files synced, one after the other: there is time until the other half is full.

        One that has failed stays in the journal: a start will need that.
        """
        for partition_log in logs:
            end = partition_log.log_end  # A busy log has more in the other half by the time that this is filed.
            if journal.owes(partition_log):
                self.request(partition_log, is_filed=True)
            while (
                journal.owes(partition_log)
                and partition_log.filed_end < end
                and (task := self._tasks.get(partition_log)) is not None
            ):
                await asyncio.wait([task])

    # The journal's life

    def allow_journal(self) -> None:
        """There is no journal of the last life any more."""
        self._may_journal = True

    def forbid_journal(self) -> None:
        """None is made from now on. One that is there stays."""
        self._may_journal = False

    def _note_unshared(self, journal: Journal, partition_log: Log) -> None:
        """A log is synced by itself. Once a journal could have taken enough of those, one is made, or has to turn."""
        is_shareable = partition_log.is_sync_wanted and is_piece(partition_log)
        if journal.file is not None:
            if is_shareable:
                journal.on_turned_away()
        elif self._may_journal:
            if is_shareable:
                self._shareable += 1
            if self._shareable >= journal.syncs_before:
                self._may_journal = False
                self._run_in_background(self._make_journal(journal))

    async def _make_journal(self, journal: Journal) -> None:
        try:
            await journal.open()
        except OSError as error:
            log.warning("there is no journal: each log is synced by itself", error=error)

    async def void(self, key: LogKey, *, is_gone: bool = False) -> None:
        """Return when no start would find anything in the journal that was written of this log before.

        `is_gone`: of one that was deleted; nothing is done if somebody has seen to that. OSError: a start might.
        """
        journal = self._journal
        if journal is None or (is_gone and not journal.is_void_due(key)):
            return  # There may be another log in its place, and its records in the journal.
        waiter = journal.want_void(key)
        if self._voiding is None:
            # Not by one of those that wait: who is cancelled would leave the lock while the sync is under way.
            self._voiding = asyncio.get_running_loop().create_task(self._write_voids(journal))
        error = await waiter
        if error is not None:
            raise error

    async def _write_voids(self, journal: Journal) -> None:
        """Until nobody waits for it."""
        error = OSError(errno.EIO, "the journal does not say what is void")  # The event loop is told why.
        try:
            while journal.is_void_wanted:
                await self._write_next_voids(journal)
        except OSError as failure:
            error = failure
        finally:
            self._voiding = None
            journal.refuse_voids(error)

    async def _write_next_voids(self, journal: Journal) -> None:
        for count_max in (VOIDS_MAX, 1):
            async with self._journal_lock:
                keys = journal.wanted_voids(count_max)
                if not keys or journal.file is None or await self._append_voids(journal, keys):
                    for key in keys:
                        journal.on_void(key)
                    return
            await self._file(journal, journal.owing)  # That makes room.
        log.warning("the journal is given up: it has no room for what is void, and logs have failed that need it")
        await self.drop_journal()
        if journal.file is not None:
            raise OSError(errno.ENOSPC, "the journal has no room, and cannot be removed")

    async def _append_voids(self, journal: Journal, keys: Sequence[LogKey]) -> bool:
        try:
            return await self._append_next(journal, [Piece(key, VOID, NOWHERE, b"") for key in keys], ())
        except OSError as error:
            self._on_failure("the journal", error)
            raise

    async def drop_journal(self) -> None:
        """Have all that it holds in the logs' own files, and remove it. OSError: it may still be there.

        It is there, too, if a log has failed that needs it.
        """
        self._may_journal = False
        journal = self._journal
        if journal is None:
            return
        journal.is_ending = True
        while pending := self._background | ({self._entry} if self._entry is not None else set()):
            await asyncio.wait(pending)
        await self._file(journal, journal.owing)
        async with self._journal_lock:
            if not journal.owing:
                await journal.remove()

    def _run_in_background(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _report(message: str, error: Exception) -> None:
    asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})
