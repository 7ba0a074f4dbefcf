"""What every metadata store must do. One suite over all backends."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from pathlib import Path

import pytest

from penstock.cluster.store.base import (
    Change,
    Check,
    Commit,
    Compacted,
    Conflict,
    Delete,
    Entry,
    LeaseLost,
    MetadataStore,
    Put,
)
from penstock.cluster.store.feed import COMMITS_KEPT
from store_backends import Backend, MemoryBackend, SimBackend, SqliteBackend, ZooKeeperBackend

Scenario = Callable[[MetadataStore], Awaitable[None]]
BackendScenario = Callable[[Backend], Awaitable[None]]

SCENARIO_S_MAX = 120


@pytest.fixture(params=["memory", "sqlite", "zookeeper", "simulated"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    if request.param == "memory":
        return MemoryBackend()
    if request.param == "simulated":
        return SimBackend()
    if request.param == "sqlite":
        return SqliteBackend(tmp_path)
    return ZooKeeperBackend(request.getfixturevalue("zookeeper"))


def on(backend: Backend, scenario: BackendScenario) -> None:
    async def main() -> None:
        try:
            await scenario(backend)
        finally:
            await backend.close()

    run = backend.loop.run if isinstance(backend, SimBackend) else asyncio.run
    run(asyncio.wait_for(main(), SCENARIO_S_MAX))


@pytest.fixture
def run(backend: Backend) -> Callable[[Scenario], None]:
    def run_scenario(scenario: Scenario) -> None:
        async def with_store(backend: Backend) -> None:
            await scenario(await backend.open())

        on(backend, with_store)

    return run_scenario


async def take(commits: AsyncIterator[Commit], count: int) -> list[Commit]:
    return [await anext(commits) for _ in range(count)]


def test_put_then_get(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: MetadataStore) -> None:
        assert await store.get("/a") is None
        revision = await store.commit([], [Put("/a", b"1")])
        assert await store.get("/a") == Entry("/a", b"1", version=revision, created=revision)

    run(scenario)


def test_version_changes_with_each_write_and_created_does_not(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: MetadataStore) -> None:
        first = await store.commit([], [Put("/a", b"1")])
        second = await store.commit([], [Put("/a", b"1")])
        entry = await store.get("/a")
        assert entry is not None
        assert (entry.version, entry.created) == (second, first)
        await store.commit([], [Delete("/a")])
        await store.commit([], [Put("/a", b"1")])
        again = await store.get("/a")
        assert again is not None
        assert again.created > second
        assert again.version not in (first, second)

    run(scenario)


def test_list_gives_what_is_below_a_prefix_in_order(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: MetadataStore) -> None:
        keys = ["/b/2", "/a", "/b/10", "/b", "/bb", "/c"]
        revision = await store.commit([], [Put(key, key.encode()) for key in keys])
        listing = await store.list("/b/")
        assert [entry.key for entry in listing.entries] == ["/b/10", "/b/2"]
        assert listing.revision >= revision
        assert len((await store.list("/")).entries) == len(keys)
        assert (await store.list("/none")).entries == []

    run(scenario)


def test_commit_is_all_or_nothing(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: MetadataStore) -> None:
        revision = await store.commit([], [Put("/a", b"1"), Put("/b", b"1")])
        with pytest.raises(Conflict) as conflict:
            await store.commit(
                [Check("/a", revision), Check("/b", revision + 7)], [Put("/a", b"2"), Delete("/b"), Put("/c", b"2")]
            )
        assert conflict.value.key == "/b"
        assert conflict.value.revision >= revision
        listing = await store.list("/")
        assert [(entry.key, entry.value) for entry in listing.entries] == [("/a", b"1"), ("/b", b"1")]

    run(scenario)


def test_check_of_version_zero_wants_the_key_absent(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: MetadataStore) -> None:
        await store.commit([Check("/a", 0)], [Put("/a", b"1")])
        with pytest.raises(Conflict):
            await store.commit([Check("/a", 0)], [Put("/a", b"2")])

    run(scenario)


def test_of_two_who_compare_and_set_one_wins(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: MetadataStore) -> None:
        version = await store.commit([], [Put("/a", b"0")])
        results = await asyncio.gather(
            *(store.commit([Check("/a", version)], [Put("/a", b"%d" % i)]) for i in range(10)), return_exceptions=True
        )
        assert sum(isinstance(result, int) for result in results) == 1
        assert sum(isinstance(result, Conflict) for result in results) == 9

    run(scenario)


def test_watch_sees_each_commit_whole_and_in_order(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: MetadataStore) -> None:
        start = await store.commit([], [Put("/before", b"")])
        watch = store.watch(start)
        first = await store.commit([], [Put("/a", b"1"), Put("/b", b"1")])
        second = await store.commit([], [Delete("/a"), Delete("/never-there")])
        assert await take(watch, 2) == [
            Commit(
                first, (Change("/a", Entry("/a", b"1", first, first)), Change("/b", Entry("/b", b"1", first, first)))
            ),
            Commit(second, (Change("/a", None),)),
        ]

    run(scenario)


def test_watch_waits_for_what_comes(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: MetadataStore) -> None:
        watches = [store.watch((await store.list("/")).revision) for _ in range(3)]
        tasks = [asyncio.create_task(take(watch, 1)) for watch in watches]
        await asyncio.sleep(0)
        revision = await store.commit([], [Put("/a", b"1")])
        for task in tasks:
            assert [commit.revision for commit in await task] == [revision]

    run(scenario)


def test_watch_sees_a_commit_whose_caller_was_cancelled(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: MetadataStore) -> None:
        watch = store.watch((await store.list("/")).revision)
        task = asyncio.create_task(store.commit([], [Put("/a", b"1")]))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await store.commit([], [Put("/b", b"1")])
        keys: list[str] = []
        while "/b" not in keys:  # One commit or two: what follows closely may be seen as one.
            keys += [change.key for change in (await take(watch, 1))[0].changes]
        assert keys == ["/a", "/b"]

    run(scenario)


def test_watch_from_too_long_ago_is_told_so(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: MetadataStore) -> None:
        start = (await store.list("/")).revision
        revisions = [await store.commit([], [Put("/a", b"")]) for _ in range(COMMITS_KEPT + 1)]
        with pytest.raises(Compacted):
            await anext(store.watch(start))
        kept = await take(store.watch(revisions[0]), COMMITS_KEPT)
        assert [commit.revision for commit in kept] == revisions[1:]

    run(scenario)


def test_a_commit_without_changes_is_still_one(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: MetadataStore) -> None:
        start = (await store.list("/")).revision
        revision = await store.commit([], [])
        assert await take(store.watch(start), 1) == [Commit(revision, ())]

    run(scenario)


def test_keys_vanish_with_their_lease(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: MetadataStore) -> None:
        lease = await store.open_lease("broker-1")
        other = await store.open_lease("broker-2")
        await store.commit([], [Put("/theirs", b"", other.id)])
        revision = await store.commit([], [Put("/mine", b"", lease.id), Put("/ours", b"")])
        watch = store.watch(revision)
        assert not lease.is_lost
        await lease.close()
        assert lease.is_lost
        assert [entry.key for entry in (await store.list("/")).entries] == ["/ours", "/theirs"]
        assert (await take(watch, 1))[0].changes == (Change("/mine", None),)

    run(scenario)


def test_a_key_written_anew_belongs_to_the_new_lease(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: MetadataStore) -> None:
        lease = await store.open_lease("broker-1")
        await store.commit([], [Put("/a", b"1", lease.id)])
        await store.commit([], [Put("/a", b"2")])
        await lease.close()
        assert await store.get("/a") is not None

    run(scenario)


def test_nothing_can_be_put_under_a_lease_that_is_over(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: MetadataStore) -> None:
        lease = await store.open_lease("broker-1")
        await lease.close()
        await lease.close()
        with pytest.raises(LeaseLost):
            await store.commit([], [Put("/a", b"", lease.id)])
        assert await store.get("/a") is None

    run(scenario)


def test_ten_thousand_keys_in_one_commit(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: MetadataStore) -> None:
        revision = await store.commit([], [Put(f"/p/{number}", b"{}") for number in range(10_000)])
        assert len((await store.list("/p/")).entries) == 10_000
        assert len((await take(store.watch(revision - 1), 1))[0].changes) == 10_000

    run(scenario)


def test_check_of_an_absent_key_that_is_not_written(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: MetadataStore) -> None:
        await store.commit([Check("/a/b/c", 0)], [Put("/d", b"1")])
        assert [entry.key for entry in (await store.list("/")).entries] == ["/d"]
        with pytest.raises(Conflict):
            await store.commit([Check("/d", 0)], [Put("/e", b"1")])

    run(scenario)


def test_keys_above_and_below_each_other(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: MetadataStore) -> None:
        async def keys() -> list[str]:
            return [entry.key for entry in (await store.list("/")).entries]

        await store.commit([], [Put("/a/b/c/d", b"1"), Put("/a/b", b"1")])
        assert await keys() == ["/a/b", "/a/b/c/d"]
        assert await store.get("/a/b/c") is None
        await store.commit([Check("/a/b/c", 0)], [Delete("/a/b"), Put("/a/b/c", b"1")])
        assert await keys() == ["/a/b/c", "/a/b/c/d"]
        await store.commit([], [Delete("/a/b/c"), Delete("/a/b/c/d"), Put("/a/b/c/e", b"1")])
        assert await keys() == ["/a/b/c/e"]
        await store.commit([], [Delete("/a/b/c/e")])
        assert await keys() == []
        await store.commit([Check("/a/b/c/e", 0)], [Put("/a/b/c/e", b"2")])
        assert await keys() == ["/a/b/c/e"]

    run(scenario)


def test_a_lease_that_is_open_may_be_acted_on(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: MetadataStore) -> None:
        lease = await store.open_lease("broker-1")
        await store.commit([], [Put("/a", b"", lease.id)])
        assert lease.may_act_until > asyncio.get_running_loop().time()
        waiting = asyncio.create_task(lease.lost())
        await lease.close()
        await waiting
        assert lease.may_act_until == float("-inf")

    run(scenario)


# Several clients ------------------------------------------------------------------------------------------------------


async def increment(store: MetadataStore, times: int) -> None:
    for _ in range(times):
        while True:
            entry = await store.get("/counter")
            value = int(entry.value) if entry else 0
            try:
                await store.commit(
                    [Check("/counter", entry.version if entry else 0)], [Put("/counter", b"%d" % (value + 1))]
                )
                break
            except Conflict:
                continue


def test_clients_that_compare_and_set_lose_no_update(backend: Backend) -> None:
    async def scenario(backend: Backend) -> None:
        stores = [await backend.open() for _ in range(4)]
        start = (await stores[0].list("/")).revision
        await asyncio.gather(*(increment(store, 15) for store in stores))
        entry = await stores[0].get("/counter")
        assert entry is not None
        assert entry.value == b"60"
        seen = []
        async for commit in stores[1].watch(start):
            seen += [int(change.entry.value) for change in commit.changes if change.entry is not None]
            if seen and seen[-1] == 60:
                break
        assert all(before < after for before, after in pairwise(seen))

    on(backend, scenario)


def test_watchers_see_whole_commits_in_order_and_miss_no_state(backend: Backend) -> None:
    """Each commit writes a pair, so a part of one would show."""

    async def follow(store: MetadataStore, after: int) -> dict[str, bytes]:
        state: dict[str, bytes] = {}
        last = after
        async for revision, changes in store.watch(after):
            assert revision > last
            last = revision
            for key, entry in changes:
                if entry is None:
                    state.pop(key, None)
                else:
                    state[key] = entry.value
            for number in range(5):
                assert state.get(f"/pair/{number}/left") == state.get(f"/pair/{number}/right")
            if "/end" in state:
                return state
        raise AssertionError("the feed has ended")

    async def write(store: MetadataStore, writer: int) -> None:
        for step in range(60):
            keys = [f"/pair/{step % 5}/left", f"/pair/{step % 5}/right"]
            value = b"%d-%d" % (writer, step)
            await store.commit([], [Delete(key) if step % 7 == 6 else Put(key, value) for key in keys])

    async def scenario(backend: Backend) -> None:
        writers = [await backend.open() for _ in range(2)]
        watchers = [await backend.open(), *writers]
        followers = [asyncio.create_task(follow(watcher, (await watcher.list("/")).revision)) for watcher in watchers]
        await asyncio.gather(*(write(store, number) for number, store in enumerate(writers)))
        await writers[0].commit([], [Put("/end", b"")])
        for follower in followers:
            expected = {entry.key: entry.value for entry in (await writers[1].list("/")).entries}
            assert await follower == expected

    on(backend, scenario)


def test_one_client_sees_what_another_has_committed(backend: Backend) -> None:
    async def scenario(backend: Backend) -> None:
        one, two = await backend.open(), await backend.open()
        for number in range(50):
            revision = await one.commit([], [Put("/a", b"%d" % number)])
            assert await two.get("/a") == await one.get("/a")
            entry = await two.get("/a")
            assert entry is not None
            assert (entry.value, entry.version) == (b"%d" % number, revision)

    on(backend, scenario)


@pytest.mark.parametrize("backend", ["memory", "zookeeper"], indirect=True)  # SQLite's leases end with the process.
def test_a_client_that_is_taken_for_dead_loses_its_keys_and_learns_of_it(backend: Backend) -> None:
    async def scenario(backend: Backend) -> None:
        one, two = await backend.open(), await backend.open()
        lease = await one.open_lease("broker-1")
        await one.commit([], [Put("/mine", b"", lease.id), Put("/kept", b"")])
        watch = two.watch((await two.list("/")).revision)
        await backend.expire(one, "broker-1")
        await lease.lost()
        assert lease.is_lost
        assert lease.may_act_until == float("-inf")
        changes: tuple[Change, ...] = ()
        while not changes:
            changes = (await anext(watch)).changes
        assert changes == (Change("/mine", None),)
        with pytest.raises(LeaseLost):
            await one.commit([], [Put("/mine", b"", lease.id)])
        assert [entry.key for entry in (await one.list("/")).entries] == ["/kept"]
        again = await one.open_lease("broker-1")
        await one.commit([Check("/mine", 0)], [Put("/mine", b"", again.id)])
        assert await two.get("/mine") is not None

    on(backend, scenario)


def test_reliability_rule_4_a_deposed_controller_writes_nothing(backend: Backend) -> None:
    async def elect(store: MetadataStore, name: bytes) -> int:
        lease = await store.open_lease("controller")
        epoch = await store.get("/controller_epoch")
        return await store.commit(
            [Check("/controller", 0), Check("/controller_epoch", epoch.version if epoch else 0)],
            [Put("/controller", name, lease.id), Put("/controller_epoch", name)],
        )

    async def scenario(backend: Backend) -> None:
        one, two = await backend.open(), await backend.open()
        old_version = await elect(one, b"1")
        with pytest.raises(Conflict) as taken:
            await elect(two, b"2")
        assert taken.value.key == "/controller"
        await one.commit([Check("/controller_epoch", old_version)], [Put("/decision", b"1")])
        await two.commit([], [Delete("/controller")])  # What the end of its session does.
        new_version = await elect(two, b"2")
        with pytest.raises(Conflict) as fenced:
            await one.commit([Check("/controller_epoch", old_version)], [Put("/decision", b"zombie")])
        assert fenced.value.key == "/controller_epoch"
        await two.commit([Check("/controller_epoch", new_version)], [Put("/other", b"2")])
        decision = await one.get("/decision")
        assert decision is not None
        assert decision.value == b"1"

    on(backend, scenario)
