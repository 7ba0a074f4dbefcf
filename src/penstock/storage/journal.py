"""One file that the newest records of many logs are written to, so that one sync serves them all.

To sync a log's own file costs the file system some metadata each time, and there are as many syncs as logs with new
records. The space of the journal was filled once and is written over and over: its sync writes data alone. Where the
kernel lets us, it is written past the page cache, and an entry is on disk when its write is done (direct_file.py).

What it has of a log counts until the log's own file is synced. When one half of it is full, or other logs have long
found no place in it, those logs are asked for that, while the other half is written to. Until they have done it there
may be no room, and logs are synced alone.

A start after a crash finds here what the logs' files lack (journal_replay.py). A clean stop leaves no journal.
"""

import asyncio
import contextlib
import errno
import itertools
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from penstock.base.logging import get_logger
from penstock.storage.direct_file import DirectFile
from penstock.storage.fs import Buffer, File, FileSystem
from penstock.storage.journal_format import (
    HALVES,
    SALT_BYTES,
    SECTOR_BYTES,
    VOID,
    LogKey,
    Piece,
    entry_bytes,
    pack_entry,
)
from penstock.storage.log import Log

log = get_logger(__name__)

# More of one log is synced in its own file: to write it twice costs more than what the file system does for it. Five
# batches of 16 KB fit, which is what most clients have on their way by default.
PIECE_BYTES_MAX = 128 << 10
ENTRY_BYTES_MAX = 512 << 10  # Up to here the sync takes the time, not the bytes.
OWING_MAX = 512  # Logs with pieces in one half, whose files stay open.
FILES_SHARE = 4  # Each half may keep so small a part of the files open that may be: two quarters are for other logs.
# A half ends early once so many syncs for each of its places have found none there: else those that came first would
# keep them, be they idle or not. To turn has as many files synced as logs owe the half. Each of those has a piece in
# it, so they are never more than without a journal; but who has only one has gained nothing. With ten thousand busy
# logs and 512 places each of those shares three syncs for the one that it then needs; with 16 times it would be none.
TURNED_AWAY_TIMES = 64
FILL_BYTES = 1 << 20
# A broker that hardly ever syncs needs no journal: to fill it takes a while, and the space.
BYTES_PER_SYNC = 2 << 20
FREE_TIMES = 4  # So much space has to be free for it: it is not to be what fills the disk.
VOID_SHARE = 8  # Of a half, for what is void: that has to find room when a log that has failed lets nobody turn.
PAGE_BYTES = 4 << 10  # Pages are written as a whole: of one that is in part, the kernel would have to read the rest.
# An entry that is written past the page cache; one that does not fit goes through it. It may have one piece more than
# ENTRY_BYTES_MAX, and a head for each.
DIRECT_BYTES_MAX = ENTRY_BYTES_MAX + PIECE_BYTES_MAX + (64 << 10)


class Unwritten(Exception):
    """The journal has not taken an entry, and is as before."""


class _Write(NamedTuple):
    """An entry on its way past the page cache."""

    place: int
    entry: Buffer
    done: "asyncio.Future[None]"
    before: tuple[int, int, int]  # Generation, number and position, until it was begun.


class Journal:
    def __init__(self, *, fs: FileSystem, path: str, size: int, files_max: int, random: Random) -> None:
        """`files_max`: how many files of logs may be open."""
        self.path = path
        self.file: File | None = None  # While there is one.
        self.is_ending = False  # It takes no more.
        self.is_turned = False  # The first sector of a half has been written, and has to be synced before the next one.
        # What was written last may be on no disk: its sync is due, or has failed. It has to be there before the next
        # entry is written, or that looks to a start like one behind damage.
        self.is_unsynced = False
        self._has_failed = False  # A sync has: an entry may be missing, and then none behind it would be found.
        self._direct: DirectFile | None = None  # While the file can be written so.
        self._under_way: _Write | None = None  # What was written so last, until it is known to be on disk.
        self._fs = fs
        self._half_bytes = size // HALVES // PAGE_BYTES * PAGE_BYTES
        self._void_bytes = self._half_bytes // VOID_SHARE
        self.syncs_before = size // BYTES_PER_SYNC  # How many it could have taken show that it is worth to be made.
        self._owing_max = min(OWING_MAX, files_max // FILES_SHARE)
        self._turned_away_max = TURNED_AWAY_TIMES * self._owing_max
        self._turned_away = 0  # Syncs that have found no place in the half that is being written.
        self._random = random
        self._salt = b""
        self._generation = 0  # The one that is being written; it is in half `generation % HALVES`.
        self._number = 0  # Of its next entry.
        self._position = 0  # Where in the half that will be.
        self._owing: list[dict[Log, None]] = [{} for _ in range(HALVES)]  # Their own files lack what each half has.
        self._known: list[set[LogKey]] = [set() for _ in range(HALVES)]  # Logs with pieces in each half, void or not.
        self._voids_due: set[LogKey] = set()  # Logs that are gone. Until the journal says so none may be made anew.
        self._void_waiters: dict[LogKey, list[asyncio.Future[OSError | None]]] = {}  # Those, or logs about to be cut.

    async def open(self) -> None:
        """Make the file and fill it, so that no write of an entry has to find space."""
        self._salt = self._random.randbytes(SALT_BYTES)
        self.file, self._direct = await self._fs.run(self._make)
        self._number, self._position = 1, self._block_bytes

    def _make(self) -> tuple[File, DirectFile | None]:
        _, free = self._fs.free_bytes(self._directory)
        if free < FREE_TIMES * HALVES * self._half_bytes:
            raise OSError(errno.ENOSPC, f"of the disk's space {free} bytes are left")
        file = self._fs.open(self.path, create=True, appends=False)
        assert file.size() == 0, f"{self.path} is there already"
        direct = self._fs.open_direct(self.path, DIRECT_BYTES_MAX)
        try:
            size = HALVES * self._half_bytes
            for position in range(0, size, FILL_BYTES):
                file.write_at(position, bytes(min(FILL_BYTES, size - position)))
            # As `turn` begins others: behind it are zeros up to where the next entry begins. Were there records, the
            # first entry of the next generation in this half could tear them, and leave those behind them whole.
            first = memoryview(bytearray(_block_bytes(direct)))
            pack_entry(first, self._salt, self._generation, 0, ())
            file.write_at(0, first)
            file.sync()
            self._fs.sync_dir(self._directory)
        except OSError:
            _close(direct)
            file.close()
            self._fs.remove(self.path)
            raise
        return file, direct

    async def remove(self) -> None:
        """For good, when every log's own file has all that is in it."""
        if self.file is not None:
            await self._fs.run(self._remove)
            self._close_direct()
            self.file.close()
            self.file = None

    def _remove(self) -> None:
        self._fs.remove(self.path)
        self._fs.sync_dir(self._directory)

    @property
    def _directory(self) -> str:
        return self.path.rpartition("/")[0]

    # Writing

    def takes(self, partition_log: Log, *, others: int = 0) -> bool:
        """Whether the journal is a place for what is unsynced of the log, and of so many others that are new to it."""
        return (
            self.file is not None
            and not self.is_ending
            and is_piece(partition_log)
            and (not self.is_new(partition_log) or self._taken_places + others < self._owing_max)
        )

    def is_new(self, partition_log: Log) -> bool:
        """Whether the log has no place yet in the half that the next entry goes to."""
        return self.is_turn_due or partition_log not in self._writing

    @property
    def _taken_places(self) -> int:
        return 0 if self.is_turn_due else len(self._writing)

    def on_turned_away(self) -> None:
        """A log is synced by itself that the journal would have taken, had there been a place."""
        self._turned_away += 1

    @property
    def is_turn_due(self) -> bool:
        """Whether others shall have the places of those that owe this half. It stays so until `turn`."""
        return self._turned_away >= self._turned_away_max and not self._owing[self._next_half]

    def fits(self, pieces: Sequence[Piece]) -> bool:
        """Whether there is room for them in the half that is being written to."""
        return self._position + entry_bytes(pieces, self._block_bytes) <= self._room_for(pieces)

    def may_turn(self, pieces: Sequence[Piece]) -> bool:
        """Whether the other half can be written to, and has room for them."""
        size = self._block_bytes + entry_bytes(pieces, self._block_bytes)
        return not self._owing[self._next_half] and size <= self._room_for(pieces)

    def _room_for(self, pieces: Sequence[Piece]) -> int:
        return self._half_bytes - (0 if all(piece.kind == VOID for piece in pieces) else self._void_bytes)

    def turn(self) -> list[Log]:
        """Begin the other half; `is_turned` then. Gives the logs that owe the journal what is in this one."""
        size = self._block_bytes
        self._write(self._next_half * self._half_bytes, size, self._generation + 1, 0, ())
        owing = list(self._writing)
        self._generation += 1
        self._number, self._position = 1, size
        self._turned_away = 0
        self.is_turned = self.is_unsynced = True
        return owing

    def write(self, pieces: Sequence[Piece], logs: Sequence[Log]) -> None:
        """Write an entry that `fits`; it counts once the file is synced."""
        assert not self.is_turned, "what was in this half before would be found in part"
        assert not self.is_unsynced, "a start would take the entry before for damaged"
        # In advance: of one that failed, too, a start may find a part.
        self._known[self._half].update(piece.key for piece in pieces if piece.kind != VOID)
        size = entry_bytes(pieces, self._block_bytes)
        self._write(self._half * self._half_bytes + self._position, size, self._generation, self._number, pieces)
        self.is_unsynced = True
        self._number += 1
        self._position += size
        self._writing.update(dict.fromkeys(logs))

    def _write(self, place: int, size: int, generation: int, number: int, pieces: Sequence[Piece]) -> None:
        assert self.file is not None
        assert self._under_way is None, "the kernel reads what is to be written over"
        direct = self._direct
        if direct is not None and size <= len(direct.memory):
            entry = direct.memory[:size]
            pack_entry(entry, self._salt, generation, number, pieces)
            done = direct.begin(place, size)
            if done is not None:
                self._under_way = _Write(place, entry, done, (self._generation, self._number, self._position))
                return
        # With zeros up to the end of the page: what is there is of an older generation, and counts no more. Not so
        # behind the first entry: until that is on disk the older generation counts, and is to be found as a whole.
        zeros = -(place + size) % PAGE_BYTES if number else 0
        content = memoryview(bytearray(size + zeros))
        pack_entry(content[:size], self._salt, generation, number, pieces)
        self._write_cached(place, content)

    def _write_cached(self, place: int, content: Buffer) -> None:
        assert self.file is not None
        try:
            self.file.write_at(place, content)
        except OSError as error:  # Some file systems need space to write in place.
            raise Unwritten(str(error)) from error

    @property
    def _block_bytes(self) -> int:
        return _block_bytes(self._direct)

    async def sync(self) -> None:
        """Return when what has been written is on disk. OSError: what is there cannot be known, if not Unwritten."""
        assert self.file is not None
        if self._has_failed:  # The kernel tells of it once, and then calls the pages clean.
            raise OSError(errno.EIO, "a sync of the journal has failed before")
        try:
            await self._finish_write()
        except OSError:
            self._has_failed = True
            raise
        self.is_unsynced = False
        if self.is_turned:
            self._known[self._half].clear()  # Only now: until then a start might find what was in this half before.
            self.is_turned = False

    async def _finish_write(self) -> None:
        assert self.file is not None
        if (write := self._under_way) is not None:
            try:
                await asyncio.shield(write.done)
            except OSError as error:
                log.warning("the journal is written through the page cache from now on", error=error)
                self._close_direct()
                # What is there now is not known, but what it has to be is. Whether that gets there, the sync will say.
                try:
                    self._write_cached(write.place, write.entry)
                except Unwritten:
                    self._generation, self._number, self._position = write.before
                    self.is_turned = self.is_unsynced = False
                    raise
            else:
                self._under_way = None
                return
        await self._fs.sync(self.file)

    def _close_direct(self) -> None:
        direct, self._direct, self._under_way = self._direct, None, None
        _close(direct)

    def on_filed(self, partition_log: Log) -> None:
        """The log's own file has all that the journal has of it, or nobody needs it any more."""
        for owing in self._owing:
            owing.pop(partition_log, None)

    @property
    def owing(self) -> list[Log]:
        """Logs whose own files lack what the journal has of them."""
        return list(self._owing[0] | self._owing[1])

    def owes(self, partition_log: Log) -> bool:
        """Whether it is one of those."""
        return any(partition_log in owing for owing in self._owing)

    @property
    def _half(self) -> int:
        return self._generation % HALVES

    @property
    def _next_half(self) -> int:
        return (self._generation + 1) % HALVES

    @property
    def _writing(self) -> dict[Log, None]:
        return self._owing[self._half]

    # Taking back

    def knows(self, key: LogKey) -> bool:
        """Whether a start would find pieces of the log, be they needed or not."""
        return any(key in known for known in self._known)

    def on_gone(self, partition_log: Log) -> None:
        """The log is about to be deleted: one that comes in its place is not to meet what is left of it here."""
        self.on_filed(partition_log)
        if partition_log.key is None:
            return
        if self.knows(partition_log.key):
            self._voids_due.add(partition_log.key)
        else:
            self.on_void(partition_log.key)  # Who waits to cut it may not make void what comes in its place.

    def is_void_due(self, key: LogKey | None) -> bool:
        """Whether a log with this key is gone, and the journal does not say so yet."""
        return key in self._voids_due

    def want_void(self, key: LogKey) -> asyncio.Future[OSError | None]:
        """Done when what there is of the log up to now is void; with an error when it may not be.

        Who cancels it wants it no more: the log may be written to again.
        """
        waiter: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
        self._void_waiters.setdefault(key, []).append(waiter)
        return waiter

    def wanted_voids(self, count_max: int) -> list[LogKey]:
        """What one entry is to say of so many logs together: those that somebody waits for, then others that are gone.

        Without those of which there is nothing. Not to be asked before it can be written: what a half had is known to
        be gone when the sync of its first sector is done.
        """
        for key, waiters in list(self._void_waiters.items()):
            if all(waiter.done() for waiter in waiters):
                del self._void_waiters[key]  # They have been cancelled.
            elif not self.knows(key):
                self.on_void(key)
        others = (due for due in self._voids_due if due not in self._void_waiters and self.knows(due))
        return list(itertools.islice(itertools.chain(self._void_waiters, others), count_max))

    @property
    def is_void_wanted(self) -> bool:
        return bool(self._void_waiters)

    def on_void(self, key: LogKey) -> None:
        """The journal says for good that what it had of the log up to now counts no more."""
        self._voids_due.discard(key)
        self._tell_void_waiters(key, None)

    def refuse_voids(self, error: OSError) -> None:
        """Whoever waits for one waits in vain."""
        for key in list(self._void_waiters):
            self._tell_void_waiters(key, error)

    def _tell_void_waiters(self, key: LogKey, error: OSError | None) -> None:
        for waiter in self._void_waiters.pop(key, ()):
            if not waiter.done():
                waiter.set_result(error)


def _block_bytes(direct: DirectFile | None) -> int:
    """An entry ends with one. On the way through the page cache a sector will do."""
    return SECTOR_BYTES if direct is None else direct.block_bytes


def _close(direct: DirectFile | None) -> None:
    if direct is not None:
        with contextlib.suppress(OSError):  # All that was written has its own word.
            direct.close()


def is_piece(partition_log: Log) -> bool:
    """Whether what is unsynced of the log is records alone, and few enough for a journal."""
    return 0 < partition_log.journal_bytes <= PIECE_BYTES_MAX
