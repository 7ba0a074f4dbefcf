"""What every metadata store must do. One suite over all backends."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
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
    StoreUnavailable,
)
from penstock.cluster.store.feed import COMMITS_KEPT
from penstock.cluster.store.memory import MemoryStore
from penstock.cluster.store.sqlite import SqliteStore

Scenario = Callable[[MetadataStore], Awaitable[None]]


@pytest.fixture(params=["memory", "sqlite"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Scenario], None]:
    def make() -> MetadataStore:
        return MemoryStore() if request.param == "memory" else SqliteStore(str(tmp_path / "metadata.db"))

    def run_scenario(scenario: Scenario) -> None:
        async def main() -> None:
            async with opened(make()) as store:
                await scenario(store)

        asyncio.run(asyncio.wait_for(main(), 30))

    return run_scenario


@asynccontextmanager
async def opened(store: MetadataStore) -> AsyncIterator[MetadataStore]:
    await store.start()
    try:
        yield store
    finally:
        await store.close()


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
        assert listing.revision == revision
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
        assert conflict.value.revision == revision
        listing = await store.list("/")
        assert [(entry.key, entry.value) for entry in listing.entries] == [("/a", b"1"), ("/b", b"1")]
        assert listing.revision == revision

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
        assert [[change.key for change in commit.changes] for commit in await take(watch, 2)] == [["/a"], ["/b"]]

    run(scenario)


def test_watch_from_too_long_ago_is_told_so(run: Callable[[Scenario], None]) -> None:
    async def scenario(store: MetadataStore) -> None:
        start = (await store.list("/")).revision
        for _ in range(COMMITS_KEPT + 1):
            await store.commit([], [Put("/a", b"")])
        with pytest.raises(Compacted):
            await anext(store.watch(start))
        assert len(await take(store.watch(start + 1), COMMITS_KEPT)) == COMMITS_KEPT

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
        revision = await store.commit(
            [], [Put("/mine", b"", lease.id), Put("/theirs", b"", other.id), Put("/ours", b"")]
        )
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


# What only one of them does


def test_memory_store_expires_the_leases_of_a_crashed_broker() -> None:
    async def scenario() -> None:
        store = MemoryStore()
        one, two = await store.open_lease("broker-1"), await store.open_lease("broker-2")
        await store.commit([], [Put("/1", b"", one.id), Put("/2", b"", two.id), Put("/kept", b"")])
        store.expire_leases("broker-1")
        assert (one.is_lost, two.is_lost) == (True, False)
        assert [entry.key for entry in (await store.list("/")).entries] == ["/2", "/kept"]
        store.expire_leases()
        assert [entry.key for entry in (await store.list("/")).entries] == ["/kept"]

    asyncio.run(scenario())


def test_memory_store_outlives_the_event_loop_of_a_crashed_broker() -> None:
    store = MemoryStore()

    async def crash() -> None:
        task = asyncio.create_task(take(store.watch(0), 1))
        await asyncio.sleep(0)
        task.cancel()

    async def next_broker() -> None:
        await store.commit([], [Put("/a", b"")])
        assert len(await take(store.watch(0), 1)) == 1

    asyncio.run(crash())
    asyncio.run(next_broker())


def test_sqlite_store_keeps_keys_and_ends_leases_over_a_crash(tmp_path: Path) -> None:
    path = str(tmp_path / "dir" / "metadata.db")

    async def crash() -> int:
        store = SqliteStore(path)
        await store.start()
        lease = await store.open_lease("broker-1")
        revision = await store.commit([], [Put("/kept", b"1"), Put("/lost", b"", lease.id)])
        await store._run(store._database.close)  # The file is let go of, and nothing else is done.
        assert store._executor is not None
        store._executor.shutdown()
        return revision

    async def restart(revision: int) -> None:
        async with opened(SqliteStore(path)) as store:
            listing = await store.list("/")
            assert listing.entries == [Entry("/kept", b"1", revision, revision)]
            assert listing.revision > revision
            # A lease of the new process does not take over the number of an old one.
            lease = await store.open_lease("broker-1")
            await lease.close()
            assert await store.get("/kept") is not None

    asyncio.run(restart(asyncio.run(crash())))


def test_sqlite_store_lets_one_process_in(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(SqliteStore(str(tmp_path / "metadata.db"))):
            with pytest.raises(StoreUnavailable, match="another process has it open"):
                await SqliteStore(str(tmp_path / "metadata.db")).start()

    asyncio.run(scenario())


def test_sqlite_store_refuses_a_file_that_is_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "metadata.db").write_bytes(b"not a database at all" * 100)

    async def scenario() -> None:
        with pytest.raises(StoreUnavailable, match="cannot be opened"):
            await SqliteStore(str(tmp_path / "metadata.db")).start()

    asyncio.run(scenario())


def test_sqlite_store_refuses_a_newer_format(tmp_path: Path) -> None:
    import sqlite3

    connection = sqlite3.connect(tmp_path / "metadata.db")
    connection.execute("PRAGMA user_version = 99")
    connection.close()

    async def scenario() -> None:
        with pytest.raises(StoreUnavailable, match="has format 99"):
            await SqliteStore(str(tmp_path / "metadata.db")).start()

    asyncio.run(scenario())


def test_sqlite_store_that_is_closed_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = SqliteStore(str(tmp_path / "metadata.db"))
        await store.start()
        await store.close()
        await store.close()
        with pytest.raises(StoreUnavailable):
            await store.get("/a")

    asyncio.run(scenario())
