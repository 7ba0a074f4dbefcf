"""What one broker sees of the simulated metadata store: the port over a connection that can be cut, and a session.

The states and waits are those of `cluster/store/zookeeper` (`store.py`, `session.py`): operations wait for a connection
for at most the session's time; a connection that is silent for half of it is given up, and commits under way are then
unknown; heartbeats move the lease on, counted from when they were sent.
"""

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable, Sequence
from random import Random
from typing import Any, TypeVar

from penstock.base.clock import Clock
from penstock.cluster.lease import HEARTBEAT_SHARE, LeaseTerm
from penstock.cluster.store.base import (
    Check,
    Commit,
    CommitUnknown,
    Conflict,
    Entry,
    Listing,
    StoreUnavailable,
    Write,
)
from penstock.cluster.store.feed import ChangeFeed
from penstock.cluster.store.local_lease import LocalLease
from penstock.cluster.store.memory import MemoryStore
from penstock.cluster.store.session_lease import SessionLease
from penstock.sim.ensemble import Connection, Ensemble, Granted, Session, done_at_once
from penstock.sim.network import machine_of, settle
from penstock.sim.process import CURRENT

T = TypeVar("T")

RETRY_S = 0.1
RETRY_S_MAX = 1.0
SILENCE_SHARE = 1 / 2
CLOSE_S_MAX = 2.0
FORGET_RATE = 0.1  # Of the reconnections: what was missed is too much to be told one by one.


class Feed(ChangeFeed):
    def forget(self, revision: int) -> None:
        """Have whoever follows list everything anew, as after more commits than the feed keeps."""
        self._commits.clear()
        self._start = self._revision = revision
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    @property
    def revision(self) -> int:
        return self._revision


class SimStore:
    def __init__(self, *, ensemble: Ensemble, timeout_s: float, clock: Clock, random: Random) -> None:
        self.lease_timeout_s = timeout_s
        self._ensemble = ensemble
        self._clock = clock
        self._random = random
        self.session: Session | None = None
        self._term = LeaseTerm(timeout_s)
        self._connection: Connection | None = None  # None: not connected.
        self._broken: asyncio.Future[None] | None = None  # Done when the connection is gone.
        self._heard_at = 0.0
        self._feed: Feed | None = None
        self._leases: dict[int, SimLease] = {}
        self._asked: dict[asyncio.Future[Any], None] = {}  # Requests without a reply.
        self._waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._is_closed = False
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="store session")
        try:
            await self._until(lambda: self._connection is not None, 2 * self.lease_timeout_s)
        except StoreUnavailable:
            await self.close()
            raise

    async def close(self) -> None:
        """End the session, at once if the ensemble can be reached."""
        self._is_closed = True
        session = self.session
        if self._connection is not None and session is not None:
            end, done = self._ensemble.end, asyncio.get_running_loop().create_future()
            self._connection.ask(session, lambda _: end(session), lambda _: settle(done))
            assert self._broken is not None
            await asyncio.wait([done, self._broken], timeout=CLOSE_S_MAX, return_when=asyncio.FIRST_COMPLETED)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        self._lose()
        self._wake()

    async def get(self, key: str) -> Entry | None:
        entry, revision = await self._read(lambda memory: (done_at_once(memory.get(key)), _revision_of(memory)))
        await self._until_told(revision)
        return entry

    async def list(self, prefix: str) -> Listing:
        listing = await self._read(lambda memory: done_at_once(memory.list(prefix)))
        await self._until_told(listing.revision)
        return listing

    async def commit(self, checks: Sequence[Check], writes: Sequence[Write]) -> int:
        await self._until(lambda: self._connection is not None)
        checks, writes = list(checks), list(writes)
        asked = self._ask(lambda memory: done_at_once(memory.commit(checks, writes)))
        try:
            revision = await asyncio.shield(asked)
            await self._until_told(revision)
        except NoAnswer as error:
            raise CommitUnknown("the store did not answer a commit") from error
        except Conflict as conflict:
            await self._until_told(conflict.revision)
            raise
        except CommitUnknown:
            raise
        except StoreUnavailable as error:
            raise CommitUnknown(*error.args) from error
        return revision

    def watch(self, after: int) -> AsyncIterator[Commit]:
        assert self._feed is not None, "not started"
        return self._feed.watch(after)

    async def open_lease(self, owner: str) -> "SimLease":
        while True:
            await self._until(lambda: self._connection is not None)
            session, term = self.session, self._term
            if session is None:
                continue
            try:
                there = await self._ask(_lease_opener(session))
            except NoAnswer:
                continue
            lease = SimLease(self, term, session, there)
            self._leases[lease.id] = lease
            return lease

    async def end_lease(self, lease: "SimLease") -> None:
        if self._leases.pop(lease.id, None) is None:
            return
        lease.on_lost()
        while True:
            await self._until(lambda: self._connection is not None)
            if self.session is not lease.session:
                return
            try:
                revision = await self._ask(lambda memory: _end_lease(memory, lease.there))
            except NoAnswer:
                continue
            await self._until_told(revision)
            return

    # Requests

    async def _read(self, work: Callable[[MemoryStore], T]) -> T:
        while True:
            await self._until(lambda: self._connection is not None)
            try:
                return await self._ask(work)
            except NoAnswer:
                continue

    def _ask(self, work: Callable[[MemoryStore], T]) -> "asyncio.Future[T]":
        """The result of `work`, or what it raised; NoAnswer when the connection breaks first.

        StoreUnavailable at once when there is none.
        """
        if self._connection is None or self.session is None:
            raise StoreUnavailable("the metadata store has gone away again")
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        done.add_done_callback(_looked_at)
        self._asked[done] = None

        def on_reply(result: T | Exception) -> None:
            self._heard_at = self._clock.monotonic()
            self._asked.pop(done, None)
            if not done.done():
                if isinstance(result, Exception):
                    done.set_exception(result)
                else:
                    done.set_result(result)

        self._connection.ask(self.session, work, on_reply)
        return done

    async def _until_told(self, revision: int) -> None:
        feed = self._feed
        assert feed is not None
        await self._until(lambda: feed.revision >= revision)

    async def _until(self, is_so: Callable[[], bool], timeout_s: float | None = None) -> None:
        """Return when `is_so`; StoreUnavailable when it is not for so long that our session may be over."""
        if self._is_closed:
            raise StoreUnavailable("the metadata store is closed")
        if is_so():
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((is_so, waiter))
        try:
            await asyncio.wait_for(waiter, self.lease_timeout_s if timeout_s is None else timeout_s)
        except TimeoutError:
            raise StoreUnavailable("the metadata store cannot be reached") from None
        if self._is_closed:
            raise StoreUnavailable("the metadata store is closed")

    def _wake(self) -> None:
        waiting, self._waiters = self._waiters, []
        for is_so, waiter in waiting:
            if waiter.done():
                continue
            if self._is_closed or is_so():
                waiter.set_result(None)
            else:
                self._waiters.append((is_so, waiter))

    # The session

    async def _run(self) -> None:
        pause_s = RETRY_S
        while True:
            if await self._connect():
                pause_s = RETRY_S
                await self._keep_alive()
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, RETRY_S_MAX)

    async def _connect(self) -> bool:
        """Whether we are connected now."""
        granted: asyncio.Future[Granted] = asyncio.get_running_loop().create_future()
        self._broken = asyncio.get_running_loop().create_future()
        connection = Connection(
            self._ensemble,
            machine_of(CURRENT.get()),
            contextvars.copy_context(),
            on_commit=self._on_commit,
            on_broken=lambda: self._on_broken(connection, granted),
        )
        revision = self._feed.revision if self._feed is not None else None
        # What is granted takes effect as it arrives: the commits that follow it must not find us as we were.
        connection.open(
            self.session,
            self.lease_timeout_s,
            revision,
            lambda answer: self._on_granted(connection, answer, granted),
        )
        try:
            return (await asyncio.wait_for(granted, max(1.0, self.lease_timeout_s / 2))).session is not None
        except (TimeoutError, ConnectionError):
            connection.close()
            return False

    def _on_granted(self, connection: Connection, answer: Granted, granted: "asyncio.Future[Granted]") -> None:
        if granted.done():
            return  # Given up.
        granted.set_result(answer)
        if answer.session is None:
            self._lose()
            return
        if answer.session is not self.session:
            self.session, self._term = answer.session, LeaseTerm(self.lease_timeout_s)
        self._connection = connection
        self._heard_at = self._clock.monotonic()
        if self._feed is None:
            self._feed = Feed(answer.revision)
        elif answer.commits and self._random.random() < FORGET_RATE:
            self._feed.forget(answer.revision)
        else:
            for commit in answer.commits:
                self._feed.publish(commit)
        self._wake()

    async def _keep_alive(self) -> None:
        """Send heartbeats for as long as the ensemble answers."""
        while self._connection is not None:
            now = self._clock.monotonic()
            if now - self._heard_at > self.lease_timeout_s * SILENCE_SHARE:
                self._on_broken(self._connection, None)
                return
            self._send_heartbeat(self._connection, now)
            assert self._broken is not None
            await asyncio.wait([self._broken], timeout=self.lease_timeout_s * HEARTBEAT_SHARE)

    def _send_heartbeat(self, connection: Connection, now: float) -> None:
        assert self.session is not None
        term = self._term

        def on_reply(_: object) -> None:
            self._heard_at = self._clock.monotonic()
            term.on_heartbeat_answered(now)

        connection.ask(self.session, lambda _: None, on_reply)

    def _on_commit(self, commit: Commit) -> None:
        self._heard_at = self._clock.monotonic()
        assert self._feed is not None
        self._feed.publish(commit)
        self._wake()

    def _on_broken(self, connection: Connection, granted: "asyncio.Future[Granted] | None") -> None:
        connection.close()
        if granted is not None and not granted.done():
            granted.set_exception(ConnectionResetError("the store is down"))
        if self._connection is connection:
            self._connection = None
            assert self._broken is not None
            self._broken.set_result(None)
            asked, self._asked = self._asked, {}
            for done in asked:
                if not done.done():
                    done.set_exception(NoAnswer())

    def _lose(self) -> None:
        self.session = None
        self._term.on_lost()
        leases, self._leases = self._leases, {}
        for lease in leases.values():
            lease.on_lost()


class NoAnswer(Exception):
    """The connection broke before the reply."""


class SimLease(SessionLease):
    def __init__(self, store: SimStore, term: LeaseTerm, session: Session, there: LocalLease) -> None:
        super().__init__(there.id, term)
        self.there = there  # The ensemble's side of it.
        self.session = session
        self._store = store

    async def close(self) -> None:
        await self._store.end_lease(self)


def _revision_of(memory: MemoryStore) -> int:
    return done_at_once(memory.list("/none")).revision


def _lease_opener(session: Session) -> Callable[[MemoryStore], LocalLease]:
    return lambda memory: done_at_once(memory.open_lease(session.owner))


def _end_lease(memory: MemoryStore, lease: LocalLease) -> int:
    done_at_once(lease.close())
    return _revision_of(memory)


def _looked_at(future: "asyncio.Future[T]") -> None:
    if not future.cancelled():
        future.exception()
