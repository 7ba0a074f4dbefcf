"""Memory that is in use, as on a machine that has been up for a day: its page cache is full.

A broker that writes then gets pages that others have given up. On a machine that has just been started, or has just had
a topic deleted, it gets pages that nobody has used, which in a virtual machine may cost it eight times the time: its
host has to find them first. That would be measured instead of the broker.
"""

import os
import tempfile
import threading
import time
from pathlib import Path

FREE_BYTES = 256 << 20  # What stays free. Linux itself keeps about as much of 24 GiB.
READ_BYTES = 8 << 20
THREADS = 2
DELETION_S = 0.5  # Until the files of a topic are gone that was deleted just now.
MEMORY_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

_MEMINFO = Path("/proc/meminfo")


class FullPageCache:
    """Filled by reading a file that is nothing but a hole: it takes pages, and no disk."""

    def __init__(self, directory: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 (`close` closes it)
        self._size = 2 * MEMORY_BYTES  # When it is begun anew, what was read of it last time is gone.
        self._file.truncate(self._size)
        self._lock = threading.Lock()
        self.read_bytes = 0  # In all.

    def close(self) -> None:
        self._file.close()

    def fill(self) -> None:
        """Leave next to nothing free. Gives up after a whole memory of it: on a tmpfs, holes take no pages."""
        time.sleep(DELETION_S)
        stop_at = self.read_bytes + MEMORY_BYTES
        threads = [threading.Thread(target=self._read_until, args=[stop_at]) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _read_until(self, stop_at: int) -> None:
        buffer = bytearray(READ_BYTES)
        while True:
            with self._lock:
                position = self.read_bytes
                if position >= stop_at or free_bytes() <= FREE_BYTES:
                    break
                self.read_bytes += READ_BYTES
            os.preadv(self._file.fileno(), [buffer], position % self._size)


def free_bytes() -> int:
    """Memory that nothing is in; 0 where nobody tells."""
    if not _MEMINFO.exists():
        return 0
    (kilobytes,) = (line.split()[1] for line in _MEMINFO.read_text().splitlines() if line.startswith("MemFree:"))
    return int(kilobytes) * 1024
