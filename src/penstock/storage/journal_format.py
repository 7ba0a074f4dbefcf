"""The journal's file: the newest records of many logs, one entry for each sync of them.

    entry   magic, checksum of what follows, salt, generation, number in it, sizes; pieces; zeros up to its end
    piece   topic id, partition, kind, start, size; whole batches, as they are in the log

The file has two halves with a generation in each: entries from 0 on, one behind the other. A generation ends where an
entry is not whole, or is of another one: there the power went, or an older generation begins. Its first entry is a
sector without pieces, and zeros, which is on disk before anything behind it is written over: a disk writes a sector as
a whole or not at all, so that of the older generation all is found or nothing.

An entry is on disk before the next one is written. So one that is not whole in front of one that is was not torn, but
damaged later. Of the last one of a generation that cannot be told.

Behind the last entry are the bytes of older ones, which clients have sent. The salt is what they cannot know: whatever
looks like an entry there, only the broker can have written one.
"""

import struct
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

from penstock.storage.fs import Buffer
from penstock.wire.checksum import crc32c

HALVES = 2
SECTOR_BYTES = 512  # What a disk writes as a whole: no entry shares one with an entry that is on disk already.

NOWHERE = -1  # Where a piece without records starts.

RECORDS = 0
VOID = 1  # What the journal has had of this log up to here counts no more.

SALT_BYTES = 8

_OLDER_MAGIC = b"PSJ2"
_MAGIC = int.from_bytes(b"PSJ3")
_HEAD = struct.Struct(">II")  # Magic, checksum.
_ENTRY = struct.Struct(f">{SALT_BYTES}sQIII")  # Salt, generation, number, size of the pieces, and of all.
_PIECE = struct.Struct(">16sIBqI")  # Topic id, partition, kind, start, size.

ENTRY_HEAD_BYTES = _HEAD.size + _ENTRY.size
PIECE_HEAD_BYTES = _PIECE.size


class LogKey(NamedTuple):
    """What the journal knows a log by: a topic that is made anew under its old name has another id."""

    topic_id: UUID
    partition: int


class Piece(NamedTuple):
    key: LogKey
    kind: int
    start: int  # Where the log ended before. The first batch may lie behind it: compaction leaves gaps.
    batches: Buffer


class Entry(NamedTuple):
    generation: int
    pieces: list[Piece]


class BadJournal(ValueError):
    """An entry is damaged that had been on disk."""


class OlderJournal(ValueError):
    """A version before this one wrote it, and can read it."""


class _Head(NamedTuple):
    checksum: int
    salt: bytes
    generation: int
    number: int
    size: int  # Of the pieces.
    entry_bytes: int  # With the zeros: behind them the next one begins.


def pack_entry(into: memoryview, salt: bytes, generation: int, number: int, pieces: Sequence[Piece]) -> None:
    """Make an entry that takes all of `into`, which is `entry_bytes` or more."""
    position = ENTRY_HEAD_BYTES
    for key, kind, start, batches in pieces:
        _PIECE.pack_into(into, position, key.topic_id.bytes, key.partition, kind, start, len(batches))
        position += PIECE_HEAD_BYTES
        into[position : position + len(batches)] = batches
        position += len(batches)
    _ENTRY.pack_into(into, _HEAD.size, salt, generation, number, position - ENTRY_HEAD_BYTES, len(into))
    _HEAD.pack_into(into, 0, _MAGIC, crc32c(into[_HEAD.size : position]))
    into[position:] = bytes(len(into) - position)


def entry_bytes(pieces: Sequence[Piece], block_bytes: int = SECTOR_BYTES) -> int:
    """How much an entry takes that ends with a block."""
    size = ENTRY_HEAD_BYTES
    for piece in pieces:
        size += PIECE_HEAD_BYTES + len(piece.batches)
    return size + -size % block_bytes


def read_journal(content: Buffer) -> list[Entry]:
    """What a journal's file holds, in the order in which it was written; BadJournal when it has held more."""
    half_bytes = len(content) // HALVES
    halves = [memoryview(content)[number * half_bytes :][:half_bytes] for number in range(HALVES)]
    if any(half[: len(_OLDER_MAGIC)] == _OLDER_MAGIC for half in halves):
        raise OlderJournal
    salts = {bytes(half[_HEAD.size :][:SALT_BYTES]) for half in halves} - {bytes(SALT_BYTES)}  # Zeros: unwritten.
    entries = [entry for half in halves for entry in _read_half(half, salts)]
    return sorted(entries, key=lambda entry: entry.generation)  # Those of a generation stay in order.


def _read_half(half: memoryview, salts: Collection[bytes]) -> Iterator[Entry]:
    """Those of the generation that begins in this half, as far as it is whole."""
    last: _Head | None = None
    position = 0
    while (head := _head_at(half, position)) is not None and _follows(head, last) and _is_whole(half, position, head):
        start, end = position + ENTRY_HEAD_BYTES, position + ENTRY_HEAD_BYTES + head.size
        yield Entry(head.generation, list(_read_pieces(half[start:end])))
        position, last = position + head.entry_bytes, head
    for behind in range(position + SECTOR_BYTES, len(half), SECTOR_BYTES):
        head = _head_at(half, behind)
        if head is not None and _is_later(head, last, salts) and _is_whole(half, behind, head):
            number = 0 if last is None else last.number + 1
            raise BadJournal(f"entry {number} is not whole, and entry {head.number} of generation {head.generation} is")


def _head_at(half: memoryview, position: int) -> _Head | None:
    """What the broker has written of an entry, or what looks like it."""
    if position + ENTRY_HEAD_BYTES > len(half):
        return None
    magic, checksum = _HEAD.unpack_from(half, position)
    return _Head(checksum, *_ENTRY.unpack_from(half, position + _HEAD.size)) if magic == _MAGIC else None


def _is_whole(half: memoryview, position: int, head: _Head) -> bool:
    end = position + ENTRY_HEAD_BYTES + head.size
    return (
        end <= position + head.entry_bytes <= len(half) and crc32c(half[position + _HEAD.size : end]) == head.checksum
    )


def _follows(head: _Head, last: _Head | None) -> bool:
    if last is None:
        return head.number == 0
    return (head.salt, head.generation, head.number) == (last.salt, last.generation, last.number + 1)


def _is_later(head: _Head, last: _Head | None, salts: Collection[bytes]) -> bool:
    """Whether it was written when what follows `last` had been on disk.

    Without the first one the generation is not known, and any will do: a disk does not tear a sector. For the salt
    there is the other half.
    """
    if last is None:
        return head.salt in salts and head.number > 0
    return (head.salt, head.generation) == (last.salt, last.generation) and head.number > last.number


def _read_pieces(entry: memoryview) -> Iterator[Piece]:
    position = 0
    while position < len(entry):
        topic_id, partition, kind, start, size = _PIECE.unpack_from(entry, position)
        position += PIECE_HEAD_BYTES
        yield Piece(LogKey(UUID(bytes=topic_id), partition), kind, start, entry[position : position + size])
        position += size
