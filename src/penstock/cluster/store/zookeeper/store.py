"""The metadata store of a cluster: ZooKeeper's tree, followed as a copy in memory and written in transactions.

A commit is one `multi`. Reads are answered from the copy, after a `sync` has made sure that it is not behind. A lease
is our session: its keys are ephemeral znodes. `docs/zookeeper.md` shows the tree.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from random import Random
from typing import TypeVar

from penstock.base.clock import Clock
from penstock.base.logging import get_logger
from penstock.cluster.store.base import (
    Check,
    Commit,
    CommitTooLarge,
    CommitUnknown,
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
from penstock.cluster.store.session_lease import SessionLease
from penstock.cluster.store.zookeeper import jute
from penstock.cluster.store.zookeeper.address import ConnectString
from penstock.cluster.store.zookeeper.commit_plan import Operation, plan_commit
from penstock.cluster.store.zookeeper.jute import Event, Reply, Type
from penstock.cluster.store.zookeeper.session import NotConnected, OnReply, ZooKeeperSession
from penstock.cluster.store.zookeeper.tree_follower import Read, TreeFollower

log = get_logger(__name__)

T = TypeVar("T")

# A server closes the connection on more than jute.maxbuffer, which is 1 MiB less one byte unless its owner says more.
COMMIT_BYTES_MAX = 1_000_000
# Each failure means that somebody else wrote what we are about to write, or made or deleted a znode above it.
ATTEMPTS_MAX = 50
_OVERTAKEN = (jute.Code.NO_NODE, jute.Code.BAD_VERSION, jute.Code.NODE_EXISTS, jute.Code.NOT_EMPTY)


class ZooKeeperStore:
    def __init__(
        self,
        *,
        connect: ConnectString,
        session_timeout_ms: int,
        connection_timeout_ms: int,
        clock: Clock,
        random: Random,
    ) -> None:
        self._chroot = connect.chroot
        self._addresses = ",".join(f"{host}:{port}" for host, port in connect.servers)
        self._connection_timeout_s = connection_timeout_ms / 1000
        self._session = ZooKeeperSession(
            servers=connect.servers, timeout_ms=session_timeout_ms, clock=clock, random=random, listener=self
        )
        self._follower = TreeFollower()
        self._feed: ChangeFeed | None = None  # None: the tree has not been read yet.
        self._is_ready = False  # Connected, and the copy has caught up since.
        self._is_closed = False
        self._is_read_due = False
        self._waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._leases: dict[int, ZooKeeperLease] = {}
        self._lease_ids = itertools.count(1)

    @property
    def lease_timeout_s(self) -> float:
        return self._session.timeout_s

    async def start(self) -> None:
        self._session.start()
        try:
            await self._until(lambda: self._is_ready, self._connection_timeout_s)
        except StoreUnavailable:
            await self.close()
            raise

    async def close(self) -> None:
        self._is_closed = True
        await self._session.close()
        self._wake()

    async def get(self, key: str) -> Entry | None:
        await self._catch_up()
        return self._follower.tree.entry(key)

    async def list(self, prefix: str) -> Listing:
        await self._catch_up()
        return Listing(self._follower.tree.entries(prefix), self._follower.revision)

    async def commit(self, checks: Sequence[Check], writes: Sequence[Write]) -> int:
        lease = self._lease_of(writes)
        for _ in range(ATTEMPTS_MAX):
            await self._until(lambda: self._is_ready)
            if lease is not None and lease.is_lost:
                raise LeaseLost(f"lease {lease.id} of {lease.owner} is over")
            follower = self._follower
            operations = plan_commit(follower.tree, follower.revision, checks, writes, self._session.id)
            body = jute.multi_body(operation.encode(self._chroot) for operation in operations)
            if len(body) > COMMIT_BYTES_MAX:
                raise CommitTooLarge(
                    f"a commit of {len(operations)} operations has {len(body)} bytes, allowed are {COMMIT_BYTES_MAX}"
                )
            if lease is not None:
                lease.keys.update(write.key for write in writes if isinstance(write, Put) and write.lease is not None)
            is_done, zxid = await asyncio.shield(self._send_commit(operations, body))
            try:
                await self._until_published(zxid)
            except StoreUnavailable as error:
                if is_done:
                    raise CommitUnknown(*error.args) from error
                raise
            if is_done:
                return zxid
            # Somebody else has changed the tree, and the copy has followed. Is it a conflict now?
        raise Conflict(checks[0].key if checks else writes[0].key, self._follower.revision)

    def watch(self, after: int) -> AsyncIterator[Commit]:
        assert self._feed is not None, "not started"
        return self._feed.watch(after)

    async def open_lease(self, owner: str) -> "ZooKeeperLease":
        await self._until(lambda: self._is_ready)
        lease = ZooKeeperLease(self, self._session, next(self._lease_ids), owner)
        self._leases[lease.id] = lease
        return lease

    # The session tells us ---------------------------------------------------------------------------------------------

    def on_connected(self) -> None:
        for path in _chroot_steps(self._chroot):
            self._session.send(Type.CREATE, jute.create_body(path, None), _ignored)
        self._session.send(Type.ADD_WATCH, jute.add_watch_body(self._chroot or "/"), self._on_watch_set)
        self._follower.on_connected()
        self._read_on()

    def on_event(self, event: Event) -> None:
        self._follower.on_event(event.path.removeprefix(self._chroot) or "/")
        # Not at once: the rest of the transaction follows, and if it is our own, so does all that we would read.
        if not self._is_read_due:
            self._is_read_due = True
            asyncio.get_running_loop().call_soon(self._read_on)

    def on_suspended(self) -> None:
        self._is_ready = False

    def on_lost(self) -> None:
        leases, self._leases = self._leases, {}
        for lease in leases.values():
            lease.on_lost()
        self._wake()

    # Following the tree -----------------------------------------------------------------------------------------------

    def _on_watch_set(self, reply: Reply | None) -> None:
        if reply is not None and reply.error != jute.Code.OK:
            # Without it we would be blind.
            log.error("zookeeper refuses the watch; it must be 3.6 or later", error=reply.error)
            self._session.drop_connection()

    def _read_on(self) -> None:
        self._is_read_due = False
        if not self._session.is_connected:
            return
        reads = self._follower.next_round(self._session.last_zxid)
        if not reads:
            return
        operations = []
        for read in reads:
            body = jute.read_body(self._chroot + read.path if read.path != "/" else self._chroot or "/")
            operations.append((Type.GET_DATA, body))
            if read.with_children:
                operations.append((Type.GET_CHILDREN, body))
        self._session.send(Type.MULTI_READ, jute.multi_body(operations), lambda reply: self._on_read(reads, reply))

    def _on_read(self, reads: Sequence[Read], reply: Reply | None) -> None:
        if reply is None:
            return
        if reply.error != jute.Code.OK:
            raise ConnectionError(f"ZooKeeper answers a read with error {reply.error}")
        self._follower.on_round(reads, jute.read_results(reply.body))
        self._on_seen(reply.zxid)

    def _on_seen(self, zxid: int) -> None:
        """After a reply with `zxid`: publish if the copy is whole, and read what it lacks."""
        commit = self._follower.published_at(zxid)
        if commit is not None:
            if self._feed is None:
                self._feed = ChangeFeed(commit.revision)
            else:
                self._feed.publish(commit)
        # After a new connection there need not be anything new.
        self._is_ready = self._is_ready or self._follower.is_whole
        self._wake()
        self._read_on()

    # Requests ---------------------------------------------------------------------------------------------------------

    async def _catch_up(self) -> None:
        """Return when the copy has everything that was committed before this was called."""
        while True:
            await self._until(lambda: self._is_ready)
            done: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
            self._send(Type.SYNC, jute.path_body(self._chroot or "/"), self._settle(done, lambda reply: reply.zxid))
            zxid = await done
            if zxid is not None:
                return await self._until_published(zxid)

    def _send_commit(self, operations: Sequence[Operation], body: bytes) -> "asyncio.Future[tuple[bool, int]]":
        """Whether it was done, and the zxid at which that was decided; CommitUnknown when no answer comes."""
        done: asyncio.Future[tuple[bool, int]] = asyncio.get_running_loop().create_future()
        done.add_done_callback(_looked_at)  # Nobody may be waiting any more.

        def on_reply(reply: Reply | None) -> None:
            if reply is None:
                error = CommitUnknown(f"ZooKeeper did not answer a commit: {self._session.last_error}")
                if not done.done():
                    done.set_exception(error)
                return
            results = jute.read_results(reply.body) if reply.error == jute.Code.OK else [reply.error]
            failed = jute.first_error(results)
            if failed is None:
                self._follower.on_committed(operations, results)
            if not done.done():
                if failed is None or results[failed] in _OVERTAKEN:
                    done.set_result((failed is None, reply.zxid))
                else:
                    path = operations[failed].path if operations else "/"
                    done.set_exception(StoreUnavailable(f"ZooKeeper refuses to write {path}: error {results[failed]}"))
            self._on_seen(reply.zxid)

        self._send(Type.MULTI, body, on_reply)
        return done

    def _settle(self, done: "asyncio.Future[T | None]", value: Callable[[Reply], T]) -> OnReply:
        def on_reply(reply: Reply | None) -> None:
            if not done.done():
                done.set_result(None if reply is None or reply.error != jute.Code.OK else value(reply))
            if reply is not None:
                self._on_seen(reply.zxid)

        return on_reply

    def _send(self, kind: Type, body: bytes, on_reply: OnReply) -> None:
        try:
            self._session.send(kind, body, on_reply)
        except NotConnected as error:
            raise self._unavailable() from error

    def _lease_of(self, writes: Sequence[Write]) -> "ZooKeeperLease | None":
        ids = {write.lease for write in writes if isinstance(write, Put) and write.lease is not None}
        assert len(ids) <= 1, f"one session cannot write for the leases {ids}"
        for lease_id in ids:
            lease = self._leases.get(lease_id)
            if lease is None:
                raise LeaseLost(f"lease {lease_id} is over")
            return lease
        return None

    async def _until(self, is_so: Callable[[], bool], timeout_s: float | None = None) -> None:
        """Return when `is_so`; StoreUnavailable when it is not for so long that our session may be over."""
        if self._is_closed:
            raise StoreUnavailable("the metadata store is closed")
        if is_so():
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((is_so, waiter))
        try:
            await asyncio.wait_for(waiter, self._session.timeout_s if timeout_s is None else timeout_s)
        except TimeoutError:
            raise self._unavailable() from None
        if self._is_closed:
            raise StoreUnavailable("the metadata store is closed")

    async def _until_published(self, zxid: int) -> None:
        await self._until(lambda: self._follower.revision >= zxid)

    def _unavailable(self) -> StoreUnavailable:
        return StoreUnavailable(f"no ZooKeeper server of {self._addresses} serves us: {self._session.last_error}")

    def _wake(self) -> None:
        waiting, self._waiters = self._waiters, []
        for is_so, waiter in waiting:
            if waiter.done():
                continue
            if self._is_closed or is_so():
                waiter.set_result(None)
            else:
                self._waiters.append((is_so, waiter))

    async def end_lease(self, lease: "ZooKeeperLease") -> None:
        """Delete the keys of a lease while the session goes on."""
        if self._leases.pop(lease.id, None) is None:
            return
        lease.on_lost()
        session_id, tree = self._session.id, self._follower.tree
        while True:
            await self._until(lambda: self._is_ready)
            nodes = [(key, tree.get(key)) for key in sorted(lease.keys)]
            own = [key for key, node in nodes if node is not None and node.owner == session_id]
            if not own or self._session.id != session_id:
                return
            try:
                await self.commit([], [Delete(key) for key in own])
            except CommitUnknown:
                continue


class ZooKeeperLease(SessionLease):
    """A share of the store's session. The session's end is the lease's end."""

    def __init__(self, store: ZooKeeperStore, session: ZooKeeperSession, lease_id: int, owner: str) -> None:
        super().__init__(lease_id, session.term)
        self._store = store
        self.owner = owner
        self.keys: set[str] = set()  # What has been put under it, or may have been.

    async def close(self) -> None:
        await self._store.end_lease(self)


def _chroot_steps(chroot: str) -> list[str]:
    parts = chroot.split("/")
    return ["/".join(parts[:count]) for count in range(2, len(parts) + 1)]


def _looked_at(future: "asyncio.Future[tuple[bool, int]]") -> None:
    if not future.cancelled():
        future.exception()


def _ignored(reply: Reply | None) -> None:
    """The znode is there already, or the next request will show that it is not."""
