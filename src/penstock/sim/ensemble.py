"""The metadata store of a simulated cluster: one MemoryStore, the sessions of its clients, and the way to them.

It behaves as ZooKeeper does towards `cluster/store/zookeeper`. A session is over when nothing was heard of it for its
timeout, however late its owner learns of that. Whoever comes back in time is told what it has missed. The ensemble is
the machine STORE of the network: links to and from it are cut, slowed and healed like any others.
"""

import contextvars
from collections import deque
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, NamedTuple, TypeVar

from penstock.cluster.store.base import Change, Commit
from penstock.cluster.store.memory import MemoryStore
from penstock.sim.clock import SimLoop
from penstock.sim.network import Link, SimNetwork
from penstock.sim.trace import Trace

T = TypeVar("T")

STORE = "store"
# When a session ends, in timeouts since its last sign of life arrived: `cluster/lease.py` derives the soonest, and
# ZooKeeper's clock has coarse ticks.
EXPIRY_MIN = 0.76
EXPIRY_MAX = 1.5


class Granted(NamedTuple):
    """The answer to who connects. `session` is None: the one that was asked for is over."""

    session: "Session | None"
    commits: list[Commit]  # What the client has missed.
    revision: int  # The last commit; all later ones will be told.


class Way:
    """Messages in one direction: they arrive in order and late, and stay where they are while the link is cut."""

    def __init__(self, network: SimNetwork, link: Link, context: contextvars.Context) -> None:
        self.is_closed = False
        self._network = network
        self._link = link
        self._context = context  # Of who receives.
        self._under_way: deque[Callable[[], None]] = deque()
        self._is_due = False

    def send(self, message: Callable[[], None]) -> None:
        self._under_way.append(message)
        self._schedule()

    def _schedule(self) -> None:
        if self._is_due or not self._under_way:
            return
        if self._network.is_cut(self._link):
            self._network.when_healed(self._link, self._schedule)
            return
        self._is_due = True
        self._network.loop.call_later(self._network.delay(self._link), self._deliver, context=self._context)

    def _deliver(self) -> None:
        self._is_due = False
        if not self._network.is_cut(self._link):
            for _ in range(len(self._under_way)):
                message = self._under_way.popleft()
                if not self.is_closed:
                    message()
        self._schedule()


class Session:
    def __init__(self, number: int, timeout_s: float, now: float) -> None:
        self.number = number
        self.timeout_s = timeout_s
        self.heard_at = now
        self.connection: Connection | None = None  # The last one; what comes on others is too late.

    @property
    def owner(self) -> str:
        """Under whose name the leases of the session are in the MemoryStore."""
        return f"session-{self.number}"


class Connection:
    """Between one client and the ensemble. `on_broken` is called in the client, unless the client closes first."""

    def __init__(
        self,
        ensemble: "Ensemble",
        machine: str,
        context: contextvars.Context,
        on_commit: Callable[[Commit], None],
        on_broken: Callable[[], None],
    ) -> None:
        self._ensemble = ensemble
        self._on_commit = on_commit
        self._on_broken = on_broken
        self._there = Way(ensemble.network, (machine, STORE), ensemble.context)
        self._back = Way(ensemble.network, (STORE, machine), context)

    def open(
        self, session: Session | None, timeout_s: float, revision: int | None, reply: Callable[[Granted], None]
    ) -> None:
        """Take up the session, or have one made. `revision`: what the client knows, None for nothing."""

        def arrive() -> None:
            granted = self._ensemble.grant(self, session, timeout_s, revision)
            if granted is not None:
                self._back.send(lambda: reply(granted))

        self._there.send(arrive)

    def ask(self, session: Session, work: Callable[[MemoryStore], T], reply: Callable[[T | Exception], None]) -> None:
        """Have `work` done; the reply is its result or what it raised, and comes after the commits before it."""

        def arrive() -> None:
            if not self._ensemble.hears(session, self):
                self.break_off()
                return
            try:
                result: T | Exception = work(self._ensemble.memory)
            except Exception as error:
                result = error
            self._back.send(lambda: reply(result))

        self._there.send(arrive)

    def tell(self, commit: Commit) -> None:
        self._back.send(lambda: self._on_commit(commit))

    def break_off(self) -> None:
        """From the ensemble's side: a reset. What it has sent before may still arrive."""
        self._there.is_closed = True
        self._back.send(self._reset)

    def _reset(self) -> None:
        self._back.is_closed = True
        self._on_broken()

    def close(self) -> None:
        """From the client's side. What has left its machine may still arrive at the ensemble."""
        self._back.is_closed = True


class Ensemble:
    def __init__(self, *, network: SimNetwork, random: Random, trace: Trace | None = None) -> None:
        self.network = network
        self.memory = MemoryStore()
        self.context = contextvars.copy_context()
        self.is_down = False
        self._loop: SimLoop = network.loop
        self._random = random
        self._trace = trace
        self._commits: list[Commit] = []
        self._sessions: dict[int, Session] = {}
        self._opened = 0

    async def publish(self) -> None:
        """Tell everybody of every commit; runs for ever."""
        async for commit in self.memory.watch(0):
            self._note("commit", commit.revision, [(change.key, change.entry is not None) for change in commit.changes])
            self._commits.append(commit)
            for session in self._sessions.values():
                if session.connection is not None:
                    session.connection.tell(commit)

    def go_down(self) -> None:
        """Lose all connections and serve nobody. Nobody ends sessions meanwhile, either."""
        self._note("store down")
        self.is_down = True
        for session in self._sessions.values():
            if session.connection is not None:
                session.connection.break_off()
                session.connection = None

    def come_back(self) -> None:
        """Serve again; every session gets its whole timeout to be heard of."""
        self._note("store up")
        self.is_down = False
        for session in self._sessions.values():
            session.heard_at = self._loop.time()

    # What connections bring.

    def grant(
        self, connection: Connection, session: Session | None, timeout_s: float, revision: int | None
    ) -> Granted | None:
        if self.is_down:
            connection.break_off()
            return None
        if session is not None and session.number not in self._sessions:
            return Granted(None, [], 0)
        if session is None:
            self._opened += 1
            session = Session(self._opened, timeout_s, self._loop.time())
            self._sessions[session.number] = session
            self._check_later(session)
            self._note("session", session.number)
        if session.connection is not None:
            session.connection.break_off()
        session.connection = connection
        session.heard_at = self._loop.time()
        last = self._commits[-1].revision if self._commits else 0
        missed = [] if revision is None else [commit for commit in self._commits if commit.revision > revision]
        if len(missed) > 1 and self._random.random() < 0.5:
            missed = [_merged(missed)]
        return Granted(session, missed, last)

    def hears(self, session: Session, connection: Connection) -> bool:
        """Note a sign of life; False when nobody is there to serve it, or the session is over or elsewhere."""
        if self.is_down or session.number not in self._sessions or session.connection is not connection:
            return False
        session.heard_at = self._loop.time()
        return True

    def end(self, session: Session) -> None:
        """With its leases and their keys."""
        if self._sessions.pop(session.number, None) is not None:
            self._note("session over", session.number)
            self.memory.expire_leases(session.owner)
            if session.connection is not None:
                session.connection.break_off()

    def _check_later(self, session: Session) -> None:
        """End it unless it is heard of; how long that takes differs, as with the coarse ticks of ZooKeeper."""
        patience_s = session.timeout_s * self._random.uniform(EXPIRY_MIN, EXPIRY_MAX)
        self._loop.call_later(patience_s, self._check, session, patience_s, context=self.context)

    def _check(self, session: Session, patience_s: float) -> None:
        if session.number not in self._sessions:
            return
        over_at = session.heard_at + patience_s
        if self.is_down:
            self._check_later(session)
        elif self._loop.time() >= over_at:
            self.end(session)
        else:
            self._loop.call_at(over_at, self._check, session, patience_s, context=self.context)

    def _note(self, *fields: object) -> None:
        if self._trace is not None:
            self._trace.add(*fields)


def done_at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine of the MemoryStore, which never waits."""
    try:
        work.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("the MemoryStore waits for something")


def _merged(commits: list[Commit]) -> Commit:
    """As one, which is how a client of ZooKeeper that was away sees them."""
    changes: dict[str, Change] = {}
    for commit in commits:
        for change in commit.changes:
            changes.pop(change.key, None)
            changes[change.key] = change
    return Commit(commits[-1].revision, tuple(changes.values()))
