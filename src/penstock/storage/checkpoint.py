"""Small files that must never be half written: written aside, synced, renamed, and the directory synced.

The layout is Kafka's: a version line, a count line, then one line an entry. A file that cannot be read counts as
missing: what it says is then found out from the segments.
"""

from collections.abc import Iterable, Mapping

from penstock.base.logging import get_logger
from penstock.base.types import LeaderEpoch, Offset, TopicPartition
from penstock.storage.fs import FileSystem

log = get_logger(__name__)

VERSION = "0"


def write_atomically(fs: FileSystem, path: str, content: bytes) -> None:
    """Replace the file's content for good, or leave it as it was."""
    temporary = f"{path}.tmp"
    if fs.exists(temporary):
        fs.remove(temporary)
    file = fs.open(temporary, create=True)
    try:
        file.write([content])
        file.sync()
    finally:
        file.close()
    fs.rename(temporary, path)
    fs.sync_dir(path.rpartition("/")[0])


def write_lines(fs: FileSystem, path: str, entries: Iterable[str]) -> None:
    write_atomically(fs, path, encode_lines(entries))


def encode_lines(entries: Iterable[str]) -> bytes:
    lines = list(entries)
    return "".join(f"{line}\n" for line in (VERSION, str(len(lines)), *lines)).encode()


def read_lines(fs: FileSystem, path: str) -> list[str] | None:
    """The entries, or None when the file is missing or damaged."""
    if not fs.exists(path):
        return None
    try:
        content = fs.read_all(path).decode()
        version, count, *entries = content.splitlines()
        if not content.endswith("\n"):  # Torn inside its last line, which may still look like one: "3 12" of "3 125".
            raise ValueError("it ends too early")
        if version != VERSION or int(count) != len(entries):
            raise ValueError(f"version {version}, {count} entries stated, {len(entries)} found")
    except ValueError as error:
        log.error("checkpoint is damaged and will be rebuilt", path=path, error=error)
        return None
    return entries


def encode_offsets(offsets: Mapping[TopicPartition, Offset]) -> bytes:
    return encode_lines(f"{tp.topic} {tp.partition} {offset}" for tp, offset in offsets.items())


def read_offsets(fs: FileSystem, path: str) -> dict[TopicPartition, Offset] | None:
    """The offset of each partition, none when the file is missing; None when it is damaged."""
    lines = read_lines(fs, path)
    if lines is None:
        return None if fs.exists(path) else {}
    try:
        return {
            TopicPartition(topic, int(partition)): Offset(int(offset))
            for topic, partition, offset in (line.split() for line in lines)
        }
    except ValueError as error:
        log.error("checkpoint is damaged and will be rebuilt", path=path, error=error)
        return None


def write_epochs(fs: FileSystem, path: str, epochs: Iterable[tuple[LeaderEpoch, Offset]]) -> None:
    write_lines(fs, path, (f"{epoch} {start}" for epoch, start in epochs))


def read_epochs(fs: FileSystem, path: str) -> list[tuple[LeaderEpoch, Offset]] | None:
    """(epoch, start offset) in order, or None when the file is missing or damaged."""
    lines = read_lines(fs, path)
    if lines is None:
        return None
    try:
        return [(LeaderEpoch(int(epoch)), Offset(int(start))) for epoch, start in (line.split() for line in lines)]
    except ValueError as error:
        log.error("checkpoint is damaged and will be rebuilt", path=path, error=error)
        return None
