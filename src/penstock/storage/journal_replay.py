"""What a start after a crash finds in the journal, and how a log gets back what its own files lack of that.

A log is recovered by itself first: what is unsound at its end is cut off. Then the batches that the journal has of it
are appended from there on, as they were. Those that the log has are passed over, so it does no harm to do it twice.
"""

import contextlib
import itertools
from collections.abc import Iterator

from penstock.base.errors import Refused
from penstock.base.logging import get_logger
from penstock.base.types import Offset
from penstock.storage.fs import FileSystem
from penstock.storage.journal_format import VOID, BadJournal, LogKey, OlderJournal, Piece, read_journal
from penstock.storage.log import Log
from penstock.storage.recovery import JournalSpan, SyncFailed
from penstock.wire.batch import BatchHeader, read_header

log = get_logger(__name__)

ASIDE_SUFFIX = "-stray"


class JournalReplay:
    """What the journal of the last life holds for logs that have not been opened yet."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self._path = path
        self._pieces: dict[LogKey, list[Piece]] = {}  # In the order in which they were written.
        self._disowned: set[LogKey] = set()  # Logs that are no more, and of which another start would find pieces.

    def load(self) -> None:
        """Read the journal, if there is one. Waits for the disk.

        OSError when it is damaged: nobody knows which logs it has had records of, and of which it has said that they
        are void. It stays where it is, so that the next start finds it, too. OSError also when it cannot be synced.
        """
        if not self._fs.exists(self._path):
            return
        content = self._fs.read_all(self._path)
        self._sync()  # Only then: what a killed broker has begun to write may get there between the two.
        try:
            entries = read_journal(content)
        except OlderJournal as older:
            raise OSError(
                f"an older version of Penstock has written {self._path}. Start that once more, and stop it cleanly"
            ) from older  # Without a number, as below.
        except BadJournal as bad:
            raise OSError(
                f"{self._path} is damaged ({bad}), and acknowledged records may have been there alone. If other brokers"
                " have all partitions of this one, empty its data directory, and it copies them; if not, move the"
                " journal away, and the newest records are lost that the logs' own files lack"
            ) from bad  # Without a number, for which there are words of the system's.
        for entry in entries:
            for piece in entry.pieces:
                if piece.kind == VOID:
                    self.drop(piece.key)
                else:
                    self._pieces.setdefault(piece.key, []).append(piece)

    def _sync(self) -> None:
        """A killed broker may have had no time for it. What was void for us would not be so after a power cut."""
        with contextlib.closing(self._fs.open(self._path, appends=False)) as file:
            try:
                file.sync()
            except OSError as error:
                raise OSError(
                    f"{self._path} cannot be synced ({error.strerror}): what it says may be in memory alone. See to the"
                    " disk, and start again"
                ) from error  # Without a number, as above.

    def span_of(self, key: LogKey) -> JournalSpan:
        """What a recovery of the log has to know of what there is for it.

        What follows a gap between two pieces was written when the file had been synced that far. One within a piece is
        in the log as well.
        """
        filed = end = 0
        gaps: dict[int, int] = {}
        for piece in self._pieces.get(key, ()):
            if piece.start > end:
                filed = end = piece.start
            for _, header in _batches(piece):
                if header.base_offset > end:
                    gaps[end] = header.base_offset
                end = header.next_offset
        return JournalSpan(Offset(filed), Offset(end), gaps)

    def apply(self, partition_log: Log) -> None:
        """Append and sync what the log lacks, whose own file is whole up to `span_of`. Waits for the disk.

        OSError: the disk does not take it, and it can be tried again; of SyncFailed, not with this page cache.
        """
        assert partition_log.key is not None
        first = partition_log.log_end
        for piece in self._pieces.get(partition_log.key, ()):
            assert piece.start <= partition_log.log_end, f"{partition_log.topic_partition} ends before {piece.start}"
            _append(partition_log, piece)
        if partition_log.log_end > first:
            if partition_log.has_transactions and partition_log.aborts_missing_from is None:
                partition_log.aborts_missing_from = first
            flush = partition_log.begin_flush()
            try:
                flush.run()
            except OSError as error:
                raise SyncFailed(error.errno, error.strerror, partition_log.directory) from error
            partition_log.on_flushed(flush)
            log.info("records restored from the journal", partition=partition_log.topic_partition,
                     first=first, end=partition_log.log_end)  # fmt: skip
        self.drop(partition_log.key)

    def drop(self, key: LogKey) -> None:
        """Nobody needs what there is of this log."""
        self._pieces.pop(key, None)

    def disown(self, key: LogKey) -> bool:
        """The log is no more. Whether one in its place has to wait for `end`: the next start might give it these."""
        if self._pieces.pop(key, None) is not None:
            self._disowned.add(key)
        return key in self._disowned

    @property
    def left(self) -> list[LogKey]:
        """Logs that have not been given what is theirs. Those that are open are damaged."""
        return list(self._pieces)

    def end(self) -> None:
        """Every log that is here has what is its own: remove the journal for good."""
        self._pieces = {}
        if self._fs.exists(self._path):
            self._fs.remove(self._path)
            self._fs.sync_dir(self._directory)
        self._disowned.clear()

    def set_aside(self, why: str) -> None:
        """Keep the journal for the operator, under another name, and read it no more."""
        self._pieces = {}
        if self._fs.exists(self._path):
            names = (f"{self._path}-{number}{ASIDE_SUFFIX}" for number in itertools.count(1))
            aside = next(name for name in names if not self._fs.exists(name))
            log.error("a journal is set aside", why=why, moved_to=aside)
            self._fs.rename(self._path, aside)
            self._fs.sync_dir(self._directory)

    @property
    def _directory(self) -> str:
        return self._path.rpartition("/")[0]


def _append(partition_log: Log, piece: Piece) -> None:
    for batch, header in _batches(piece):
        if header.last_offset >= partition_log.log_end:
            try:
                partition_log.append(batch, header.last_offset, header.max_timestamp)
            except Refused as refused:
                raise OSError(refused.message) from refused


def _batches(piece: Piece) -> Iterator[tuple[memoryview, BatchHeader]]:
    view = memoryview(piece.batches)
    while view:
        header = read_header(view)
        yield view[: header.size], header
        view = view[header.size :]
