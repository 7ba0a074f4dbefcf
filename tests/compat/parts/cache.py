"""What the suite fetches and builds, under .cache/compat, one folder per content of its inputs."""

import fcntl
import hashlib
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

REPO_ROOT = Path(__file__).resolve().parents[3]
CLIENTS = Path(__file__).resolve().parents[1] / "clients"
CACHE = REPO_ROOT / ".cache" / "compat"


_BUILDING = threading.RLock()  # Tests may ask from several threads; a build may need another part first.


class PartMissing(Exception):
    """A toolchain or package cannot be had on this machine; the message says which, and how to get it."""


def cached(name: str, inputs: Iterable[Path | str], build: Callable[[Path], None]) -> Path:
    """The folder that `build` fills, built again only when a byte of its inputs differs."""
    digest = hashlib.sha256()
    for part in inputs:
        digest.update(part.read_bytes() if isinstance(part, Path) else part.encode())
        digest.update(b"\0")
    target = CACHE / f"{name}-{digest.hexdigest()[:16]}"
    with _BUILDING, _alone_in(target.with_name(target.name + ".lock")):
        if not target.exists():
            unfinished = target.with_name(target.name + ".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            build(unfinished)
            # Only a finished build gets the name, so a build that was interrupted is never taken for one.
            unfinished.rename(target)
    return target


@contextmanager
def _alone_in(lock: Path) -> Iterator[None]:
    """Tests run in several processes."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
