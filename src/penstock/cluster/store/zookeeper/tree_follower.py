"""Keeps a copy of the tree in step with ZooKeeper, and says what has changed, in whole commits.

Pure: events and replies in, in the order in which the server sent them; what to read next, and commits, out. The store
drives it.

One persistent recursive watch tells the path of each change. The paths are read, many at a time. ZooKeeper shows the
event of a change before any reply that reflects it. So when a reply with zxid Z has come and no path is left to read,
the copy is the tree as it was at Z, and what has changed since the last time is published as one commit: several of
ZooKeeper's transactions when they follow close upon each other, never a part of one. Should others write so much that
this moment does not come, then after some rounds what there is is published, as of the zxid at which the last round
began: everything up to there is in it, and perhaps something of what came later.

After a new connection events may be missing, so everything is read again and compared; what differs is one commit.
"""

from collections.abc import Sequence

from penstock.cluster.store.base import Change, Commit
from penstock.cluster.store.zookeeper.commit_plan import Operation
from penstock.cluster.store.zookeeper.jute import Result, Stat, Type
from penstock.cluster.store.zookeeper.tree import ROOT, Node, Tree

PATHS_READ_MAX = 1000  # In one request: 160 kB of it, and a megabyte or less of reply.
ROUNDS_MAX = 20  # Before a commit need not be whole. A round takes about a millisecond.
_OWN_OF_ZOOKEEPER = "/zookeeper"


class Read:
    """A path to read, with the names of its children or without."""

    __slots__ = ("path", "with_children")

    def __init__(self, path: str, with_children: bool) -> None:
        self.path = path
        self.with_children = with_children


class TreeFollower:
    def __init__(self) -> None:
        self.tree = Tree()
        self.revision = 0  # What has been published is the tree as it was then, or later.
        self._changes: dict[str, Change] = {}  # Since then.
        self._unlisted: dict[str, None] = {}  # Paths to read with all below them, after a new connection.
        self._dirty: dict[str, None] = {}  # Paths of which an event has come that no read covers yet.
        self._is_reading = False
        self._round_count = 0
        self._round_zxid = 0  # Before this, everything is in the copy once the round is over.

    def on_connected(self) -> None:
        """Nothing that was asked for will be answered; everything may have changed."""
        self._is_reading = False
        self._round_count = 0
        self._dirty.clear()
        # Whoever goes down from the root does not come to those whose parent is not in the copy.
        self._unlisted = dict.fromkeys([ROOT, *self.tree.orphans()])

    def on_event(self, path: str) -> None:
        if not _is_foreign(path):
            self._dirty[path] = None

    def next_round(self, zxid: int) -> list[Read]:
        """What to read next, where `zxid` has been seen; empty while a round is under way, or when all is read."""
        if self._is_reading:
            return []
        reads = [Read(path, True) for path in list(self._unlisted)[:PATHS_READ_MAX]]
        for read in reads:
            del self._unlisted[read.path]
            self._dirty.pop(read.path, None)
        for path in list(self._dirty)[: PATHS_READ_MAX - len(reads)]:
            del self._dirty[path]
            reads.append(Read(path, False))
        if reads:
            self._is_reading = True
            self._round_count += 1
            if not self._unlisted and not self._dirty:
                self._round_zxid = zxid
        return reads

    def on_round(self, reads: Sequence[Read], results: Sequence[Result]) -> None:
        """The reply to a round: for each path its data or an error, and for some the names of its children."""
        self._is_reading = False
        remaining = iter(results)
        for read in reads:
            data = next(remaining)
            names = next(remaining) if read.with_children else None
            if isinstance(data, tuple):
                self._set(read.path, _node(*data))
                if isinstance(names, list):
                    self._list(read.path, names)
            else:
                self._remove(read.path)

    def on_committed(self, operations: Sequence[Operation], results: Sequence[Result]) -> None:
        """Our own transaction: what it did is known without reading. The events of it have just come."""
        for operation, result in zip(operations, results, strict=True):
            if operation.kind is Type.CHECK:
                continue
            if isinstance(result, Stat):
                self._set(operation.path, _node(operation.data, result))
            else:
                self._set(operation.path, None)
            self._dirty.pop(operation.path, None)

    @property
    def is_whole(self) -> bool:
        """Whether the copy is the tree as it was at the last reply."""
        return not (self._is_reading or self._unlisted or self._dirty)

    def published_at(self, zxid: int) -> Commit | None:
        """The changes up to now, if the copy is whole after a reply with `zxid`."""
        if self.is_whole:
            self._round_count = 0
            return self._publish(zxid)
        if self._round_count > ROUNDS_MAX and not self._is_reading and not self._unlisted:
            return self._publish(self._round_zxid)
        return None

    def _publish(self, revision: int) -> Commit | None:
        if revision <= self.revision:
            return None
        commit = Commit(revision, tuple(self._changes.values()))
        self._changes = {}
        self.revision = revision
        return commit

    def _list(self, path: str, names: Sequence[str]) -> None:
        above = "" if path == ROOT else path
        found = [f"{above}/{name}" for name in names]
        for child in [*found, *self.tree.children(path)]:
            if not _is_foreign(child):
                self._unlisted[child] = None

    def _remove(self, path: str) -> None:
        """The node is not there, and so nothing below it: to ask for that would be to publish without it meanwhile."""
        for child in list(self.tree.children(path)):
            self._remove(child)
        self._set(path, None)

    def _set(self, path: str, node: Node | None) -> None:
        before = self.tree.entry(path)
        if node is None:
            self.tree.remove(path)
        else:
            self.tree.put(path, node)
        after = self.tree.entry(path)
        if before != after:
            self._changes.pop(path, None)
            self._changes[path] = Change(path, after)


def _node(data: bytes | None, stat: Stat) -> Node:
    return Node(data, stat.version, stat.czxid, stat.mzxid, stat.ephemeral_owner)


def _is_foreign(path: str) -> bool:
    """ZooKeeper keeps its own settings and quotas in the tree when there is no chroot."""
    return path == _OWN_OF_ZOOKEEPER or path.startswith(f"{_OWN_OF_ZOOKEEPER}/")
