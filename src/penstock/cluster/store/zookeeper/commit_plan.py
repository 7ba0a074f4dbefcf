"""From the checks and writes of a commit to the operations of one ZooKeeper transaction.

Pure: decides from the copy of the tree, which may be behind. An operation that the server then finds impossible fails
the whole transaction; the store brings its copy up to date and plans anew. So what is compared here with the copy, and
by the server with itself, is in the end compared with the same.

    check of a version    the copy has an entry of this version, and CHECK of the znode's data version
    check of 0            the copy has none, and CREATE2 (of the key, or else of the first missing znode on its way,
                          and DELETE) or CHECK (of a znode that holds others up)
    put                   CREATE2, below znodes that are made if they are missing; SET_DATA if it is there; DELETE and
                          CREATE2 if it changes between vanishing with a session and staying
    delete                DELETE, also of the znodes above that then hold nothing up; SET_DATA to null if it holds up
                          others
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.cluster.store.base import Check, Conflict, Delete, Put, Write
from penstock.cluster.store.zookeeper import jute
from penstock.cluster.store.zookeeper.jute import ANY_VERSION, Type
from penstock.cluster.store.zookeeper.tree import ROOT, Tree, parent

KEPT_DEPTH = 2  # `/brokers/topics` stays when the last topic goes: it would only have to be made again.


class Operation(NamedTuple):
    kind: Type
    path: str
    data: bytes | None = None
    version: int = ANY_VERSION
    is_ephemeral: bool = False

    def encode(self, chroot: str) -> tuple[Type, bytes]:
        path = chroot + self.path if self.path != ROOT else chroot or ROOT
        if self.kind is Type.CREATE2:
            return self.kind, jute.create_body(path, self.data, is_ephemeral=self.is_ephemeral)
        if self.kind is Type.SET_DATA:
            return self.kind, jute.set_body(path, self.data, self.version)
        return self.kind, jute.version_body(path, self.version)


def plan_commit(
    tree: Tree, revision: int, checks: Sequence[Check], writes: Sequence[Write], session_id: int
) -> list[Operation]:
    """The operations, in the order in which they must come; Conflict when the copy already differs."""
    # Of several writes of one key the last counts. Sorted: what is above is made before what is below it.
    last = {write.key: write for write in writes}
    puts = [write for _, write in sorted(last.items()) if isinstance(write, Put)]
    deletes = [write for _, write in sorted(last.items(), reverse=True) if isinstance(write, Delete)]
    operations = list(_plan_checks(tree, revision, checks, {put.key for put in puts}))
    made: Counter[str] = Counter()  # How many new znodes there are below a path.
    paths_made: set[str] = set()
    for put in puts:
        for path in _missing_above(tree, put.key):
            if path not in paths_made:
                operations.append(Operation(Type.CREATE2, path))
                paths_made.add(path)
                made[parent(path)] += 1
        operations += _plan_put(tree, put, session_id)
        if tree.get(put.key) is None:
            paths_made.add(put.key)
            made[parent(put.key)] += 1
    operations += _plan_deletes(tree, deletes, made)
    return operations


def _plan_checks(tree: Tree, revision: int, checks: Sequence[Check], put_keys: set[str]) -> Iterator[Operation]:
    probed: set[str] = set()
    for key, version in checks:
        entry, node = tree.entry(key), tree.get(key)
        if (entry.version if entry else 0) != version:
            raise Conflict(key, revision)
        if node is not None:
            yield Operation(Type.CHECK, key, version=node.version)
        elif key not in put_keys:
            path = next(_missing_above(tree, key), key)
            if path not in probed:
                probed.add(path)
                yield Operation(Type.CREATE2, path)
                yield Operation(Type.DELETE, path)


def _plan_put(tree: Tree, put: Put, session_id: int) -> Iterator[Operation]:
    node = tree.get(put.key)
    owner = 0 if put.lease is None else session_id
    create = Operation(Type.CREATE2, put.key, put.value, is_ephemeral=owner != 0)
    if node is None:
        yield create
    elif node.owner == owner:
        yield Operation(Type.SET_DATA, put.key, put.value)
    else:
        yield Operation(Type.DELETE, put.key)
        yield create


def _plan_deletes(tree: Tree, deletes: Sequence[Delete], made: Counter[str]) -> Iterator[Operation]:
    gone: Counter[str] = Counter()  # How many znodes below a path go.

    def is_empty(path: str) -> bool:
        return len(tree.children(path)) + made[path] == gone[path]

    # In falling order of their keys, so that what is below goes before what is above.
    for delete in deletes:
        path = delete.key
        if tree.entry(path) is None:
            continue
        if not is_empty(path):
            yield Operation(Type.SET_DATA, path, None)
            continue
        yield Operation(Type.DELETE, path)
        gone[parent(path)] += 1
        path = parent(path)
        while path.count("/") > KEPT_DEPTH and is_empty(path):
            node = tree.get(path)
            if node is None or node.data is not None:
                break
            yield Operation(Type.DELETE, path)
            gone[parent(path)] += 1
            path = parent(path)


def _missing_above(tree: Tree, key: str) -> Iterator[str]:
    """The znodes above `key` that are not there, the topmost first."""
    position = key.find("/", 1)
    while position > 0:
        if tree.get(key[:position]) is None:
            yield key[:position]
        position = key.find("/", position + 1)
