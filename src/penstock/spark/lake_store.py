"""Where a lake's snapshots are, and how one follows the other: `_lake/00000000000000000042.json`, written once.

A snapshot is whole before it gets its name, and a name can be given only once: so of two writers that start from the
same snapshot one wins, and the other looks at what it has won with. Readers take the one with the highest number.
"""

import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from penstock.spark import lake as lakes
from penstock.spark.lake import LakeFile, Snapshot

SNAPSHOTS_KEPT = 20  # For a reader that has seen a name and not yet opened it; and to look at what has happened.
RETIRED_S = 3600.0  # How long a query that was planned on an earlier snapshot may read files that were replaced.
LEFTOVER_S = 86_400.0  # No merge takes as long: its writer is dead.
ROUNDS_MAX = 1000  # Each lost round is a snapshot that somebody else has written.

_DIGITS = 20


class LakeMissing(Exception):
    """There is no lake where one should be read."""


class LakeStore:
    def __init__(self, path: str) -> None:
        self.root = _local(path)
        self._snapshots = self.root / "_lake"

    def latest(self) -> Snapshot:
        """The newest snapshot; an empty one where there is no lake yet."""
        while True:
            numbers = self._numbers()
            if not numbers:
                return Snapshot()
            try:
                return lakes.from_json(self._file(numbers[-1]).read_text())
            except FileNotFoundError:
                continue  # SNAPSHOTS_KEPT newer ones have come since.

    def existing(self) -> Snapshot:
        found = self.latest()
        if not found.version:
            raise LakeMissing(f"there is no lake in {self.root}: an archive makes it with its first batch")
        return found

    def commit(self, change: Callable[[Snapshot], Snapshot]) -> Snapshot:
        """The newest snapshot once `change` is in it. What `change` leaves as it is needs no new one."""
        for _ in range(ROUNDS_MAX):
            last = self.latest()
            wanted = change(last)
            if wanted is last or self._publish(wanted):
                return wanted
        raise RuntimeError(f"{self.root}: others write all the time")

    def delete_old(self) -> None:
        """Snapshots and files that nobody reads any more."""
        for number in self._numbers()[:-SNAPSHOTS_KEPT]:
            self._file(number).unlink(missing_ok=True)
        last = self.latest()
        before_ms = int((time.time() - RETIRED_S) * 1000)
        old = [each for each in last.retired if each.at_ms < before_ms]
        for each in old:
            (self.root / each.path).unlink(missing_ok=True)
        if old:  # Noted until they are gone.
            self.commit(lambda lake: lakes.forget_retired(lake, before_ms))

    def delete_leftovers(self, query_id: str, batch_id: int, folders: Iterable[str] | None = None) -> None:
        """Files that tasks and merges have left behind when they died, in some folders or in all of them.

        Batches up to `batch_id` are decided: what they have left out cannot come in any more.
        """
        found = folders if folders is not None else (str(each.relative_to(self.root)) for each in self._folders())
        candidates = [each for name in found for each in (self.root / name).glob("*.parquet")]
        counted = {self.root / each.path for each in self.latest().files}
        waiting = {self.root / each.path for each in self.latest().retired}
        for each in candidates:
            if each in counted or each in waiting:
                continue
            if is_of_batch(each.name, query_id, batch_id) or (each.name.startswith("merged-") and _is_old(each)):
                each.unlink(missing_ok=True)

    def delete_files(self, files: Iterable[LakeFile]) -> None:
        for each in files:
            (self.root / each.path).unlink(missing_ok=True)

    def _publish(self, lake: Snapshot) -> bool:
        self._snapshots.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=self._snapshots, prefix=".new-", delete=False) as made:
            made.write(lakes.to_json(lake))
            made.flush()
            os.fsync(made.fileno())
        try:
            os.link(made.name, self._file(lake.version))  # Fails where the name is taken.
        except FileExistsError:
            return False
        finally:
            Path(made.name).unlink()
        sync_folder(self._snapshots)
        return True

    def _numbers(self) -> list[int]:
        return sorted(int(each.stem) for each in self._snapshots.glob(f"{'[0-9]' * _DIGITS}.json"))

    def _file(self, number: int) -> Path:
        return self._snapshots / f"{number:0{_DIGITS}}.json"

    def _folders(self) -> Iterable[Path]:
        return self.root.glob("topic=*/day=*")


def file_stem(task: int, attempt: int, batch_id: int, query_id: str) -> str:
    """What the names of a task's files begin with; a number follows.

    Unlike any other: a task that a dead driver has left behind is the same attempt as that of the next driver.
    """
    return f"{query_id}-{batch_id}-{task}-{attempt}-{uuid.uuid4().hex}"


def is_of_batch(name: str, query_id: str, batch_id_max: int) -> bool:
    """Whether a task of such a batch, or of one before it, has written the file."""
    head, *rest = name.removesuffix(".parquet").rsplit("-", 5)
    return head == query_id and len(rest) == 5 and int(rest[0]) <= batch_id_max


def sync_folder(path: Path) -> None:
    """What was put into it has its name also after a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_old(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime > LEFTOVER_S
    except FileNotFoundError:
        return False


def _local(path: str) -> Path:
    parts = urlsplit(path)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    if len(parts.scheme) > 1:
        raise ValueError(f"a lake is a folder that all of Spark's machines see, such as /data/lake, not {path!r}")
    if not path.strip():
        raise ValueError("option path is missing: the lake's folder, such as /data/lake")
    return Path(path).absolute()
