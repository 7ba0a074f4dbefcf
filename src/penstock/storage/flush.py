"""What one sync of a log covers: of its own files, or as a part of an entry of the journal."""

from typing import NamedTuple

from penstock.base.types import Offset
from penstock.storage.fs import Buffer, File, FileSystem
from penstock.storage.segment import Segment


class Flush(NamedTuple):
    """What one sync covers."""

    end: Offset
    filed_end: Offset
    segments: list[tuple[Segment, int]]  # With the size that the sync covers.
    files: list[File]
    side_files: list[File]  # Indexes and checkpoints that nobody writes to any more.
    directories: list[str]
    active: tuple[Segment, int] | None  # The active segment, if the sync covers it as well.
    fs: FileSystem

    async def carry_out(self) -> None:
        if len(self.files) == 1 and not self.side_files and not self.directories:
            await self.fs.sync(self.files[0])
        else:
            await self.fs.run(self.run)

    def run(self) -> None:
        """Waits for the disk."""
        # What the records lean on comes first: their leader epoch is on disk before they are (KIP-101).
        try:
            for file in self.side_files:
                file.sync()
        finally:
            for file in self.side_files:
                file.close()
        for directory in self.directories:
            self.fs.sync_dir(directory)
        for file in self.files:
            file.sync()


class Journaled(NamedTuple):
    """What one entry of the journal covers of this log."""

    start: Offset
    end: Offset
    segment: Segment
    size: int  # Of the segment.
    batches: Buffer
