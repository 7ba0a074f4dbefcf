"""Putting compacted segments in the place of their sources so that a crash at any point loses nothing.

    write N.log.cleaned (and indexes), sync       a crash here: the start removes `.cleaned`
    write N.swap-sources, sync                    the base offsets of the sources, one a line
    rename to N.log.swap, the log last, sync      from here on the start completes the swap
    remove the sources                            they are covered by the `.swap` segment
    rename to N.log, the log last, sync           done
    remove N.swap-sources

The sources bear `.deleted` at first, and are removed once no reader can be in them.
"""

from penstock.base.logging import get_logger
from penstock.storage.checkpoint import write_atomically
from penstock.storage.format import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    base_offset_of,
    segment_path,
)
from penstock.storage.fs import FileSystem
from penstock.storage.scan import BadBatch, scan_headers

log = get_logger(__name__)

SOURCES_SUFFIX = ".swap-sources"


def store_sources(fs: FileSystem, directory: str, base: int, sources: list[int]) -> None:
    """Note which segments the one that has been written as `.cleaned` replaces. Waits for the disk."""
    content = "".join(f"{source}\n" for source in sources).encode()
    write_atomically(fs, segment_path(directory, base, SOURCES_SUFFIX), content)


def decide_swap(fs: FileSystem, directory: str, base: int) -> None:
    """Give the cleaned files the name that makes the next start complete the swap, once the directory is synced."""
    _rename_all(fs, directory, base, CLEANED_SUFFIX, SWAP_SUFFIX)


def carry_out_swap(fs: FileSystem, directory: str, base: int, sources: list[int]) -> list[str]:
    """Move the sources away and give the swap segment its final name; gives the sources' new paths, to be removed.

    Safe to repeat after a crash.
    """
    moved = []
    for source in sources:
        for kind in SEGMENT_SUFFIXES:
            path = segment_path(directory, source, kind)
            if fs.exists(path):
                fs.rename(path, path + DELETED_SUFFIX)
                moved.append(path + DELETED_SUFFIX)
    _rename_all(fs, directory, base, SWAP_SUFFIX, "")
    return moved


def close_swap(fs: FileSystem, directory: str, base: int) -> None:
    """Make the outcome durable. Waits for the disk."""
    fs.sync_dir(directory)
    sources_path = segment_path(directory, base, SOURCES_SUFFIX)
    if fs.exists(sources_path):
        fs.remove(sources_path)


def finish_swaps(fs: FileSystem, directory: str, names: list[str]) -> None:
    """Complete every swap that was decided, undo the others: called before the segments are loaded."""
    for name in names:
        base = base_offset_of(name)
        if base is not None and name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
            fs.sync_dir(directory)  # A process that was killed may have decided without it.
            carry_out_swap(fs, directory, base, _sources(fs, directory, base, names))
            close_swap(fs, directory, base)
    for name in names:
        # Left-over parts of a swap that had not been decided: its log never got the name that decides.
        if name.endswith((SWAP_SUFFIX, SOURCES_SUFFIX)) and fs.exists(f"{directory}/{name}"):
            fs.remove(f"{directory}/{name}")


def _sources(fs: FileSystem, directory: str, base: int, names: list[str]) -> list[int]:
    if f"{base:020d}{SOURCES_SUFFIX}" in names:
        return [int(line) for line in fs.read_all(segment_path(directory, base, SOURCES_SUFFIX)).split()]
    # Kafka was stopped in the middle of a swap here: it replaces the segments that begin inside the new one.
    path = segment_path(directory, base, LOG_SUFFIX + SWAP_SUFFIX)
    log.warning("completing a swap that Kafka had begun", segment=path)
    last_offset = base
    file = fs.open(path)
    try:
        for _, header in scan_headers(file.read, 0, file.size(), base):
            last_offset = header.last_offset
    except BadBatch as bad:
        log.error("swapped segment is damaged", segment=path, reason=bad)
    finally:
        file.close()
    bases = [found for name in names if name.endswith(LOG_SUFFIX) and (found := base_offset_of(name)) is not None]
    return [found for found in bases if base <= found <= last_offset]


def _rename_all(fs: FileSystem, directory: str, base: int, old: str, new: str) -> None:
    # The log last: its name tells how far the swap has come.
    for kind in reversed(SEGMENT_SUFFIXES):
        path = segment_path(directory, base, kind)
        if fs.exists(path + old):
            fs.rename(path + old, path + new)
