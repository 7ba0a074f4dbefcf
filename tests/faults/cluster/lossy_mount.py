"""The simulation's disk, mounted for a real broker: a process that serves a SimDisk through FUSE.

    python lossy_mount.py <mount point> <seed>

What is written stays in memory until the file is synced, and a name until its directory is (`penstock.sim.disk` says
what a power cut leaves). A line "cut" on standard input cuts the power; the answer says what was lost. After "fail"
every sync fails, until "mend". Ends when standard input does.
"""

import errno
import json
import os
import stat
import sys
import threading
import time
from collections.abc import Callable
from random import Random
from typing import Any

from penstock.base.clock import SystemClock
from penstock.sim.disk import TOTAL_BYTES, SimDisk
from penstock.sim.inode import SECTOR_BYTES, Inode

# What a machine may lack is said in a line; a traceback is a fault of ours.
try:
    import mfusepy
except (ImportError, OSError) as error:
    sys.exit(str(error))

SYNC_S = 0.002  # An SSD's. Meanwhile the broker goes on, and what it writes then is not covered.
BLOCK_BYTES = 4096
HIDDEN = "/.fuse_hidden"  # What libfuse renames a file to that is removed or replaced while it is open.


class LossyFiles(mfusepy.Operations):
    """One lock makes every operation atomic; a sync waits outside it."""

    use_ns = True

    def __init__(self, seed: int) -> None:
        self._disk = SimDisk(random=Random(seed), clock=SystemClock())
        self._lock = threading.Lock()
        self.do_syncs_fail = False
        self._hidden: dict[str, Inode] = {}  # Of these the disk knows no name; whoever has one open goes on with it.

    def init(self, path: str) -> None:
        _say({"mounted": path})

    def power_cut(self) -> dict[str, int]:
        """Nobody may have a file open by now. What was unsynced, how much of that is gone, and how many files are."""
        with self._lock:
            before = {path: (bytes(inode.content), inode.unsynced_bytes) for path, inode in self._files("/")}
            self._disk.crash()
            after = dict(self._files("/"))
        lost_bytes = 0
        for path, (content, unsynced) in before.items():
            lost_bytes += _lost_bytes(content, unsynced, after[path].content) if path in after else len(content)
        return {
            "unsynced_bytes": sum(unsynced for _, unsynced in before.values()),
            "lost_bytes": lost_bytes,
            "lost_names": len(before.keys() ^ after.keys()),
        }

    def _files(self, directory: str) -> list[tuple[str, Inode]]:
        found = []
        for path in self._disk.children(directory):
            try:
                found.append((path, self._disk.file(path)))
            except IsADirectoryError:
                found += self._files(path)
        return found

    # Files

    def create(self, path: str, mode: int, fi: object = None) -> int:
        with self._lock:
            self._disk.create(path)
        return 0

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        with self._lock:
            return bytes(self._file(path).content[offset : offset + size])

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        with self._lock:
            inode = self._file(path)
            if offset == len(inode.content):
                self._disk.write(inode, path, data)
            elif offset < len(inode.content):
                self._disk.write_at(inode, path, offset, data)
            else:
                raise OSError(errno.EOPNOTSUPP, "this disk knows no holes", path)
        return len(data)

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        with self._lock:
            self._disk.truncate(self._file(path), path, length)
        return 0

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        with self._lock:
            inode = self._file(path)
        self._sync(lambda: self._disk.sync(inode, path))
        return 0

    # Directories

    def mkdir(self, path: str, mode: int) -> int:
        with self._lock:
            if self._disk.exists(path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            self._disk.mkdir(path)
        return 0

    def rmdir(self, path: str) -> int:
        with self._lock:
            if self._disk.children(path):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
            self._disk.remove_tree(path)
        return 0

    def rename(self, old: str, new: str) -> int:
        with self._lock:
            if HIDDEN in new:
                self._hidden[new] = self._disk.file(old)
                self._disk.remove(old)
            else:
                self._disk.rename(old, new)
        return 0

    def unlink(self, path: str) -> int:
        with self._lock:
            if path in self._hidden:
                del self._hidden[path]
            else:
                self._disk.remove(path)
        return 0

    def readdir(self, path: str, fh: int) -> list[str]:
        with self._lock:
            return [".", "..", *(child.rpartition("/")[2] for child in self._disk.children(path))]

    def fsyncdir(self, path: str, datasync: int, fh: int) -> int:
        self._sync(lambda: self._disk.sync_dir(path))
        return 0

    # Both

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        with self._lock:
            try:
                inode = self._file(path)
            except IsADirectoryError:
                return {"st_mode": stat.S_IFDIR | 0o755, "st_nlink": 2}
            modified_ns = inode.modified_ms * 1_000_000
            return {
                "st_mode": stat.S_IFREG | 0o644,
                "st_nlink": 1,
                "st_size": len(inode.content),
                "st_mtime": modified_ns,
                "st_ctime": modified_ns,
                "st_atime": modified_ns,
            }

    def statfs(self, path: str) -> dict[str, int]:
        free = self._disk.free_bytes() // BLOCK_BYTES
        return {
            "f_bsize": BLOCK_BYTES,
            "f_frsize": BLOCK_BYTES,
            "f_blocks": TOTAL_BYTES // BLOCK_BYTES,
            "f_bfree": free,
            "f_bavail": free,
            "f_namemax": 255,
        }

    def _file(self, path: str) -> Inode:
        return self._hidden.get(path) or self._disk.file(path)

    def _sync(self, sync: Callable[[], None]) -> None:
        """Owes nothing to what is written after it began, and nothing to anybody when the power fails meanwhile."""
        with self._lock:
            begun, crashes = self._disk.stamp, self._disk.crashes
        time.sleep(SYNC_S)
        with self._lock:
            if self._disk.crashes != crashes or self.do_syncs_fail:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            self._disk.run(begun, sync)


def _lost_bytes(old: bytes, unsynced: int, new: bytearray) -> int:
    """In whole sectors, as they are lost, but for the first and the last."""
    lost, at = 0, len(old) - unsynced
    while at < len(old):
        end = min(len(old), (at // SECTOR_BYTES + 1) * SECTOR_BYTES)
        if old[at:end] != new[at:end]:
            lost += end - at
        at = end
    return lost


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def _obey(files: LossyFiles) -> None:
    for line in sys.stdin:
        command = line.strip()
        if command == "cut":
            _say(files.power_cut())
        else:
            files.do_syncs_fail = {"fail": True, "mend": False}[command]
            _say({})
    os._exit(0)


def main() -> None:
    mount_point, seed = sys.argv[1:]
    files = LossyFiles(int(seed))
    threading.Thread(target=_obey, args=(files,), daemon=True).start()
    # The kernel must not remember what a power cut has undone: whoever opens a file by its name asks us.
    try:
        mfusepy.FUSE(files, mount_point, foreground=True, entry_timeout=0, attr_timeout=0)
    except RuntimeError as error:
        sys.exit(f"libfuse gave up: {error}")


if __name__ == "__main__":
    main()
