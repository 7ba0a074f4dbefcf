"""Writes past the page cache, by every way that the kernel can be asked for them."""

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from penstock.storage.direct_file import BLOCK_BYTES, DirectFile
from penstock.storage.fs import PosixFileSystem
from penstock.storage.kernel_syncs import WAYS, KernelSyncs, Way

from .support import run

BLOCKS = 8
Scenario = Callable[[DirectFile, Path], Awaitable[None]]


def carry_out(directory: Path, way: Callable[[int], Way], scenario: Scenario) -> None:
    """With a file of so many blocks of dots, which has been filled through the page cache."""
    path = directory / "file"
    path.write_bytes(b"." * BLOCKS * BLOCK_BYTES)

    async def main() -> None:
        with KernelSyncs([way]) as syncs:
            direct = PosixFileSystem(None, syncs).open_direct(str(path), 4 * BLOCK_BYTES)
            if direct is None or (done := begin(direct, 0, b"?")) is None:
                pytest.skip(f"NOT TESTED: direct writes by {way.__name__}: this system does not have them")
            await done
            await scenario(direct, path)
            direct.close()

    run(main())


def begin(direct: DirectFile, block: int, letter: bytes, blocks: int = 1) -> "asyncio.Future[None] | None":
    size = blocks * BLOCK_BYTES
    direct.memory[:size] = letter * size
    return direct.begin(block * BLOCK_BYTES, size)


async def write(direct: DirectFile, block: int, letter: bytes, blocks: int = 1) -> None:
    done = begin(direct, block, letter, blocks)
    assert done is not None
    await done


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Callable[[int], Way]:
    try:
        request.param(1).close()
    except OSError as error:
        pytest.skip(f"NOT TESTED: direct writes by {request.param.__name__}: {error}")
    return request.param


def letters(path: Path) -> str:
    """One for each block, of which it has to be full."""
    content = path.read_bytes()
    blocks = [content[start : start + BLOCK_BYTES] for start in range(0, len(content), BLOCK_BYTES)]
    assert all(len(set(block)) == 1 for block in blocks)
    return "".join(chr(block[0]) for block in blocks)


def test_blocks_are_written_over_and_seen_by_who_reads_the_file(tmp_path: Path, way: Callable[[int], Way]) -> None:
    async def scenario(direct: DirectFile, path: Path) -> None:
        assert letters(path) == "?......."
        for block, letter in ((1, b"a"), (7, b"b"), (1, b"c")):
            await write(direct, block, letter)
        await write(direct, 3, b"d", blocks=4)
        assert letters(path) == "?c.ddddb"

    carry_out(tmp_path, way, scenario)


def test_it_goes_together_with_writes_through_the_page_cache(tmp_path: Path, way: Callable[[int], Way]) -> None:
    async def scenario(direct: DirectFile, path: Path) -> None:
        fs = PosixFileSystem()
        file = fs.open(str(path), appends=False)
        for block in range(BLOCKS):
            if block % 2:
                file.write_at(block * BLOCK_BYTES, b"p" * BLOCK_BYTES)
            else:
                await write(direct, block, b"d")
        file.write_at(0, b"P" * BLOCK_BYTES)
        await write(direct, 1, b"D")
        assert letters(path) == "PDdpdpdp"
        await fs.sync(file)
        assert letters(path) == "PDdpdpdp"
        file.close()

    carry_out(tmp_path, way, scenario)


@pytest.mark.parametrize("result", [-errno.EIO, 512, 0], ids=["an error", "in part", "nothing"])
def test_what_is_not_written_as_a_whole_fails(
    tmp_path: Path, way: type, monkeypatch: pytest.MonkeyPatch, result: int
) -> None:
    found = way.results

    async def scenario(direct: DirectFile, _: Path) -> None:
        monkeypatch.setattr(way, "results", lambda self: [(number, result) for number, _ in found(self)])
        done = begin(direct, 1, b"a")
        assert done is not None
        with pytest.raises(OSError, match="Input/output") as caught:
            await done
        assert caught.value.errno == errno.EIO
        monkeypatch.undo()

    carry_out(tmp_path, way, scenario)


def test_it_may_be_closed_while_it_is_written(tmp_path: Path, way: Callable[[int], Way]) -> None:
    async def scenario(_: DirectFile, path: Path) -> None:
        with KernelSyncs([way]) as syncs:
            for letter in b"abcdefgh":
                direct = PosixFileSystem(None, syncs).open_direct(str(path), BLOCK_BYTES)
                assert direct is not None
                done = begin(direct, 2, bytes([letter]))
                direct.close()
                reader, writer = os.pipe()  # Has its descriptor now, and takes no blocks.
                assert done is not None
                await done
                os.close(reader)
                os.close(writer)
                assert letters(path)[2] == chr(letter)

    carry_out(tmp_path, way, scenario)


def test_none_is_had_where_the_kernel_does_not_sync_for_us(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(BLOCK_BYTES))
    assert PosixFileSystem().open_direct(str(tmp_path / "file"), BLOCK_BYTES) is None


def test_none_is_had_of_a_file_system_that_writes_through_its_cache_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def refuse(path: str, flags: int, *mode: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        return opened(path, flags, *mode)

    (tmp_path / "file").write_bytes(bytes(BLOCK_BYTES))
    monkeypatch.setattr(os, "open", refuse)
    assert PosixFileSystem(None, KernelSyncs()).open_direct(str(tmp_path / "file"), BLOCK_BYTES) is None
