"""A file that is written past the page cache: what was written is on disk when the kernel says that it is done.

To write through the page cache and then sync takes the kernel two rounds, with a thread of its own that waits for each
request to the disk. Written directly over space that was filled before, an entry of the journal is one request and the
word to keep it: half the time, and half of the processor's.
"""

import asyncio
import mmap
import os
from pathlib import Path
from typing import Protocol

from penstock.storage.kernel_syncs import KernelSyncs

# What a disk writes as a whole, or else reads before it writes: a write begins and ends so, and its memory begins so.
BLOCK_BYTES = 4096


# What they write so is on disk when it is done, and they let nobody wait while it is. Of others that is not known: FUSE
# leaves it to whoever serves the files, and some write out of place, or through the cache after all.
TRUSTED = frozenset({"ext4", "xfs"})
MOUNTS = Path("/proc/self/mountinfo")


class DirectFile(Protocol):
    block_bytes: int  # Writes begin and end at a multiple of it.
    memory: memoryview  # What they are of.

    def begin(self, position: int, size: int) -> "asyncio.Future[None] | None":
        """Write so much of `memory` over what is there; it must stay as it is until that is done.

        Then it is on disk; with OSError it may not be, or be there in part. None, or OSError now: it has not begun.
        Not to be cancelled: the kernel would go on.
        """

    def close(self) -> None:
        """Nothing is under way."""


class KernelDirectFile:
    block_bytes = BLOCK_BYTES

    def __init__(self, path: str, memory_bytes: int, syncs: KernelSyncs) -> None:
        """Of a file that is there; OSError or ImportError where none can be written so."""
        import ctypes  # Not with the module: it takes a while to load.

        kind = _file_system_of(path)
        if kind not in TRUSTED:
            raise OSError(f"{path} is on {kind or 'a file system that is not known'}")
        memory = mmap.mmap(-1, memory_bytes)  # Begins with a page; takes no more of those than have been used.
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self.memory = memoryview(memory)
        self._syncs = syncs
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_DIRECT | os.O_DSYNC)

    def begin(self, position: int, size: int) -> "asyncio.Future[None] | None":
        assert position % BLOCK_BYTES == size % BLOCK_BYTES == 0
        return self._syncs.begin_write(self._descriptor, self._address, size, position)

    def close(self) -> None:
        os.close(self._descriptor)


def _file_system_of(path: str) -> str:
    """Its name as `mount` gives it; nothing where Linux does not tell."""
    device = Path(path).stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    with MOUNTS.open() as mounts:
        # 36 35 98:0 /root /mount/point options [more ...] - ext4 /dev/sda1 options
        for line in mounts:
            if line.split()[2] == number:
                return line.partition(" - ")[2].split()[0]
    return ""
