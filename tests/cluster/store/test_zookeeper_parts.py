"""The pure parts of the ZooKeeper store: addresses, the wire format, plans of commits."""

import struct

import pytest

from penstock.cluster.store.base import Check, Conflict, Delete, Put
from penstock.cluster.store.zookeeper import jute
from penstock.cluster.store.zookeeper.address import ConnectString, parse_connect_string
from penstock.cluster.store.zookeeper.commit_plan import Operation, plan_commit
from penstock.cluster.store.zookeeper.jute import Stat, Type
from penstock.cluster.store.zookeeper.tree import Node, Tree

SESSION = 77


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("localhost", ConnectString((("localhost", 2181),), "")),
        ("a:1,b:2,c", ConnectString((("a", 1), ("b", 2), ("c", 2181)), "")),
        ("a:1, b:2/kafka/one", ConnectString((("a", 1), ("b", 2)), "/kafka/one")),
        ("a:1/", ConnectString((("a", 1),), "")),
        ("[::1]:5,[fe80::1]/x", ConnectString((("::1", 5), ("fe80::1", 2181)), "/x")),
    ],
)
def test_connect_strings(text: str, parsed: ConnectString) -> None:
    assert parse_connect_string(text) == parsed


@pytest.mark.parametrize("text", ["", "a:", "a:x", "a:0", "a:65536", ":5", "a,,b", "a//b", "a/../b", "a/./b"])
def test_connect_strings_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="is not"):
        parse_connect_string(text)


def test_results_of_a_transaction() -> None:
    stat = Stat(*range(11))
    packed = struct.pack(">qqqqiiiqiiq", *stat)
    body = b"".join(
        [
            struct.pack(">i?i", Type.CREATE2, False, 0) + struct.pack(">i", 2) + b"/a" + packed,
            struct.pack(">i?i", Type.SET_DATA, False, 0) + packed,
            struct.pack(">i?i", Type.DELETE, False, 0),
            struct.pack(">i?i", Type.GET_DATA, False, 0) + struct.pack(">i", -1) + packed,
            struct.pack(">i?i", Type.GET_CHILDREN, False, 0) + struct.pack(">ii", 1, 1) + b"x",
            struct.pack(">i?ii", -1, False, -101, -101),
            struct.pack(">i?i", -1, True, -1),
        ]
    )
    results = jute.read_results(memoryview(body))
    assert results == [stat, stat, None, (None, stat), ["x"], -101]
    assert jute.first_error(results) == 5
    assert jute.first_error([0, 0, -103, -2]) == 2
    assert jute.first_error([stat, None]) is None
    for end in range(len(body)):
        with pytest.raises((jute.Malformed, AssertionError)):
            jute.read_results(memoryview(body)[:end])


# Plans ----------------------------------------------------------------------------------------------------------------


def tree_of(**nodes: Node) -> Tree:
    tree = Tree()
    for name, node in {"": Node(None, 0, 0, 0, 0), **nodes}.items():
        tree.put(f"/{name.replace('_', '/')}", node)
    return tree


def entry(version: int = 0, owner: int = 0) -> Node:
    return Node(b"{}", version, 5, 5 + version, owner)


HOLDER = Node(None, 3, 1, 1, 0)


def plan(tree: Tree, checks: list[Check], writes: list[Put | Delete]) -> list[Operation]:
    return plan_commit(tree, 9, checks, writes, SESSION)


def test_a_put_makes_what_is_above_it() -> None:
    assert plan(tree_of(a=HOLDER), [], [Put("/a/b/c", b"2"), Put("/a/b", b"1"), Put("/a/d/e", b"3")]) == [
        Operation(Type.CREATE2, "/a/b", b"1"),
        Operation(Type.CREATE2, "/a/b/c", b"2"),
        Operation(Type.CREATE2, "/a/d"),
        Operation(Type.CREATE2, "/a/d/e", b"3"),
    ]


def test_a_put_of_what_is_there_sets_it() -> None:
    tree = tree_of(a=HOLDER, b=entry())
    assert plan(tree, [], [Put("/a", b"1"), Put("/b", b"old"), Put("/b", b"new")]) == [
        Operation(Type.SET_DATA, "/a", b"1"),
        Operation(Type.SET_DATA, "/b", b"new"),
    ]


def test_a_key_that_changes_its_lease_is_made_anew() -> None:
    tree = tree_of(mine=entry(owner=SESSION), theirs=entry(owner=5), ours=entry())
    assert plan(tree, [], [Put("/mine", b"1"), Put("/theirs", b"1", lease=1), Put("/ours", b"1", lease=1)]) == [
        Operation(Type.DELETE, "/mine"),
        Operation(Type.CREATE2, "/mine", b"1"),
        Operation(Type.DELETE, "/ours"),
        Operation(Type.CREATE2, "/ours", b"1", is_ephemeral=True),
        Operation(Type.DELETE, "/theirs"),
        Operation(Type.CREATE2, "/theirs", b"1", is_ephemeral=True),
    ]


def test_checks_come_first_and_carry_the_version_of_the_data() -> None:
    tree = tree_of(a=entry(version=4))
    assert plan(tree, [Check("/a", 9)], [Put("/b", b"")])[0] == Operation(Type.CHECK, "/a", version=4)
    with pytest.raises(Conflict) as conflict:
        plan(tree, [Check("/a", 8)], [Put("/b", b"")])
    assert (conflict.value.key, conflict.value.revision) == ("/a", 9)


def test_checks_that_a_key_is_absent() -> None:
    tree = tree_of(a=HOLDER, b=entry())
    assert plan(tree, [Check("/c", 0)], [Put("/c", b"")]) == [Operation(Type.CREATE2, "/c", b"")]
    assert plan(tree, [Check("/a", 0)], [Put("/a", b"")]) == [
        Operation(Type.CHECK, "/a", version=3),
        Operation(Type.SET_DATA, "/a", b""),
    ]
    assert plan(tree, [Check("/c/d/e", 0), Check("/c/f", 0)], []) == [
        Operation(Type.CREATE2, "/c"),
        Operation(Type.DELETE, "/c"),
    ]
    with pytest.raises(Conflict):
        plan(tree, [Check("/b", 0)], [])


def test_a_delete_takes_what_only_held_it_up() -> None:
    tree = tree_of(b=HOLDER, b_t=HOLDER, b_t_x=entry(), b_t_x_p=HOLDER, b_t_x_p_0=HOLDER, b_t_x_p_0_s=entry())
    whole = [Operation(Type.DELETE, path) for path in ("/b/t/x/p/0/s", "/b/t/x/p/0", "/b/t/x/p", "/b/t/x")]
    assert plan(tree, [], [Delete("/b/t/x"), Delete("/b/t/x/p/0/s"), Delete("/none")]) == whole
    assert plan(tree, [], [Delete("/b/t/x")]) == [Operation(Type.SET_DATA, "/b/t/x", None)]
    assert plan(tree, [], [Delete("/b/t/x"), Delete("/b/t/x/p/0/s"), Put("/b/t/x/p/1", b"1")]) == [
        Operation(Type.CREATE2, "/b/t/x/p/1", b"1"),
        *whole[:2],
        Operation(Type.SET_DATA, "/b/t/x", None),
    ]
