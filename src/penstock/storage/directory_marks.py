"""What one life of a broker leaves for the next: which directories are in order, and which may only look so.

A clean stop names the directories whose files are all on disk: they need no recovery scan. No other one is trusted: a
killed broker may have left it, and nobody has opened it since.

After a failed sync the kernel may call pages clean that are on no disk. Until a clean stop has vouched for a directory,
what reads well there is written anew before it counts.
"""

import contextlib

from penstock.base.logging import get_logger
from penstock.storage.checkpoint import VERSION, read_lines, write_lines
from penstock.storage.format import CLEAN_SHUTDOWN_MARKER, SYNC_FAILED_MARKER, parse_partition_directory
from penstock.storage.fs import FileSystem

log = get_logger(__name__)


class DirectoryMarks:
    def __init__(self, fs: FileSystem, data_dir: str) -> None:
        self._fs = fs
        self._data_dir = data_dir
        self._clean_path = f"{data_dir}/{CLEAN_SHUTDOWN_MARKER}"
        self._failed_path = f"{data_dir}/{SYNC_FAILED_MARKER}"
        self.clean: frozenset[str] = frozenset()  # Directories that the last life has left in order.
        self._untouched: set[str] = set()  # Directories as the last life has left them: not opened in this one.
        self._distrusts_all = False  # A sync has failed.
        self._distrusted: frozenset[str] = frozenset()  # The same, but some have been vouched for since: not these.
        self._has_sync_failed = False  # In this life.

    def load(self) -> bool:
        """Whether the last life has ended in order."""
        if self._fs.exists(self._failed_path):
            names = read_lines(self._fs, self._failed_path) if self._fs.size(self._failed_path) else None
            self._distrusts_all, self._distrusted = names is None, frozenset(names or ())
        if not self._fs.exists(self._clean_path):
            return False
        # An older version's mark, or Kafka's, does not say what was open.
        if self._fs.read_all(self._clean_path).startswith(f"{VERSION}\n".encode()):
            self.clean = frozenset(read_lines(self._fs, self._clean_path) or ())
        return True

    def begin(self, names: list[str]) -> None:
        """These are in the data directory, which is to be synced next. From now on a crash is a crash."""
        self._untouched = set(names)
        if self._fs.exists(self._clean_path):
            self._fs.remove(self._clean_path)

    def is_untouched(self, name: str) -> bool:
        return name in self._untouched

    def is_clean(self, name: str) -> bool:
        """Whether it needs no recovery scan."""
        return name in self.clean and name in self._untouched

    def touch(self, name: str) -> None:
        """It is about to be opened, and perhaps written to."""
        self._untouched.discard(name)

    def is_distrusted(self, name: str) -> bool:
        """Whether what reads well in it may be on no disk."""
        return self._distrusts_all or name in self._distrusted

    def distrust_all(self) -> None:
        """A sync has failed while a log was opened: whoever tries again would sync what the kernel now calls clean."""
        self.on_sync_failed()
        self._distrusts_all = True

    def on_sync_failed(self) -> None:
        self._has_sync_failed = True
        try:
            # Needs no sync: only a start with the same page cache has to know, and it finds the name there.
            with contextlib.closing(self._fs.open(self._failed_path, create=True)) as mark:
                mark.truncate(0)  # Without names it is of all directories.
        except OSError as error:
            log.error("the failed sync could not be noted for the next start", error=error)

    def vouch(self, synced: set[str]) -> None:
        """Mark a clean stop, unless a sync has failed: all that is in these directories is on disk.

        What nobody has touched is as it was. A recovery point would be no such evidence, which says nothing of names.
        """
        if self._has_sync_failed:
            return
        clean = synced | (self.clean & self._untouched)
        if self._distrusts_all or self._distrusted:
            self._store_distrusted(clean)
        write_lines(self._fs, self._clean_path, sorted(clean))

    def _store_distrusted(self, clean: set[str]) -> None:
        names = {name for name in self._fs.listdir(self._data_dir) if parse_partition_directory(name) is not None}
        left = {name for name in names - clean if self.is_distrusted(name)}
        if left:
            write_lines(self._fs, self._failed_path, sorted(left))
        else:
            self._fs.remove(self._failed_path)
