from collections.abc import Sequence
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.storage.direct_file import BLOCK_BYTES
from penstock.storage.journal_format import (
    ENTRY_HEAD_BYTES,
    HALVES,
    PIECE_HEAD_BYTES,
    RECORDS,
    SECTOR_BYTES,
    VOID,
    BadJournal,
    LogKey,
    OlderJournal,
    Piece,
    entry_bytes,
    pack_entry,
    read_journal,
)

HALF_BYTES = 8 << 10
SALT = b"unguess."

keys = st.builds(LogKey, st.uuids(), st.integers(0, 2**31 - 1))
offsets = st.integers(-1, 2**62)
pieces = st.builds(Piece, keys, st.sampled_from((RECORDS, VOID)), offsets, st.binary(max_size=700))
entries = st.lists(st.lists(pieces, min_size=1, max_size=3), max_size=3)


def packed(
    salt: bytes, generation: int, number: int, chosen: Sequence[Piece], block_bytes: int = SECTOR_BYTES
) -> bytes:
    entry = bytearray(entry_bytes(chosen, block_bytes))
    pack_entry(memoryview(entry), salt, generation, number, chosen)
    return bytes(entry)


def written(*halves: tuple[int, list[list[Piece]]], block_bytes: int = SECTOR_BYTES) -> bytearray:
    """A journal with a generation in each half."""
    content = bytearray(HALVES * HALF_BYTES)
    for number, (generation, written_entries) in enumerate(halves):
        position = number * HALF_BYTES
        for count, entry in enumerate(written_entries):
            made = packed(SALT, generation, count, entry, block_bytes)
            content[position : position + len(made)] = made
            position += len(made)
    return content


def read(content: bytearray) -> list[list[Piece]]:
    return [[piece._replace(batches=bytes(piece.batches)) for piece in entry.pieces] for entry in read_journal(content)]


@given(entries, entries, st.sampled_from([SECTOR_BYTES, 4 * SECTOR_BYTES]))
def test_what_is_written_is_read_in_the_order_of_generations(first, second, block_bytes):
    assert read(written((4, first), (5, second), block_bytes=block_bytes)) == first + second
    assert read(written((6, first), (5, second), block_bytes=block_bytes)) == second + first


@given(st.lists(pieces, min_size=1, max_size=5))
def test_the_size_of_an_entry_is_known_before_it_is_made(chosen):
    assert entry_bytes(chosen) % SECTOR_BYTES == 0
    assert entry_bytes(chosen, BLOCK_BYTES) % BLOCK_BYTES == 0
    assert entry_bytes(chosen) <= entry_bytes(chosen, BLOCK_BYTES) < entry_bytes(chosen) + BLOCK_BYTES
    size = sum(PIECE_HEAD_BYTES + len(piece.batches) for piece in chosen)
    assert entry_bytes(chosen) - SECTOR_BYTES < ENTRY_HEAD_BYTES + size <= entry_bytes(chosen)


@given(entries, st.data())
def test_a_damaged_entry_is_told_from_a_torn_one_by_those_behind_it(first, data):
    content = written((1, first), (2, [[]]))
    sizes = [entry_bytes(entry) for entry in first]
    if not sizes:
        return
    number = data.draw(st.integers(0, len(sizes) - 1))
    # Behind what counts of an entry there are zeros, which nobody looks at.
    size = entry_bytes(first[number]) - SECTOR_BYTES
    position = sum(sizes[:number]) + data.draw(st.integers(0, max(size, 20)))
    content[position] ^= 0xFF
    if number == len(sizes) - 1:
        assert read(content) == [*first[:number], []]
    else:
        with pytest.raises(BadJournal, match=f"entry {number} is not whole"):
            read(content)


def test_what_a_client_has_sent_makes_no_journal_damaged():
    """It was in the very first entry, of which the power cut has left the end."""
    content = written((1, [[], []]))
    content[SECTOR_BYTES:] = packed(bytes(8), 1, 1, ()) + content[2 * SECTOR_BYTES :]
    content[:SECTOR_BYTES] = bytes(SECTOR_BYTES)
    assert read(content) == []


def test_entries_of_an_older_generation_behind_the_last_one_are_not_read():
    piece = Piece(LogKey(UUID(int=1), 0), RECORDS, 0, b"old")
    content = written((1, [[piece], [piece], [piece]]), (2, []))
    newest = packed(SALT, 3, 0, [piece._replace(batches=b"new")])
    content[: len(newest)] = newest
    assert [[found.batches for found in entry] for entry in read(content)] == [[b"new"]]


@given(st.integers(0, ENTRY_HEAD_BYTES - 1), st.data())
def test_no_head_is_believed_that_has_been_damaged(position, data):
    """It says where the next entry begins as well."""
    piece = Piece(LogKey(UUID(int=1), 0), RECORDS, 0, b"records")
    content = written((1, [[], [piece]]), (2, [[]]))
    content[SECTOR_BYTES + position] ^= data.draw(st.integers(1, 255))
    assert read(content) == [[], []]


@pytest.mark.parametrize("half", [0, 1])
def test_a_journal_of_an_older_version_is_not_taken_for_none(half):
    content = written((1, [[]]), (2, [[]]))
    content[half * HALF_BYTES : half * HALF_BYTES + 4] = b"PSJ2"
    with pytest.raises(OlderJournal):
        read_journal(content)


@pytest.mark.parametrize("content", [b"", b"\0" * 10, b"\0" * 10_000, b"\xff" * 10_000])
def test_what_is_no_journal_has_no_entries(content):
    assert read_journal(content) == []
