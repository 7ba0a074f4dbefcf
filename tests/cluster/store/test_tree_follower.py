"""The follower against a model of a ZooKeeper server, under every order of events that a server allows."""

from collections import deque
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.cluster.store.base import Commit
from penstock.cluster.store.zookeeper import tree_follower
from penstock.cluster.store.zookeeper.jute import Code, Result, Stat
from penstock.cluster.store.zookeeper.tree import ROOT, parent
from penstock.cluster.store.zookeeper.tree_follower import Read, TreeFollower

PATHS = ["/a", "/a/b", "/a/b/c", "/a/d", "/e", "/e/f", "/zookeeper", "/zookeeper/quota"]


class Server:
    """A tree, its history, and the stream of what it sends to one client."""

    def __init__(self) -> None:
        self.zxid = 1
        self.nodes: dict[str, tuple[bytes | None, Stat]] = {ROOT: (None, _stat(0, 0, 0))}
        self.history: dict[int, dict[str, bytes]] = {1: {}}
        self.stream: deque[Callable[[], None]] = deque()
        self.on_event: Callable[[str], None] = lambda path: None

    def change(self, random: Random) -> None:
        """A transaction of somebody else's, of one or several changes."""
        self.zxid += 1
        for _ in range(random.choice([1, 1, 2, 5])):
            path = random.choice(PATHS)
            old = self.nodes.get(path)
            if old is None and parent(path) in self.nodes:
                self.nodes[path] = (random.choice([None, b"1", b"2"]), _stat(self.zxid, self.zxid, 0))
            elif old is not None and not self._has_children(path) and random.random() < 0.5:
                del self.nodes[path]
            elif old is not None:
                self.nodes[path] = (random.randbytes(2), _stat(old[1].czxid, self.zxid, old[1].version + 1))
            else:
                continue
            self.stream.append(lambda path=path: self.on_event(path))  # type: ignore[misc]
        self.history[self.zxid] = self.entries()

    def entries(self) -> dict[str, bytes]:
        return {
            path: data
            for path, (data, _) in self.nodes.items()
            if data is not None and not path.startswith("/zookeeper")
        }

    def read(self, reads: list[Read]) -> list[Result]:
        results: list[Result] = []
        for read in reads:
            found = self.nodes.get(read.path)
            results.append(Code.NO_NODE if found is None else found)
            if read.with_children:
                names = [path.rpartition("/")[2] for path in self.nodes if path != ROOT and parent(path) == read.path]
                results.append(Code.NO_NODE if found is None else names)
        return results

    def _has_children(self, path: str) -> bool:
        return any(other != ROOT and parent(other) == path for other in self.nodes)


def _stat(czxid: int, mzxid: int, version: int) -> Stat:
    return Stat(czxid, mzxid, 0, 0, version, 0, 0, 0, 0, 0, 0)


class Client:
    """Drives the follower as the store does."""

    def __init__(self, server: Server) -> None:
        self.follower = TreeFollower()
        self.commits: list[Commit] = []
        self.zxid = 0
        self.asked: list[Read] | None = None  # On its way to the server.
        self._server = server
        server.on_event = self.follower.on_event

    def connect(self) -> None:
        self.asked = None
        self._server.stream.clear()
        self.follower.on_connected()
        self.read_on()

    def read_on(self) -> None:
        reads = self.follower.next_round(self.zxid)
        if reads:
            assert self.asked is None
            self.asked = reads

    def serve(self) -> None:
        """The request reaches the server, and the reply goes into the stream."""
        reads, self.asked = self.asked, None
        if reads is not None:
            results, zxid = self._server.read(reads), self._server.zxid
            self._server.stream.append(lambda: self._on_reply(reads, results, zxid))

    def _on_reply(self, reads: list[Read], results: list[Result], zxid: int) -> None:
        self.zxid = zxid
        self.follower.on_round(reads, results)
        commit = self.follower.published_at(zxid)
        if commit is not None:
            self.commits.append(commit)
        self.read_on()

    def receive(self) -> None:
        if self._server.stream:
            self._server.stream.popleft()()
            self.read_on()


def play(seed: int, steps: int) -> tuple[Server, Client]:
    random = Random(seed)
    server = Server()
    client = Client(server)
    for _ in range(random.randrange(10)):
        server.change(random)
    client.connect()
    for _ in range(steps):
        kind = random.random()
        if kind < 0.3:
            server.change(random)
        elif kind < 0.6:
            client.serve()
        elif kind < 0.98:
            client.receive()
        else:
            client.connect()
    server.change(random)
    while server.stream or client.asked:
        client.serve()
        client.receive()
    return server, client


def fold(commits: list[Commit]) -> list[tuple[int, dict[str, bytes]]]:
    state: dict[str, bytes] = {}
    folded = []
    for revision, changes in commits:
        for key, entry in changes:
            if entry is None:
                state.pop(key, None)
            else:
                state[key] = entry.value
        folded.append((revision, dict(state)))
    return folded


@given(seed=st.integers(0, 2**32), steps=st.integers(0, 150))
def test_each_commit_is_the_tree_as_it_was(seed: int, steps: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree_follower, "ROUNDS_MAX", 10**9)
        server, client = play(seed, steps)
    revisions = [commit.revision for commit in client.commits]
    assert revisions == sorted(set(revisions))
    for revision, state in fold(client.commits):
        assert state == server.history[revision]
    assert fold(client.commits)[-1][1] == server.entries()


@example(seed=4_152_431_225, steps=68, rounds_max=0, paths_max=3)  # A parent was gone, its child asked for too late.
@given(seed=st.integers(0, 2**32), steps=st.integers(0, 150), rounds_max=st.integers(0, 3), paths_max=st.integers(1, 3))
def test_nothing_is_lost_when_the_writes_do_not_end(seed: int, steps: int, rounds_max: int, paths_max: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree_follower, "ROUNDS_MAX", rounds_max)
        patch.setattr(tree_follower, "PATHS_READ_MAX", paths_max)
        server, client = play(seed, steps)
    revisions = [commit.revision for commit in client.commits]
    assert revisions == sorted(set(revisions))
    assert fold(client.commits)[-1][1] == server.entries()
