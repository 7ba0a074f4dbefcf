"""One sync for all who wait: while a log's sync is under way, appends gather for the next one.

A lone producer waits for one sync; a thousand wait for at most two. No timer is needed: the disk sets the pace.
"""

import asyncio
from collections.abc import Callable

from penstock.base.logging import get_logger
from penstock.storage.log import Log

log = get_logger(__name__)


class GroupCommit:
    def __init__(self, *, on_failure: Callable[[Log, OSError], None]) -> None:
        self._on_failure = on_failure
        self._tasks: dict[Log, asyncio.Task[None]] = {}

    def request(self, partition_log: Log, *, is_whole: bool = True) -> None:
        """See to it that everything appended up to now gets synced, and `on_synced` called.

        Unless `is_whole` without the active segment, which the kernel then writes when it likes.
        """
        if is_whole:
            partition_log.is_sync_wanted = True
        if partition_log.flush_in_flight or partition_log.failure is not None:
            return
        partition_log.flush_in_flight = True
        task = asyncio.get_running_loop().create_task(self._run(partition_log))
        self._tasks[partition_log] = task
        task.add_done_callback(lambda _: self._on_done(partition_log, task))

    def _on_done(self, partition_log: Log, task: asyncio.Task[None]) -> None:
        if self._tasks.get(partition_log) is task:  # The log may have asked for its next sync already.
            del self._tasks[partition_log]

    async def _run(self, partition_log: Log) -> None:
        while True:
            is_whole, partition_log.is_sync_wanted = partition_log.is_sync_wanted, False
            flush = partition_log.begin_flush(is_whole=is_whole)
            try:
                await flush.carry_out()
            except OSError as error:
                partition_log.on_flush_failed()
                if not partition_log.is_deleted:  # Its directory has moved away, and no one waits for it any more.
                    self._on_failure(partition_log, error)
                return
            if partition_log.failure is not None:
                partition_log.on_flush_failed()  # Another sync failed meanwhile: this one's word counts no more.
                return
            partition_log.on_flushed(flush)
            # Not for records that nobody asked it for: where they are left to the kernel, that would have no end.
            is_done = not partition_log.is_sync_wanted and not partition_log.has_side_files
            if is_done or partition_log.failure is not None:
                return

    async def finish(self, partition_log: Log | None = None) -> None:
        """Wait for the sync of a log that is under way, or for those of all logs."""
        while tasks := [task for of, task in self._tasks.items() if partition_log in (None, of)]:
            await asyncio.wait(tasks)
