"""What only the SQLite store does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.cluster.store.base import Entry, MetadataStore, Put, StoreUnavailable
from penstock.cluster.store.sqlite import SqliteStore


@asynccontextmanager
async def opened(store: MetadataStore) -> AsyncIterator[MetadataStore]:
    await store.start()
    try:
        yield store
    finally:
        await store.close()


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
