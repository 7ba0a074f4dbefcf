"""Bounds on what segments keep open: file descriptors, and the indexes of segments that are only read."""

from typing import Protocol


class Holder(Protocol):
    def maybe_close_file(self) -> bool:
        """Close the file unless it is in use; gives whether it is closed."""

    def maybe_release_indexes(self) -> bool:
        """Drop the indexes unless they are in use; gives whether they are gone."""


class SegmentLimits:
    """Closes the longest held first. The limits are per broker, whatever the number of partitions."""

    def __init__(self, *, files_max: int, indexes_max: int = 64) -> None:
        self._files_max = files_max
        self._indexes_max = indexes_max  # About 5 MiB each for a segment of 1 GiB: 320 MiB at the very worst.
        self._files: dict[Holder, None] = {}  # In order of opening.
        self._indexes: dict[Holder, None] = {}

    def on_file_opened(self, segment: Holder) -> None:
        self._files[segment] = None
        self.close_surplus(but=segment)

    def close_surplus(self, *, but: Holder | None = None) -> None:
        """Close what is too much and no longer in use: many may have been at once, and nobody opens another one."""
        if len(self._files) > self._files_max:
            for candidate in [held for held in self._files if held is not but]:
                if candidate.maybe_close_file():
                    del self._files[candidate]
                    if len(self._files) <= self._files_max:
                        break

    def on_indexes_loaded(self, segment: Holder) -> None:
        self._indexes[segment] = None
        if len(self._indexes) > self._indexes_max:
            for candidate in [held for held in self._indexes if held is not segment]:
                if candidate.maybe_release_indexes():
                    del self._indexes[candidate]
                    break

    def forget(self, segment: Holder) -> None:
        self._files.pop(segment, None)
        self._indexes.pop(segment, None)
