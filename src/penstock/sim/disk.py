"""A disk in memory that survives its users: it loses what was not synced, tears writes, fills up and fails.

Data follows `inode.py`. Names follow a journal, as on ext4 and XFS: an operation on a directory is durable after
`sync_dir`, and a power cut keeps some first part of the operations that were not synced. A file that was synced can
therefore still vanish with its name.
"""

import errno
import os
from collections.abc import Callable
from random import Random

from penstock.base.clock import Clock
from penstock.sim.inode import Inode
from penstock.sim.names import Names, Operation, parent_of
from penstock.sim.process import Killed
from penstock.sim.trace import Trace

TOTAL_BYTES = 1 << 40  # What an unlimited disk says of itself.


class SimDisk:
    def __init__(
        self, *, random: Random, clock: Clock, trace: Trace | None = None, capacity_bytes: int | None = None
    ) -> None:
        self.random = random
        self.capacity_bytes = capacity_bytes  # None: never full.
        self.fail_syncs: set[int] = set()  # Numbers of the syncs that fail with EIO; `syncs` counts from 1.
        self.cut_power_at: int | None = None  # Number of the operation that finds the power gone; see `operations`.
        self.on_power_cut: Callable[[], None] | None = None  # Called then, to kill the process.
        self.syncs = 0
        self.losses = 0  # Times at which unsynced data may have been lost: power cuts and failed syncs.
        self.operations = 0  # Everything that changes the disk or makes it durable, done or begun.
        self.crashes = 0  # Handles from before a crash belong to a dead process.
        self.stamp = 0  # Counts writes: orders them against the syncs that run beside the event loop.
        self._begun: int | None = None  # The stamp at which the blocking work now running was handed in.
        self._clock = clock
        self._trace = trace
        self._names = Names()  # What the running system sees.
        self._durable = Names()  # What a power cut leaves, at the least.
        self._journal: list[tuple[int, Operation]] = []  # Stamped; durable + journal = names.

    # Files.

    def file(self, path: str) -> Inode:
        return self._names.file(path)

    def create(self, path: str) -> Inode:
        self._names.check_directory(parent_of(path))
        inode = Inode(self._clock.now_ms())
        self._change(Operation("create", path, inode=inode))
        return inode

    def write(self, inode: Inode, path: str, data: bytes) -> None:
        """Append. When the disk is full, some prefix is written and ENOSPC raised."""
        self._operate("write", path, len(data))
        if self.capacity_bytes is not None and len(data) > (free := self.free_bytes()):
            inode.append(data[: self.random.randint(0, free)], self._next_stamp())
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        inode.append(data, self._next_stamp())
        inode.modified_ms = self._clock.now_ms()

    def write_at(self, inode: Inode, path: str, position: int, data: bytes) -> None:
        """Write over what is there. Only what goes beyond the end needs room; of that a full disk takes some prefix."""
        self._operate("write_at", path, position, len(data))
        more = position + len(data) - len(inode.content)
        if self.capacity_bytes is not None and more > (free := self.free_bytes()):
            fits = len(data) - more + self.random.randint(0, free)
            inode.overwrite(position, data[:fits], self._next_stamp())
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        inode.overwrite(position, data, self._next_stamp())
        inode.modified_ms = self._clock.now_ms()

    def truncate(self, inode: Inode, path: str, size: int) -> None:
        self._operate("truncate", path, size)
        inode.truncate(size, self._next_stamp())
        inode.modified_ms = self._clock.now_ms()

    def sync(self, inode: Inode, path: str) -> None:
        self._operate("sync", path)
        self.syncs += 1
        if self.syncs in self.fail_syncs:
            self.losses += 1
            inode.fail_sync(self.random)
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        inode.sync(self._sync_stamp())

    # Directories.

    def exists(self, path: str) -> bool:
        return self._names.exists(path)

    def children(self, directory: str) -> list[str]:
        return self._names.children(directory)

    def mkdir(self, path: str) -> None:
        if path in self._names.files:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        if path not in self._names.directories:
            self.mkdir(parent_of(path))
            self._change(Operation("mkdir", path))

    def rename(self, source: str, target: str) -> None:
        self._names.check_rename(source, target)
        self._change(Operation("rename", target, source=source))

    def remove(self, path: str) -> None:
        self._names.file(path)
        self._change(Operation("remove", path))

    def remove_tree(self, path: str) -> None:
        children = self._names.children(path)
        self.random.shuffle(children)  # A real directory is walked in no order that one could count on.
        for child in children:
            if child in self._names.directories:
                self.remove_tree(child)
            else:
                self.remove(child)
        self._change(Operation("rmdir", path))

    def sync_dir(self, path: str) -> None:
        self._names.check_directory(path)
        self._operate("sync_dir", path)
        begun = self._sync_stamp()
        count = 0
        for number, (stamp, operation) in enumerate(self._journal, 1):
            if stamp <= begun and operation.touches(path):
                count = number
        self._commit(count)

    def free_bytes(self) -> int:
        if self.capacity_bytes is None:
            return TOTAL_BYTES
        return max(0, self.capacity_bytes - self._used_bytes())

    # Time and power.

    def run(self, begun: int, function: Callable[[], None]) -> None:
        """Call blocking work that was handed in at the stamp `begun`.

        It ran beside the event loop since then: its own writes count as made before its syncs, those of the loop since
        `begun` do not.
        """
        self._begun = begun
        try:
            function()
        finally:
            self._begun = None

    def fill(self, free_bytes: int) -> None:
        """Leave only so much room."""
        self.capacity_bytes = self._used_bytes() + free_bytes

    def heal(self) -> None:
        """No more faults but those that are asked for from here on."""
        self.capacity_bytes = None
        self.fail_syncs.clear()
        self.cut_power_at = None

    def crash(self) -> None:
        """Cut the power. What is left is what the disk holds from now on."""
        self.crashes += 1
        self.losses += 1
        self.cut_power_at = None
        choice = self.random.randrange(3)
        count = (0, len(self._journal), self.random.randint(0, len(self._journal)))[choice]
        kept, lost = self._journal[:count], self._journal[count:]
        self._commit(count)
        self._journal = []
        self._names = self._durable.copy()
        fates = [(path, inode.crash(self.random)) for path, inode in self._names.files.items()]
        if self._trace is not None:
            damage = [(path, fate) for path, fate in fates if fate != "clean"]
            undone = [(operation.kind, operation.path) for _, operation in lost]
            self._trace.add("crash", "kept", len(kept), "undone", undone, "files", damage)

    def durable_files(self, directory: str) -> list[bytes]:
        """What a power cut now would leave of the files in the directory, at the least."""
        return [inode.durable for path, inode in self._durable.files.items() if parent_of(path) == directory]

    def _used_bytes(self) -> int:
        return sum(len(inode.content) for inode in self._names.files.values())

    def _change(self, operation: Operation) -> None:
        self._operate(operation.kind, operation.path)
        self._journal.append((self._next_stamp(), operation))
        self._names.apply(operation)

    def _commit(self, count: int) -> None:
        for _, operation in self._journal[:count]:
            self._durable.apply(operation)
        del self._journal[:count]

    def _operate(self, kind: str, path: str, *details: object) -> None:
        self.operations += 1
        if self._trace is not None:
            self._trace.add(kind, path, *details)
        if self.operations == self.cut_power_at:
            if self.on_power_cut is not None:
                self.on_power_cut()
            raise Killed("power cut")

    def _next_stamp(self) -> int:
        if self._begun is not None:
            return self._begun
        self.stamp += 1
        return self.stamp

    def _sync_stamp(self) -> int:
        return self.stamp if self._begun is None else self._begun
