"""The embedded metadata store: one SQLite file, one process, nothing to set up.

A commit is one transaction with a full sync, so what the controller has answered survives a power cut. All SQL runs on
one thread of its own; results are published to the feed on the event loop, in the order of the commits. The file is
locked while the store is open: a second process is refused, and since leases have only one possible owner, those found
in the file at the start belong to a process that is gone.

A full disk must not keep a broker from starting, nor from deleting a topic to make room. So a reserve file lies beside
the database; it is given up when SQLite finds no room, and laid up again when there is some.
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from penstock.cluster.store.base import (
    Change,
    Check,
    Commit,
    Conflict,
    Delete,
    Entry,
    LeaseLost,
    Listing,
    Put,
    StoreUnavailable,
    Write,
)
from penstock.cluster.store.feed import ChangeFeed
from penstock.cluster.store.local_lease import LocalLease

if TYPE_CHECKING:
    from sqlite3 import Connection

T = TypeVar("T")

FILE_NAME = "metadata.db"
RESERVE_BYTES = 4 << 20  # A commit that deletes a topic of 10,000 partitions, with its part of the write-ahead log.
FORMAT = 1  # Kept in `user_version`.
SCHEMA = (
    "CREATE TABLE entry (key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL,"
    " created INTEGER NOT NULL, lease INTEGER) WITHOUT ROWID",
    "CREATE TABLE store (revision INTEGER NOT NULL)",  # One row.
    "INSERT INTO store VALUES (0)",
    f"PRAGMA user_version = {FORMAT}",
)


class SqliteStore:
    lease_timeout_s = 0.0  # Those of a process that is gone end when the file is opened.

    def __init__(self, path: str) -> None:
        self._path = path
        self._executor: ThreadPoolExecutor | None = None
        self._feed = ChangeFeed()
        self._leases: dict[int, LocalLease] = {}
        self._lease_ids = itertools.count(1)

    async def start(self) -> None:
        assert self._executor is None, "started twice"
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="metadata-store")
        self._database = _Database(self._path)
        try:
            revision = await self._run(self._database.open)
        except BaseException:
            self._executor.shutdown(wait=False)
            self._executor = None
            raise
        self._feed = ChangeFeed(revision)

    async def close(self) -> None:
        if self._executor is None:
            return
        for lease in list(self._leases.values()):
            await lease.close()
        await self._run(self._database.close)
        self._executor.shutdown(wait=False)
        self._executor = None

    async def get(self, key: str) -> Entry | None:
        return await self._run(lambda: self._database.get(key))

    async def list(self, prefix: str) -> Listing:
        return await self._run(lambda: self._database.list(prefix))

    async def commit(self, checks: Sequence[Check], writes: Sequence[Write]) -> int:
        for write in writes:
            if isinstance(write, Put) and write.lease is not None and write.lease not in self._leases:
                raise LeaseLost(f"lease {write.lease} of {write.key} is over")
        return (await self._run_commit(lambda: self._database.commit(checks, writes))).revision

    def watch(self, after: int) -> AsyncIterator[Commit]:
        return self._feed.watch(after)

    async def open_lease(self, owner: str) -> LocalLease:
        lease = LocalLease(next(self._lease_ids), owner, is_open=self._is_open, end=self._end_lease)
        self._leases[lease.id] = lease
        return lease

    async def _end_lease(self, lease: LocalLease) -> None:
        if self._leases.pop(lease.id, None) is not None:
            lease.on_lost()
            await self._run_commit(lambda: self._database.end_lease(lease.id))

    def _is_open(self, lease: LocalLease) -> bool:
        return lease.id in self._leases

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.shield(self._submit(work))

    async def _run_commit(self, work: Callable[[], Commit]) -> Commit:
        # Published by a callback and not after the await: a caller that is cancelled has committed all the same.
        future = self._submit(work)
        future.add_done_callback(self._publish)
        return await asyncio.shield(future)

    def _submit(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        if self._executor is None:
            raise StoreUnavailable("the metadata store is closed")
        return asyncio.get_running_loop().run_in_executor(self._executor, work)

    def _publish(self, future: "asyncio.Future[Commit]") -> None:
        if not future.cancelled() and future.exception() is None:
            self._feed.publish(future.result())


class _Database:
    """The SQL, called on the store's thread only."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._reserve = Path(f"{path}.reserve")
        self._has_reserve = False
        self._connection: Connection

    def open(self) -> int:
        """Open the file, end the leases of the process before, and give the revision."""
        import sqlite3  # Here, so that commands that never open a store start without it.

        self._error = sqlite3.Error
        self._full = sqlite3.SQLITE_FULL
        Path(self._path).parent.mkdir(parents=True, exist_ok=True)
        self._has_reserve = self._reserve.exists()
        revision = self._with_reserve(self._open)
        self._keep_reserve()
        return revision

    def _with_reserve(self, work: Callable[[], T]) -> T:
        """What `work` gives; when it finds the disk full it is done again with the reserve given up."""
        try:
            return work()
        except StoreUnavailable as error:
            if getattr(error.__cause__, "sqlite_errorcode", None) != self._full or not self._has_reserve:
                raise
        self._has_reserve = False
        self._reserve.unlink(missing_ok=True)
        return work()

    def _keep_reserve(self) -> None:
        if self._has_reserve:
            return
        try:
            self._reserve.write_bytes(bytes(RESERVE_BYTES))
            self._has_reserve = True
        except OSError:  # No room yet. What there is goes to those who write.
            with contextlib.suppress(OSError):
                self._reserve.unlink(missing_ok=True)

    def _open(self) -> int:
        import sqlite3

        try:
            connection = sqlite3.connect(self._path, timeout=0, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise StoreUnavailable(f"{self._path} cannot be opened: {error}") from error
        try:
            # With an exclusive lock WAL needs no shared memory, and no second broker gets in.
            for pragma in ("locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = FULL"):
                connection.execute(f"PRAGMA {pragma}")
            self._connection = connection
            return self._prepare()
        except sqlite3.Error as error:
            connection.close()
            reason = "another process has it open" if "locked" in str(error) else str(error)
            raise StoreUnavailable(f"{self._path} cannot be opened: {reason}") from error
        except BaseException:
            connection.close()
            raise

    def _prepare(self) -> int:
        self._connection.execute("BEGIN IMMEDIATE")
        (found,) = self._connection.execute("PRAGMA user_version").fetchone()
        if found not in (0, FORMAT):
            raise StoreUnavailable(f"{self._path} has format {found}, this version of penstock reads {FORMAT}")
        if found == 0:
            for statement in SCHEMA:
                self._connection.execute(statement)
        if self._connection.execute("DELETE FROM entry WHERE lease IS NOT NULL").rowcount:
            self._connection.execute("UPDATE store SET revision = revision + 1")
        revision = self._revision()
        self._connection.execute("COMMIT")
        return revision

    def close(self) -> None:
        self._connection.close()

    def get(self, key: str) -> Entry | None:
        try:
            row = self._connection.execute(
                "SELECT key, value, version, created FROM entry WHERE key = ?", (key,)
            ).fetchone()
        except self._error as error:
            raise StoreUnavailable(str(error)) from error
        return Entry(*row) if row else None

    def list(self, prefix: str) -> Listing:
        # Below `prefix` + the largest character lies every key that starts with it, and nothing else.
        query = "SELECT key, value, version, created FROM entry WHERE key >= ? AND key < ? ORDER BY key"
        try:
            rows = self._connection.execute(query, (prefix, prefix + "\U0010ffff")).fetchall()
            return Listing([Entry(*row) for row in rows], self._revision())
        except self._error as error:
            raise StoreUnavailable(str(error)) from error

    def commit(self, checks: Sequence[Check], writes: Sequence[Write]) -> Commit:
        def change() -> Commit:
            self._check(checks)
            revision = self._revision() + 1
            changes: dict[str, Change] = {}
            for write in writes:
                if isinstance(write, Put):
                    changes[write.key] = Change(write.key, self._put(write, revision))
                elif self._delete(write):
                    changes[write.key] = Change(write.key, None)
            return self._finish(revision, changes)

        return self._transaction(change)

    def end_lease(self, lease_id: int) -> Commit:
        def change() -> Commit:
            rows = self._connection.execute("DELETE FROM entry WHERE lease = ? RETURNING key", (lease_id,)).fetchall()
            return self._finish(self._revision() + 1, {key: Change(key, None) for (key,) in sorted(rows)})

        return self._transaction(change)

    def _transaction(self, change: Callable[[], Commit]) -> Commit:
        commit = self._with_reserve(lambda: self._try_transaction(change))
        self._keep_reserve()
        return commit

    def _try_transaction(self, change: Callable[[], Commit]) -> Commit:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                commit = change()
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
        except self._error as error:
            raise StoreUnavailable(f"{self._path} cannot be written: {error}") from error
        return commit

    def _check(self, checks: Sequence[Check]) -> None:
        for key, version in checks:
            row = self._connection.execute("SELECT version FROM entry WHERE key = ?", (key,)).fetchone()
            if (row[0] if row else 0) != version:
                raise Conflict(key, self._revision())

    def _put(self, put: Put, revision: int) -> Entry:
        (created,) = self._connection.execute(
            "INSERT INTO entry VALUES (?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value,"
            " version = excluded.version, lease = excluded.lease RETURNING created",
            (put.key, put.value, revision, revision, put.lease),
        ).fetchone()
        return Entry(put.key, put.value, revision, created)

    def _delete(self, delete: Delete) -> bool:
        return self._connection.execute("DELETE FROM entry WHERE key = ?", (delete.key,)).rowcount > 0

    def _finish(self, revision: int, changes: dict[str, Change]) -> Commit:
        self._connection.execute("UPDATE store SET revision = ?", (revision,))
        return Commit(revision, tuple(changes.values()))

    def _revision(self) -> int:
        revision: int
        (revision,) = self._connection.execute("SELECT revision FROM store").fetchone()
        return revision
