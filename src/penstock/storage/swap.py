"""Putting compacted segments in the place of their sources so that a crash at any point loses nothing.

    write N.log.cleaned (and indexes), sync       a crash here: the start removes `.cleaned`
    rename to N.log.swap, sync the directory      from here on the start completes the swap
    remove the sources                            they are covered by the `.swap` segment
    rename to N.log, sync the directory           done

A swap segment covers all sources from its own base offset up to the next segment that is not a source; the names of the
sources stand in `N.swap-sources`, one base offset a line, which is synced before the first rename.
"""

from penstock.storage.format import SEGMENT_SUFFIXES, SWAP_SUFFIX, segment_path
from penstock.storage.fs import FileSystem

SOURCES_SUFFIX = ".swap-sources"


def finish_swaps(fs: FileSystem, directory: str, names: list[str]) -> None:
    """Complete every swap that was decided, undo nothing: called before the segments are loaded."""
    for name in names:
        if not name.endswith(SOURCES_SUFFIX):
            continue
        base = int(name.removesuffix(SOURCES_SUFFIX))
        if fs.exists(segment_path(directory, base, f".log{SWAP_SUFFIX}")):
            sources = [int(line) for line in fs.read_all(f"{directory}/{name}").split()]
            complete_swap(fs, directory, base, sources)
        elif fs.exists(f"{directory}/{name}"):
            fs.remove(f"{directory}/{name}")
    for name in names:
        # Left-over parts of a swap that had not been decided: its log never got the name that decides.
        if name.endswith(SWAP_SUFFIX) and fs.exists(f"{directory}/{name}"):
            fs.remove(f"{directory}/{name}")


def complete_swap(fs: FileSystem, directory: str, base: int, sources: list[int]) -> None:
    """Remove the sources and give the swap segment its final name. Safe to repeat after a crash."""
    for source in sources:
        for suffix in SEGMENT_SUFFIXES:
            path = segment_path(directory, source, suffix)
            if fs.exists(path):
                fs.remove(path)
    # The log last: while it bears the swap name, this function runs again.
    for suffix in reversed(SEGMENT_SUFFIXES):
        swapped = segment_path(directory, base, suffix + SWAP_SUFFIX)
        if fs.exists(swapped):
            fs.rename(swapped, segment_path(directory, base, suffix))
    fs.sync_dir(directory)
    sources_path = segment_path(directory, base, SOURCES_SUFFIX)
    if fs.exists(sources_path):
        fs.remove(sources_path)
