"""The file system port on a SimDisk: what one process sees of the disk until its power is cut."""

import asyncio
import errno
import os
import posixpath
from collections.abc import Callable, Sequence
from typing import TypeVar

from penstock.sim.disk import TOTAL_BYTES, SimDisk
from penstock.sim.inode import SECTOR_BYTES, Inode
from penstock.sim.process import Killed
from penstock.storage.fs import Buffer, File

T = TypeVar("T")

RUN_SECONDS_MIN = 0.0001
RUN_SECONDS_MAX = 0.02  # A flush of a busy SSD; a spinning disk is no slower.
CACHE_MISS_RATE = 0.1  # Often enough that every run takes the slow path too.
INDIRECT_RATE = 0.3  # Of the lives in which no file can be written past the page cache.
BUSY_RATE = 0.05  # Of the writes that the kernel does not take so.


class SimFile:
    def __init__(self, file_system: "SimFileSystem", path: str, inode: Inode, *, appends: bool) -> None:
        self.path = path
        self._file_system = file_system
        self._inode = inode
        self._appends = appends
        self._closed = False

    def write(self, buffers: Sequence[Buffer]) -> None:
        assert self._appends, f"{self.path}: a real file would write this over its start"
        self._disk().write(self._inode, self.path, b"".join(buffers))

    def write_at(self, position: int, data: Buffer) -> None:
        assert not self._appends, f"{self.path}: a real file would append this, whatever the position"
        self._disk().write_at(self._inode, self.path, position, bytes(data))

    def read(self, position: int, size: int) -> bytes:
        self._disk()
        return bytes(self._inode.content[position : position + size])

    def read_cached(self, position: int, size: int) -> bytes | None:
        if self._disk().random.random() < CACHE_MISS_RATE:
            return None
        return bytes(self._inode.content[position : position + size])

    def is_cached(self, position: int, size: int) -> bool:
        return self._disk().random.random() >= CACHE_MISS_RATE

    def send(self, descriptor: int, position: int, size: int) -> int:
        raise AssertionError(f"{self.path}: the connections of a simulation have no sockets")

    def reserve(self, position: int, size: int) -> None:
        self._disk()

    def trim(self) -> None:
        self._disk()

    def truncate(self, size: int) -> None:
        self._disk().truncate(self._inode, self.path, size)

    def size(self) -> int:
        self._disk()
        return len(self._inode.content)

    def sync(self) -> None:
        self._disk().sync(self._inode, self.path)

    def close(self) -> None:
        # Also for the dead: a generator of theirs that is collected closes its file, and nobody is there to be told.
        self._check_open()
        self._closed = True

    def _disk(self) -> SimDisk:
        self._check_open()
        return self._file_system.disk()

    def _check_open(self) -> None:
        if self._closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self.path)


class SimDirectFile:
    def __init__(self, file: SimFile, file_system: "SimFileSystem", memory_bytes: int, block_bytes: int) -> None:
        self.block_bytes = block_bytes
        self.memory = memoryview(bytearray(memory_bytes))
        self._file = file
        self._file_system = file_system

    def begin(self, position: int, size: int) -> "asyncio.Future[None] | None":
        assert position % self.block_bytes == size % self.block_bytes == 0
        if self._file_system.disk().random.random() < BUSY_RATE:
            return None
        # From now on any of it may be on disk, and at the end all is; memory that is changed before is not.
        self._file.write_at(position, self.memory[:size])
        return asyncio.ensure_future(self._file_system.sync(self._file))

    def close(self) -> None:
        self._file.close()


class SimFileSystem:
    def __init__(self, disk: SimDisk, direct_block_bytes: int = SECTOR_BYTES) -> None:
        """With sectors for blocks a small journal has room for many entries; a real one has larger blocks."""
        self._disk = disk
        self._direct_block_bytes = direct_block_bytes
        self._crashes = disk.crashes

    def disk(self) -> SimDisk:
        """The disk, for a living process; Killed for one whose power was cut."""
        if self._disk.crashes != self._crashes:
            raise Killed("this process died in a power cut")
        return self._disk

    def open(self, path: str, *, create: bool = False, appends: bool = True) -> SimFile:
        disk, path = self.disk(), _plain(path)
        inode = disk.create(path) if create and not disk.exists(path) else disk.file(path)
        return SimFile(self, path, inode, appends=appends)

    def read_all(self, path: str) -> bytes:
        return bytes(self.disk().file(_plain(path)).content)

    def exists(self, path: str) -> bool:
        return self.disk().exists(_plain(path))

    def size(self, path: str) -> int:
        return len(self.disk().file(_plain(path)).content)

    def modified_ms(self, path: str) -> int:
        return self.disk().file(_plain(path)).modified_ms

    def listdir(self, path: str) -> list[str]:
        return [posixpath.basename(child) for child in self.disk().children(_plain(path))]

    def mkdir(self, path: str) -> None:
        self.disk().mkdir(_plain(path))

    def rename(self, source: str, target: str) -> None:
        self.disk().rename(_plain(source), _plain(target))

    def remove(self, path: str) -> None:
        self.disk().remove(_plain(path))

    def remove_tree(self, path: str) -> None:
        self.disk().remove_tree(_plain(path))

    def sync_dir(self, path: str) -> None:
        self.disk().sync_dir(_plain(path))

    def free_bytes(self, path: str) -> tuple[int, int]:
        disk = self.disk()
        return disk.capacity_bytes or TOTAL_BYTES, disk.free_bytes()

    def open_direct(self, path: str, memory_bytes: int) -> SimDirectFile | None:
        if self.disk().random.random() < INDIRECT_RATE:
            return None
        return SimDirectFile(self.open(path, appends=False), self, memory_bytes, self._direct_block_bytes)

    async def sync(self, file: File) -> None:
        await self.run(file.sync)

    async def run(self, function: Callable[[], T]) -> T:
        # Like a thread, the work goes on when the waiting task is cancelled; only a crash stops it.
        disk = self.disk()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        begun = disk.stamp

        def work() -> None:
            try:
                result = function()
            except Exception as error:
                if not future.cancelled():
                    future.set_exception(error)
            else:
                if not future.cancelled():
                    future.set_result(result)

        # Most flushes are quick and some are very slow, so that short and long ones overlap.
        seconds = RUN_SECONDS_MIN + (RUN_SECONDS_MAX - RUN_SECONDS_MIN) * disk.random.random() ** 3
        loop.call_later(seconds, disk.run, begun, work)
        return await future


def _plain(path: str) -> str:
    path = posixpath.normpath(path)
    return "" if path == "." else path
