"""The metadata store port: a small ordered map with versions, atomic commits, a change feed and leases.

Keys are paths (`/brokers/topics/t`), values are JSON bytes. Revisions number the commits of the whole store in rising
order, with gaps. Three backends fulfil this (memory, SQLite, ZooKeeper), and one test suite
(`tests/cluster/store/test_conformance.py`) holds them to it.
"""

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol


class Entry(NamedTuple):
    key: str
    value: bytes
    version: int  # Changes with every write of the key, and is never 0: what `Check` compares.
    created: int  # The revision at which the key came into being (ZooKeeper's czxid): a broker's epoch.


# What a check promises. A key that stays is compared exactly. ZooKeeper numbers the writes of a znode anew when it is
# deleted and made again, so there a check of a key that comes and goes can pass on a key of the same version that was
# made a moment ago. To be fenced by something, check a key that is never deleted (`/controller_epoch`).


class Put(NamedTuple):
    key: str
    value: bytes
    lease: int | None = None  # The id of the lease that the key vanishes with.


class Delete(NamedTuple):
    """Remove a key; no error when it is not there."""

    key: str


class Check(NamedTuple):
    """The commit fails unless `key` has `version`; 0 means that it must not exist."""

    key: str
    version: int


Write = Put | Delete


class Change(NamedTuple):
    key: str
    entry: Entry | None  # None: the key is gone.


class Commit(NamedTuple):
    """Changes that took place together: one commit, or several in a row that the store has seen as one."""

    revision: int
    changes: tuple[Change, ...]


class Listing(NamedTuple):
    entries: list[Entry]  # Sorted by key.
    revision: int  # Watch from here to miss nothing.


class Conflict(Exception):
    """A check failed and nothing was written. `key` is the first that differed."""

    def __init__(self, key: str, revision: int) -> None:
        super().__init__(f"{key} has changed")
        self.key = key
        self.revision = revision  # The store as it was compared with: wait for it before deciding again.


class Compacted(Exception):
    """The feed no longer has the commits asked for. List again, and watch from there."""


class LeaseLost(Exception):
    """The lease is over, and with it its keys."""


class StoreUnavailable(OSError):
    """The store could not be read or written; what was asked for has not been done."""


class CommitUnknown(StoreUnavailable):
    """The store went away before it answered: all of the commit has been done or nothing, and the feed will tell."""


class CommitTooLarge(Exception):
    """The commit is more than the store takes at once; nothing was written. The message says how large it may be."""


class Lease(Protocol):
    """Keys put under a lease vanish when it is closed, when its owner's process ends, or when the store takes it."""

    @property
    def id(self) -> int: ...

    @property
    def is_lost(self) -> bool:
        """Whether the lease is known to be over; nothing revives it."""

    @property
    def may_act_until(self) -> float:
        """The moment, on the monotonic clock, from which others may be told that the lease is over.

        Who acts under the lease (acks as a leader, writes as the controller) looks at this first. It moves on while the
        store answers. See cluster/lease.py.
        """

    async def lost(self) -> None:
        """Return when the lease is over."""

    async def close(self) -> None: ...


class MetadataStore(Protocol):
    @property
    def lease_timeout_s(self) -> float:
        """How long the keys of a lease may outlive an owner that has died; 0: not at all."""

    async def start(self) -> None:
        """Open the store. Leases of a former process of this owner are over afterwards."""

    async def close(self) -> None:
        """Let go of the store. Open leases end."""

    async def get(self, key: str) -> Entry | None: ...

    async def list(self, prefix: str) -> Listing:
        """Every entry whose key starts with `prefix`, and the revision at which that was so."""

    async def commit(self, checks: Sequence[Check], writes: Sequence[Write]) -> int:
        """Do all the writes or none, and give the new revision. The feed has the commit before this returns.

        All keys that it puts under a lease are under the same one. Raises Conflict when a check fails, LeaseLost when
        the lease is over, CommitTooLarge, and CommitUnknown when nobody can say.
        """

    def watch(self, after: int) -> AsyncIterator[Commit]:
        """Every commit with a revision above `after`, in order, for ever. Raises Compacted when too far behind."""

    async def open_lease(self, owner: str) -> Lease:
        """A new lease. `owner` names it for people (and for the simulation, which ends it by that name)."""
