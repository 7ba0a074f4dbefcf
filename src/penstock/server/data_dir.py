"""The lock on a data directory: two brokers that append to one log would destroy it."""

import fcntl
import os
from pathlib import Path
from types import TracebackType


class DataDirInUse(Exception):
    """Another broker has the data directory."""


class DataDirLock:
    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._descriptor: int | None = None

    def __enter__(self) -> "DataDirLock":
        self._path.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self._path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            raise DataDirInUse(f"another broker is using {self._path}") from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)  # The kernel drops the lock with it, also after kill -9.
