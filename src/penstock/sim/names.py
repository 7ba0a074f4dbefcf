"""Directories: which path is which file, changed by operations that a journal can replay."""

import errno
import os
from typing import NamedTuple

from penstock.sim.inode import Inode

ROOTS = ("", "/", ".")


class Operation(NamedTuple):
    """One change of a directory. `source` is set for a rename, `inode` for a new file."""

    kind: str  # create, mkdir, rename, remove, rmdir
    path: str
    source: str = ""
    inode: Inode | None = None

    def touches(self, directory: str) -> bool:
        return directory in (parent_of(self.path), parent_of(self.source) if self.source else None)


class Names:
    """The tree of one moment. Every change goes through `apply`, which expects that the change is possible."""

    def __init__(self, files: dict[str, Inode] | None = None, directories: dict[str, None] | None = None) -> None:
        self.files = files or {}
        self.directories = directories or dict.fromkeys(ROOTS)

    def copy(self) -> "Names":
        return Names(dict(self.files), dict(self.directories))

    def apply(self, operation: Operation) -> None:
        path = operation.path
        match operation.kind:
            case "create":
                assert operation.inode is not None
                self.files[path] = operation.inode
            case "mkdir":
                self.directories[path] = None
            case "remove":
                del self.files[path]
            case "rmdir":
                del self.directories[path]
            case "rename":
                self._rename(operation.source, path)

    def file(self, path: str) -> Inode:
        if path in self.directories:
            raise _error(errno.EISDIR, path)
        if path not in self.files:
            raise _error(errno.ENOENT, path)
        return self.files[path]

    def check_directory(self, path: str) -> None:
        if path not in self.directories:
            raise _error(errno.ENOTDIR if path in self.files else errno.ENOENT, path)

    def exists(self, path: str) -> bool:
        return path in self.files or path in self.directories

    def children(self, directory: str) -> list[str]:
        """Paths directly in the directory, sorted."""
        self.check_directory(directory)
        return sorted(p for p in (*self.files, *self.directories) if p not in ROOTS and parent_of(p) == directory)

    def check_rename(self, source: str, target: str) -> None:
        self.check_directory(parent_of(target))
        if source in self.directories:
            if target in self.files:
                raise _error(errno.ENOTDIR, target)
            if target in self.directories and self.children(target):
                raise _error(errno.ENOTEMPTY, target)
        else:
            self.file(source)
            if target in self.directories:
                raise _error(errno.EISDIR, target)

    def _rename(self, source: str, target: str) -> None:
        if source in self.files:
            self.files[target] = self.files.pop(source)
            return
        prefix = source + "/"
        self.files = {_moved(path, prefix, target): inode for path, inode in self.files.items()}
        del self.directories[source]
        self.directories = {_moved(path, prefix, target): None for path in self.directories}
        self.directories[target] = None


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or ("/" if path.startswith("/") else "")


def _moved(path: str, prefix: str, target: str) -> str:
    return f"{target}/{path[len(prefix) :]}" if path.startswith(prefix) else path


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
