"""A copy of ZooKeeper's tree below the chroot, and what of it is an entry of the store.

A key of the store is the path of its znode. Above it stand znodes that only hold it up (`/brokers/topics`): their data
is null, which no entry's is.
"""

from typing import NamedTuple

from penstock.cluster.store.base import Entry

ROOT = "/"


class Node(NamedTuple):
    data: bytes | None  # None: it only holds up what is below it.
    version: int  # Of the data. Starts again at 0 when the node is made anew.
    czxid: int
    mzxid: int
    owner: int  # The session that it vanishes with; 0: none.


class Tree:
    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._children: dict[str, set[str]] = {}  # Paths, by the path above them; only where there are any.

    def get(self, path: str) -> Node | None:
        return self._nodes.get(path)

    def children(self, path: str) -> set[str] | frozenset[str]:
        return self._children.get(path, frozenset())

    def orphans(self) -> list[str]:
        """Nodes without the one above them, which has not been read yet."""
        return [path for path in self._nodes if path != ROOT and parent(path) not in self._nodes]

    def put(self, path: str, node: Node) -> None:
        if path not in self._nodes and path != ROOT:
            self._children.setdefault(parent(path), set()).add(path)
        self._nodes[path] = node

    def remove(self, path: str) -> None:
        if self._nodes.pop(path, None) is not None and path != ROOT:
            siblings = self._children[parent(path)]
            siblings.discard(path)
            if not siblings:
                del self._children[parent(path)]

    def entry(self, key: str) -> Entry | None:
        node = self._nodes.get(key)
        if node is None or node.data is None or key == ROOT:  # Nobody can keep others from giving the root data.
            return None
        # mzxid as the version: unlike ZooKeeper's own it never comes again.
        return Entry(key, node.data, node.mzxid, node.czxid)

    def entries(self, prefix: str) -> list[Entry]:
        found = [self.entry(path) for path in sorted(self._nodes) if path.startswith(prefix)]
        return [entry for entry in found if entry is not None]


def parent(path: str) -> str:
    return path.rpartition("/")[0] or ROOT
