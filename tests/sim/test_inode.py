from random import Random

from hypothesis import given
from hypothesis import strategies as st

from penstock.sim.inode import Inode


def crashed(inode: Inode, seed: int = 0) -> bytes:
    inode.crash(Random(seed))
    return bytes(inode.content)


def outcomes(make, count: int = 300) -> set[bytes]:
    return {crashed(make(), seed) for seed in range(count)}


def test_synced_bytes_survive_every_crash():
    def make() -> Inode:
        inode = Inode(0)
        inode.append(b"a" * 700, stamp=1)
        inode.sync(begun=1)
        inode.append(b"b" * 2000, stamp=2)
        return inode

    found = outcomes(make)
    assert all(content.startswith(b"a" * 700) for content in found)
    whole = b"a" * 700 + b"b" * 2000
    assert b"a" * 700 in found
    assert whole in found
    torn = [content for content in found if whole.startswith(content) and 700 < len(content) < len(whole)]
    damaged = [content for content in found if len(content) == len(whole) and content != whole]
    assert torn
    assert damaged
    assert any(content.endswith(b"b") and b"\0" in content for content in damaged), "a hole with good data behind it"


def test_a_sync_owes_nothing_to_writes_after_it_began():
    inode = Inode(0)
    inode.append(b"before", stamp=1)
    inode.append(b"meanwhile", stamp=2)
    inode.sync(begun=1)
    assert b"before" in outcomes(lambda: _copy(inode))
    inode.sync(begun=2)
    assert outcomes(lambda: _copy(inode)) == {b"beforemeanwhile"}


def test_an_unsynced_truncation_may_be_undone():
    def make() -> Inode:
        inode = Inode(0)
        inode.append(b"0123456789", stamp=1)
        inode.sync(begun=1)
        inode.truncate(4, stamp=2)
        inode.append(b"xy", stamp=3)
        return inode

    assert bytes(make().content) == b"0123xy"
    found = outcomes(make)
    assert {b"0123456789", b"0123", b"0123xy"} <= found
    assert all(content == b"0123456789" or content.startswith(b"0123") for content in found)


def test_a_synced_truncation_stays():
    inode = Inode(0)
    inode.append(b"0123456789", stamp=1)
    inode.sync(begun=1)
    inode.truncate(4, stamp=2)
    inode.sync(begun=1)  # Began before the truncation.
    assert b"0123456789" in outcomes(lambda: _copy(inode))
    inode.sync(begun=2)
    assert outcomes(lambda: _copy(inode)) == {b"0123"}


def test_a_failed_sync_loses_data_that_later_syncs_call_safe():
    def make(seed: int) -> Inode:
        inode = Inode(0)
        inode.append(b"good", stamp=1)
        inode.sync(begun=1)
        inode.append(b"dropped", stamp=2)
        inode.fail_sync(Random(seed))
        inode.append(b"after", stamp=3)
        assert bytes(inode.content) == b"gooddroppedafter", "still in the page cache"
        inode.sync(begun=3)
        return inode

    found = {crashed(make(seed), seed) for seed in range(50)}
    assert all(content.startswith(b"good") and content.endswith(b"after") for content in found)
    assert b"good" + bytes(7) + b"after" in found
    assert b"gooddroppedafter" not in found


def test_truncating_beyond_the_end_fills_with_zeros():
    inode = Inode(0)
    inode.append(b"ab", stamp=1)
    inode.truncate(4, stamp=2)
    assert bytes(inode.content) == b"ab\0\0"


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.binary(max_size=40)),
            st.tuples(st.just("truncate"), st.integers(0, 80)),
            st.tuples(st.just("sync"), st.integers(0, 3)),
        ),
        max_size=20,
    ),
    st.integers(0, 1000),
)
def test_what_a_full_sync_covered_is_found_again(steps, seed):
    """Against a model: the content at the last sync that covered everything, as far as no truncation touched it."""
    inode = Inode(0)
    safe = b""  # A prefix that must be found, unless a truncation came after it.
    content = b""
    for stamp, (kind, argument) in enumerate(steps, 1):
        if kind == "append":
            inode.append(argument, stamp)
            content += argument
        elif kind == "truncate":
            inode.truncate(argument, stamp)
            content = content[:argument].ljust(argument, b"\0")
            safe = safe[:argument]
        else:
            behind = argument  # How many of the last writes the sync did not see.
            inode.sync(stamp - behind)
            if behind == 0:
                safe = content
        assert bytes(inode.content) == content
    inode.crash(Random(seed))
    assert bytes(inode.content).startswith(safe)


def _copy(inode: Inode) -> Inode:
    twin = Inode(0)
    twin.__dict__.update(
        {name: value.copy() if hasattr(value, "copy") else value for name, value in vars(inode).items()}
    )
    return twin
