from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.sim.inode import SECTOR_BYTES, Inode


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
            st.tuples(st.just("overwrite"), st.integers(0, 80)),
            st.tuples(st.just("truncate"), st.integers(0, 80)),
            st.tuples(st.just("sync"), st.integers(0, 3)),
        ),
        max_size=20,
    ),
    st.integers(0, 1000),
)
def test_what_a_full_sync_covered_is_found_again(steps, seed):
    """Against a model: the content at the last sync that covered everything, as far as nothing touched it since."""
    inode = Inode(0)
    safe = b""  # A prefix that must be found, unless a truncation or an overwrite came after it.
    content = b""
    for stamp, (kind, argument) in enumerate(steps, 1):
        if kind == "append":
            inode.append(argument, stamp)
            content += argument
        elif kind == "overwrite":
            start = min(argument, len(content))
            inode.overwrite(start, b"over", stamp)
            content = content[:start] + b"over" + content[start + 4 :]
            safe = safe[:start]
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


def filled(data: bytes) -> Inode:
    inode = Inode(0)
    inode.append(data, stamp=0)
    inode.sync(begun=0)
    return inode


def test_an_overwrite_is_seen_at_once_and_durable_after_a_sync():
    inode = filled(b"0123456789")
    inode.overwrite(3, b"abc", stamp=1)
    assert bytes(inode.content) == b"012abc6789"
    assert inode.durable == b"0123456789"
    assert outcomes(lambda: _copy(inode)) == {b"0123456789", b"012abc6789"}
    inode.sync(begun=1)
    assert inode.durable == b"012abc6789"
    assert outcomes(lambda: _copy(inode)) == {b"012abc6789"}


def test_a_sync_owes_nothing_to_overwrites_after_it_began():
    inode = filled(b"0123456789")
    inode.overwrite(0, b"aaaa", stamp=1)
    inode.overwrite(2, b"bbbb", stamp=2)
    inode.sync(begun=1)
    assert inode.durable == b"aaaa456789"
    assert outcomes(lambda: _copy(inode)) == {b"aaaa456789", b"aabbbb6789"}


def test_unsynced_overwrites_reach_the_disk_in_any_order():
    inode = filled(b"0123456789")
    inode.overwrite(0, b"aaaa", stamp=1)
    inode.overwrite(2, b"bbbb", stamp=2)
    assert outcomes(lambda: _copy(inode)) == {b"0123456789", b"aaaa456789", b"01bbbb6789", b"aabbbb6789"}


def test_a_torn_overwrite_is_torn_between_sectors():
    old, new = b"o" * (5 * SECTOR_BYTES), b"n" * (3 * SECTOR_BYTES)
    start = SECTOR_BYTES // 2  # It touches four sectors: the first and the last by half.

    def make() -> Inode:
        inode = filled(old)
        inode.overwrite(start, new, stamp=1)
        return inode

    edges = [0, start, *(number * SECTOR_BYTES for number in (1, 2, 3)), start + len(new), len(old)]
    found = set()
    for content in outcomes(make):
        parts = [set(content[first:end]) for first, end in pairwise(edges)]
        assert all(len(part) == 1 for part in parts), "a sector is written as a whole"
        found.add(bytes(part.pop() for part in parts).decode())
    assert len(found) == 2**4
    assert all(parts[0] + parts[-1] == "oo" for parts in found), "what was not written over is not touched"


def test_an_overwrite_at_the_end_extends_the_file():
    inode = Inode(0)
    inode.overwrite(0, b"0123", stamp=1)
    inode.sync(begun=1)
    inode.overwrite(2, b"abcd", stamp=2)
    assert bytes(inode.content) == b"01abcd"
    assert inode.durable == b"0123"
    inode.sync(begun=2)
    assert inode.durable == b"01abcd"
    with pytest.raises(AssertionError):
        inode.overwrite(7, b"x", stamp=3)


def test_an_overwrite_of_unsynced_bytes_is_synced_apart_from_them():
    inode = filled(b"01")
    inode.append(b"2345", stamp=1)
    inode.overwrite(1, b"ab", stamp=2)
    inode.sync(begun=1)
    assert inode.durable == b"012345"
    assert outcomes(lambda: _copy(inode)) == {b"012345", b"0ab345"}
    inode.sync(begun=2)
    assert outcomes(lambda: _copy(inode)) == {b"0ab345"}


def test_what_blocking_work_wrote_over_the_loops_bytes_stays_on_top():
    """Its stamp is earlier than that of the write it covers: the time at which it was handed in."""
    inode = filled(b"0123")
    inode.overwrite(0, b"aaaa", stamp=2)
    inode.overwrite(1, b"bb", stamp=1)
    inode.sync(begun=1)
    assert inode.durable == b"0bb3"
    assert all(content[1:3] == b"bb" for content in outcomes(lambda: _copy(inode)))
    inode.sync(begun=2)
    assert inode.durable == b"abba"


def test_an_overwrite_is_no_more_durable_than_the_bytes_under_it():
    inode = filled(b"01")
    inode.append(b"2345", stamp=2)
    inode.overwrite(1, b"abc", stamp=1)  # By blocking work that was handed in before the append.
    inode.sync(begun=1)
    assert inode.durable == b"0a"
    inode.sync(begun=2)
    assert inode.durable == b"0abc45"


def test_an_overwrite_does_not_bring_back_an_end_that_was_lost():
    def make() -> Inode:
        inode = filled(b"01")
        inode.append(b"2345", stamp=1)
        inode.overwrite(1, b"abcde", stamp=2)
        return inode

    found = outcomes(make)
    assert {b"01", b"0a", b"012345", b"0abcde"} <= found
    assert max(map(len, found)) == 6


def test_a_truncation_takes_overwrites_along():
    inode = filled(b"0123456789")
    inode.overwrite(2, b"abcd", stamp=1)
    inode.overwrite(7, b"xy", stamp=2)
    inode.truncate(4, stamp=3)
    inode.append(b"ABCDEF", stamp=4)
    assert bytes(inode.content) == b"01abABCDEF"
    found = outcomes(lambda: _copy(inode))
    assert {b"0123456789", b"01ab456789", b"0123ABCDEF", b"01abABCDEF"} <= found
    inode.sync(begun=2)  # Began before the truncation.
    assert inode.durable == b"01ab456789"
    inode.sync(begun=4)
    assert outcomes(lambda: _copy(inode)) == {b"01abABCDEF"}


def test_an_overwrite_behind_an_unsynced_truncation_leaves_what_it_may_uncover():
    inode = filled(b"0123456789")
    inode.truncate(4, stamp=1)
    inode.append(b"ABCDEF", stamp=2)
    inode.overwrite(3, b"xyz", stamp=3)
    found = outcomes(lambda: _copy(inode))
    assert {b"0123456789", b"012x456789", b"012xyzCDEF"} <= found
    assert not any(content.endswith(b"yz6789") for content in found)


def test_a_failed_sync_drops_overwrites_that_later_syncs_call_safe():
    old, new = b"o" * (3 * SECTOR_BYTES), b"n" * (3 * SECTOR_BYTES)
    found = set()
    for seed in range(100):
        inode = filled(old)
        inode.overwrite(0, new, stamp=1)
        inode.fail_sync(Random(seed))
        assert bytes(inode.content) == new, "still in the page cache"
        inode.sync(begun=1)
        found.add(crashed(inode, seed))
    assert {old, new} < found
    assert all(len(set(content[start:][:SECTOR_BYTES])) == 1 for content in found for start in (0, SECTOR_BYTES))


def test_a_failed_sync_that_loses_appended_bytes_loses_what_was_written_over_them():
    for seed in range(100):
        inode = filled(b"01")
        inode.append(b"2345", stamp=1)
        inode.overwrite(5, b"x", stamp=2)
        inode.fail_sync(Random(seed))
        inode.sync(begun=2)
        assert inode.durable.endswith(b"\0"), "the end is lost, whatever was written there"
        inode.overwrite(5, b"y", stamp=3)
        inode.sync(begun=3)
        assert inode.durable.endswith(b"y"), "what comes after the failure makes its page dirty again"


def test_without_overwrites_chance_is_asked_for_nothing_more():
    """Or no seed would replay what it has found."""
    inode = filled(b"0123456789")
    inode.overwrite(3, b"abc", stamp=1)
    inode.sync(begun=1)
    random = Random(7)
    inode.fail_sync(random)
    assert inode.crash(random) == "clean"
    assert random.getstate() == Random(7).getstate()


@given(
    st.lists(
        st.one_of(
            # A write from blocking work is stamped with the time at which that work was handed in.
            st.tuples(st.just("overwrite"), st.integers(0, 3), st.integers(0, 1200), st.integers(0, 1200)),
            st.tuples(st.just("sync"), st.integers(0, 3), st.just(0), st.just(0)),
        ),
        max_size=12,
    ),
    st.integers(0, 1000),
)
def test_every_byte_is_the_one_last_synced_or_a_later_one(steps, seed):
    """Against a model: for each byte all that was written there, in order, from what was synced last on."""
    size = 1200
    inode = filled(bytes(size))
    written: list[list[tuple[int, int]]] = [[(0, 0)] for _ in range(size)]
    for now, (kind, behind, position, count) in enumerate(steps, 1):
        stamp = max(0, now - behind)
        if kind == "overwrite":
            count = min(count, size - position)
            inode.overwrite(position, bytes([now]) * count, stamp)
            for values in written[position : position + count]:
                values.append((stamp, now))
        else:
            inode.sync(stamp)
            for values in written:
                synced = max((at for at, (when, _) in enumerate(values) if when <= stamp), default=0)
                del values[:synced]
        assert list(inode.content) == [values[-1][1] for values in written]
        assert list(inode.durable) == [values[0][1] for values in written]
    inode.crash(Random(seed))
    assert len(inode.content) == size
    for found, values in zip(inode.content, written, strict=True):
        assert found in {value for _, value in values}


def _copy(inode: Inode) -> Inode:
    twin = Inode(0)
    twin.__dict__.update(
        {name: value.copy() if hasattr(value, "copy") else value for name, value in vars(inode).items()}
    )
    return twin
