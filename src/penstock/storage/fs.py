"""The file system port: what the log needs of a disk, and the real disk behind it.

Reads and writes meet the page cache and run on the event loop. What waits for the disk goes through `FileSystem.sync`
and `run`: syncs, reads that miss the cache, directory walks. Simulation replaces both classes with a disk that loses
what was not synced.
"""

import asyncio
import errno
import os
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from penstock.base.logging import get_logger
from penstock.storage import page_cache, preallocation
from penstock.storage.direct_file import DirectFile, KernelDirectFile
from penstock.storage.disk_threads import DiskThreads
from penstock.storage.kernel_syncs import KernelSyncs

log = get_logger(__name__)

Buffer = bytes | bytearray | memoryview
T = TypeVar("T")


class File(Protocol):
    """An open file. Every method may raise OSError."""

    path: str

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Append all the buffers. On OSError any prefix of them may have been written."""

    def write_at(self, position: int, data: Buffer) -> None:
        """Write over what is there. On OSError any of it may have been written."""

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes at `position`; fewer only at the end of the file. May wait for the disk."""

    def read_cached(self, position: int, size: int) -> Buffer | None:
        """Like `read`, but None instead of waiting for the disk."""

    def is_cached(self, position: int, size: int) -> bool:
        """Whether all of it is known to be in memory."""

    def send(self, descriptor: int, position: int, size: int) -> int:
        """How many of these bytes a socket takes now. Waits for the disk unless they are cached."""

    def reserve(self, position: int, size: int) -> None:
        """Ask for disk space behind the end, where writes are about to come. It is a hint, and no error."""

    def trim(self) -> None:
        """Give back what is reserved behind the end."""

    def truncate(self, size: int) -> None: ...

    def size(self) -> int: ...

    def sync(self) -> None:
        """Return when everything written is on disk (fdatasync). Waits: call it through `FileSystem.run`."""

    def close(self) -> None: ...


class FileSystem(Protocol):
    def open(self, path: str, *, create: bool = False, appends: bool = True) -> File:
        """Open for reading and appending, or to `write_at`, and not both.

        `create` makes the file when it is missing; otherwise FileNotFoundError.
        """

    def read_all(self, path: str) -> bytes: ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def modified_ms(self, path: str) -> int: ...

    def listdir(self, path: str) -> list[str]:
        """Names in a directory, sorted."""

    def mkdir(self, path: str) -> None:
        """Make the directory and its parents; no error when it is there."""

    def rename(self, source: str, target: str) -> None:
        """Atomic; durable once `sync_dir` of the parent has returned."""

    def remove(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None: ...

    def sync_dir(self, path: str) -> None: ...

    def free_bytes(self, path: str) -> tuple[int, int]:
        """(total, usable) bytes of the volume that holds `path`."""

    def open_direct(self, path: str, memory_bytes: int) -> DirectFile | None:
        """The file once more, for writes of so much that are on disk when they are done; None where none can be so."""

    async def sync(self, file: File) -> None:
        """Return when everything written to the file is on disk, without keeping the event loop waiting."""

    async def run(self, function: Callable[[], T]) -> T:
        """Run blocking work away from the event loop. The function must not touch broker state."""


class PosixFile:
    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._fd = descriptor

    @property
    def descriptor(self) -> int:
        return self._fd

    def write(self, buffers: Sequence[Buffer]) -> None:
        rest = -os.writev(self._fd, buffers)
        for buffer in buffers:
            rest += len(buffer)
        while rest:
            # A short write: the rest, byte exact. Usually this raises the ENOSPC that cut the first write short.
            rest -= os.write(self._fd, memoryview(b"".join(buffers))[-rest:])

    def write_at(self, position: int, data: Buffer) -> None:
        count = os.pwrite(self._fd, data, position)
        while count < len(data):
            count += os.pwrite(self._fd, memoryview(data)[count:], position + count)

    def read(self, position: int, size: int) -> bytes:
        data = os.pread(self._fd, size, position)
        while len(data) < size:
            more = os.pread(self._fd, size - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def read_cached(self, position: int, size: int) -> memoryview | None:
        buffer = bytearray(size)
        try:
            count = os.preadv(self._fd, [buffer], position, _RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            count = os.preadv(self._fd, [buffer], position)  # tmpfs does not know the flag, and is memory anyway.
        if count < size and position + count < self.size():
            return None  # Only a part was in the cache.
        return memoryview(buffer)[:count]

    def is_cached(self, position: int, size: int) -> bool:
        return page_cache.is_cached(self._fd, position, size)

    def send(self, descriptor: int, position: int, size: int) -> int:
        try:
            count = os.sendfile(descriptor, self._fd, position, size)
        except BlockingIOError:
            return 0
        if not count:  # As of a socket without room, for which the sender would wait and try again, for ever.
            raise OSError(errno.ENODATA, "the file is shorter than it was", self.path)
        return count

    def reserve(self, position: int, size: int) -> None:
        preallocation.reserve(self._fd, position, size)

    def trim(self) -> None:
        stat = os.fstat(self._fd)
        if stat.st_blocks * 512 > stat.st_size + stat.st_blksize:
            os.ftruncate(self._fd, stat.st_size)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def sync(self) -> None:
        _fdatasync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


class PosixFileSystem:
    def __init__(self, threads: DiskThreads | None = None, syncs: KernelSyncs | None = None) -> None:
        """`syncs`: who syncs single files without a thread, where that can be had."""
        self._threads = threads
        self._syncs = syncs

    def open(self, path: str, *, create: bool = False, appends: bool = True) -> PosixFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_APPEND if appends else 0) | (os.O_CREAT if create else 0)
        return PosixFile(path, os.open(path, flags, 0o644))

    def read_all(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def mkdir(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_tree(self, path: str) -> None:
        import shutil  # It brings every codec of archives along, and a start waits for it.

        shutil.rmtree(path)

    def sync_dir(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def free_bytes(self, path: str) -> tuple[int, int]:
        stat = os.statvfs(path)
        return stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize

    def open_direct(self, path: str, memory_bytes: int) -> DirectFile | None:
        if self._syncs is None:
            return None
        try:
            return KernelDirectFile(path, memory_bytes, self._syncs)
        except (OSError, ImportError) as error:
            log.debug("a file is not written directly", path=path, reason=error)
            return None

    async def sync(self, file: File) -> None:
        done = None
        if self._syncs is not None and isinstance(file, PosixFile):
            done = self._syncs.begin(file.descriptor)
        await (done if done is not None else self.run(file.sync))

    async def run(self, function: Callable[[], T]) -> T:
        if self._threads is None:
            return await asyncio.to_thread(function)
        return await self._threads.run(function)


_RWF_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)
_fdatasync = getattr(os, "fdatasync", os.fsync)
