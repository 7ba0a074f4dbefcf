"""What only the ZooKeeper store must bear: servers that die, networks that cut and fall silent, sessions that end."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from cuttable_proxy import CuttableProxy
from local_zookeeper import zookeeper_ensemble
from penstock.cluster.store.base import (
    Check,
    CommitTooLarge,
    CommitUnknown,
    Conflict,
    Delete,
    MetadataStore,
    Put,
    StoreUnavailable,
)
from penstock.cluster.store.zookeeper import jute
from penstock.cluster.store.zookeeper.store import ZooKeeperStore
from penstock.local.zookeeper import HOST, ZooKeeperEnsemble
from store_backends import fresh_chroot, zookeeper_store
from zookeeper_sessions import end_session

TEST_S_MAX = 120
LONG_MS = 40_000  # The most that the server grants is 20 ticks; no test waits for it.


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), TEST_S_MAX))


@asynccontextmanager
async def opened(connect: str, session_timeout_ms: int = LONG_MS) -> AsyncIterator[ZooKeeperStore]:
    store = zookeeper_store(connect, session_timeout_ms)
    await store.start()
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def behind_proxy(
    ensemble: ZooKeeperEnsemble, chroot: str, session_timeout_ms: int = LONG_MS
) -> AsyncIterator[tuple[ZooKeeperStore, CuttableProxy]]:
    proxy = CuttableProxy(ensemble.nodes[0].port)
    await proxy.start()
    try:
        async with opened(f"{HOST}:{proxy.port}/{chroot}", session_timeout_ms) as store:
            yield store, proxy
    finally:
        await proxy.close()


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 - what it asks for has no event.
        await asyncio.sleep(0.01)


async def keys(store: MetadataStore) -> list[str]:
    return [entry.key for entry in (await store.list("/")).entries]


def test_a_client_that_is_cut_off_and_returns_in_time_keeps_its_keys(zookeeper: ZooKeeperEnsemble) -> None:
    async def scenario() -> None:
        chroot = fresh_chroot()
        async with behind_proxy(zookeeper, chroot) as (store, proxy), opened(f"{zookeeper.connect}/{chroot}") as other:
            lease = await store.open_lease("broker-1")
            created = await store.commit([], [Put("/mine", b"", lease.id)])
            session_id = store._session.id
            for _ in range(3):
                proxy.cut()
                await until(lambda: not store._session.is_connected)
                proxy.heal()
                await until(lambda: store._is_ready)
            assert (store._session.id, lease.is_lost) == (session_id, False)
            entry = await other.get("/mine")
            assert entry is not None
            assert entry.created == created
            await until(lambda: lease.may_act_until > time.monotonic())
            await store.commit([], [Put("/more", b"", lease.id)])

    run(scenario)


def test_the_feed_has_no_gap_after_a_cut(zookeeper: ZooKeeperEnsemble) -> None:
    async def scenario() -> None:
        chroot = fresh_chroot()
        async with behind_proxy(zookeeper, chroot) as (store, proxy), opened(f"{zookeeper.connect}/{chroot}") as other:
            await other.commit([], [Put(f"/k/{number}/x", b"old") for number in range(20)])
            listing = await store.list("/")
            state = {entry.key: entry.value for entry in listing.entries}
            watch = store.watch(listing.revision)
            proxy.cut()
            await until(lambda: not store._session.is_connected)
            await other.commit([], [Delete(f"/k/{number}/x") for number in range(5)])
            await other.commit([], [Put(f"/k/{number}/x", b"new") for number in range(3, 10)])
            await other.commit([], [Put("/new/below/it", b"1")])
            last = await other.commit([], [Delete("/k/19/x")])
            proxy.heal()
            while True:
                revision, changes = await anext(watch)
                for key, entry in changes:
                    if entry is None:
                        del state[key]
                    else:
                        state[key] = entry.value
                if revision >= last:
                    break
            assert state == {entry.key: entry.value for entry in (await other.list("/")).entries}
            assert (len(state), state["/k/3/x"]) == (17, b"new")

    run(scenario)


def test_reliability_rule_3_nobody_learns_of_a_lost_lease_before_its_holder_has_stopped(
    zookeeper: ZooKeeperEnsemble,
) -> None:
    """Cut off in silence: the connection stays open, and nothing tells the holder."""

    async def scenario() -> None:
        chroot = fresh_chroot()
        async with (
            behind_proxy(zookeeper, chroot, session_timeout_ms=1500) as (store, proxy),
            opened(f"{zookeeper.connect}/{chroot}") as other,
        ):
            lease = await store.open_lease("broker-1")
            await store.commit([], [Put("/mine", b"", lease.id)])
            await until(lambda: lease.may_act_until > time.monotonic())
            watch = other.watch((await other.list("/")).revision)
            proxy.silence()
            while not any(change.key == "/mine" for change in (await anext(watch)).changes):
                pass
            assert time.monotonic() > lease.may_act_until
            assert not lease.is_lost  # It could not know.
            proxy.heal()
            await lease.lost()
            assert await keys(store) == []

    run(scenario)


def test_a_commit_whose_answer_is_lost_is_not_called_a_failure(zookeeper: ZooKeeperEnsemble) -> None:
    async def scenario() -> None:
        chroot = fresh_chroot()
        async with behind_proxy(zookeeper, chroot) as (store, proxy), opened(f"{zookeeper.connect}/{chroot}") as other:
            start = (await store.list("/")).revision
            proxy.silence_replies()
            commit = asyncio.create_task(store.commit([], [Put("/a", b"1")]))
            while await other.get("/a") is None:
                pass
            proxy.cut()
            with pytest.raises(CommitUnknown):
                await commit
            proxy.heal()
            while not (commits := (await anext(store.watch(start))).changes):
                start += 1
            assert [change.key for change in commits] == ["/a"]

    run(scenario)


@pytest.mark.parametrize("loop", [asyncio.run, uvloop.run])
def test_what_is_sent_just_after_the_connection_broke_has_no_answer(
    zookeeper: ZooKeeperEnsemble, loop: Callable[..., None]
) -> None:
    """For a turn or two of the loop nobody has noticed, and uvloop raises a RuntimeError of its own."""

    async def scenario() -> None:
        async with opened(f"{zookeeper.connect}/{fresh_chroot()}") as store:
            answers: list[object] = []
            session = store._session
            session.drop_connection()
            sent = 0
            while session.is_connected:
                session.send(jute.Type.SYNC, jute.path_body("/"), answers.append)
                sent += 1
                await asyncio.sleep(0)
            assert answers == [None] * sent
            await store.commit([], [Put("/a", b"1")])

    loop(asyncio.wait_for(scenario(), TEST_S_MAX))


def test_without_a_server_the_store_says_so_and_goes_on_later(tmp_path: Path) -> None:
    async def scenario(ensemble: ZooKeeperEnsemble) -> None:
        node = ensemble.nodes[0]
        async with opened(ensemble.connect, session_timeout_ms=4000) as store:
            lease = await store.open_lease("broker-1")
            await store.commit([], [Put("/mine", b"", lease.id), Put("/kept", b"1")])
            session_id = store._session.id
            node.kill()
            await until(lambda: not store._session.is_connected)
            with pytest.raises(StoreUnavailable, match=f"no ZooKeeper server of {HOST}:{node.port} serves us"):
                await store.commit([], [Put("/more", b"")])
            assert time.monotonic() > lease.may_act_until
            node.start()
            await until(lambda: store._is_ready)
            # A server that starts counts the time of its sessions anew.
            assert store._session.id == session_id
            assert await keys(store) == ["/kept", "/mine"]
            await store.commit([], [Put("/more", b"", lease.id)])

    with zookeeper_ensemble(tmp_path) as ensemble:
        run(lambda: scenario(ensemble))


def test_a_server_that_falls_silent_is_left_for_another(tmp_path: Path) -> None:
    """And one that is killed: three nodes, of which the leader goes, twice."""

    async def scenario(ensemble: ZooKeeperEnsemble) -> None:
        async with (
            opened(f"{ensemble.connect}/x", session_timeout_ms=6000) as store,
            opened(f"{ensemble.connect}/x") as other,
        ):
            lease = await store.open_lease("broker-1")
            revision = await store.commit([], [Put("/mine", b"", lease.id), Put("/n", b"0")])
            for number, harm in enumerate((signal.SIGKILL, signal.SIGSTOP), 1):
                leader = ensemble.leader()
                leader.signal(harm)
                while True:
                    try:
                        revision = await store.commit([Check("/n", revision)], [Put("/n", b"%d" % number)])
                        break
                    except CommitUnknown:
                        entry = await store.get("/n")
                        assert entry is not None
                        revision = entry.version
                        if entry.value == b"%d" % number:
                            break
                    except StoreUnavailable:
                        pass
                entry = await other.get("/n")
                assert entry is not None
                assert (entry.value, entry.version) == (b"%d" % number, revision)
                leader.kill()
                leader.start()
                await asyncio.to_thread(leader.wait_until_serving)
            assert await keys(other) == (["/n"] if lease.is_lost else ["/mine", "/n"])

    with zookeeper_ensemble(tmp_path, nodes=3) as ensemble:
        run(lambda: scenario(ensemble))


def test_a_session_that_ends_is_followed_by_a_new_one_that_sees_everything(zookeeper: ZooKeeperEnsemble) -> None:
    async def scenario() -> None:
        connect = f"{zookeeper.connect}/{fresh_chroot()}"
        async with opened(connect) as store, opened(connect) as other:
            lease = await store.open_lease("broker-1")
            await store.commit([], [Put("/mine", b"", lease.id)])
            watch = store.watch((await store.list("/")).revision)
            await end_session(store)
            await lease.lost()
            await other.commit([Check("/mine", 0)], [Put("/mine", b"theirs"), Put("/other", b"1")])
            seen: dict[str, bytes | None] = {}
            while seen != {"/mine": b"theirs", "/other": b"1"}:
                for key, entry in (await anext(watch)).changes:
                    seen[key] = entry.value if entry else None
            await lease.close()  # Of the old session: the key of the same name is not its own.
            assert await keys(other) == ["/mine", "/other"]

    run(scenario)


def test_a_commit_that_the_server_would_not_take_is_refused(zookeeper: ZooKeeperEnsemble) -> None:
    async def scenario() -> None:
        async with opened(f"{zookeeper.connect}/{fresh_chroot()}") as store:
            with pytest.raises(CommitTooLarge, match=r"a commit of 2 operations has 1\d{6} bytes, allowed are 1000000"):
                await store.commit([], [Put("/a/b", b"x" * 1_000_000)])
            assert await keys(store) == []
            value = b"x" * 990_000
            await store.commit([], [Put("/a", value)])
            entry = await store.get("/a")
            assert entry is not None
            assert entry.value == value

    run(scenario)


def test_writers_that_make_and_delete_the_same_branch_do_not_stop_each_other(zookeeper: ZooKeeperEnsemble) -> None:
    """The znodes above a key come and go with it, so each finds the other's plans overtaken again and again."""

    async def toggle(store: MetadataStore, name: str) -> None:
        for _ in range(30):
            await store.commit([], [Put(f"/a/b/c/d/{name}", b"1")])
            await store.commit([], [Delete(f"/a/b/c/d/{name}")])

    async def scenario() -> None:
        connect = f"{zookeeper.connect}/{fresh_chroot()}"
        async with opened(connect) as one, opened(connect) as two:
            await asyncio.gather(toggle(one, "one"), toggle(two, "two"))
            assert await keys(one) == []

    run(scenario)


def test_a_conflict_that_the_copy_does_not_know_of_yet(zookeeper: ZooKeeperEnsemble) -> None:
    """The server decides, not the copy: silence keeps the events of the other's write from coming first."""

    async def scenario() -> None:
        chroot = fresh_chroot()
        async with behind_proxy(zookeeper, chroot) as (store, proxy), opened(f"{zookeeper.connect}/{chroot}") as other:
            version = await store.commit([], [Put("/a", b"1")])
            await other.get("/a")
            proxy.silence_replies()
            theirs = await other.commit([Check("/a", version)], [Put("/a", b"2")])
            commit = asyncio.create_task(store.commit([Check("/a", version)], [Put("/a", b"3")]))
            await asyncio.sleep(0.1)
            proxy.heal()
            with pytest.raises(Conflict) as conflict:
                await commit
            assert conflict.value.key == "/a"
            assert conflict.value.revision >= theirs
            entry = await store.get("/a")
            assert entry is not None
            assert (entry.value, entry.version) == (b"2", theirs)

    run(scenario)


def test_a_store_that_finds_no_server_does_not_start() -> None:
    async def scenario() -> None:
        store = zookeeper_store(f"{HOST}:1")
        store._connection_timeout_s = 0.5
        with pytest.raises(StoreUnavailable, match=f"no ZooKeeper server of {HOST}:1 serves us: {HOST}:1: .*failed"):
            await store.start()
        with pytest.raises(StoreUnavailable, match="closed"):
            await store.get("/a")

    run(scenario)


def test_a_server_that_is_something_else(zookeeper: ZooKeeperEnsemble) -> None:
    async def scenario() -> None:
        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(greet, HOST, 0)
        port = server.sockets[0].getsockname()[1]
        # It is passed over.
        async with opened(f"{HOST}:{port},{zookeeper.connect}/{fresh_chroot()}") as store:
            await store.commit([], [Put("/a", b"")])
        server.close()

    run(scenario)
