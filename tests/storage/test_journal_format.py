from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.storage.journal_format import (
    HALVES,
    RECORDS,
    SECTOR_BYTES,
    VOID,
    BadJournal,
    LogKey,
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


def written(*halves: tuple[int, list[list[Piece]]]) -> bytearray:
    """A journal with a generation in each half."""
    content = bytearray(HALVES * HALF_BYTES)
    for number, (generation, written_entries) in enumerate(halves):
        position = number * HALF_BYTES
        for count, entry in enumerate(written_entries):
            packed = pack_entry(SALT, generation, count, entry)
            content[position : position + len(packed)] = packed
            position += len(packed)
    return content


def read(content: bytearray) -> list[list[Piece]]:
    return [[piece._replace(batches=bytes(piece.batches)) for piece in entry.pieces] for entry in read_journal(content)]


@given(entries, entries)
def test_what_is_written_is_read_in_the_order_of_generations(first, second):
    assert read(written((4, first), (5, second))) == first + second
    assert read(written((6, first), (5, second))) == second + first


@given(st.lists(pieces, min_size=1, max_size=5))
def test_the_size_of_an_entry_is_known_before_it_is_made(chosen):
    assert entry_bytes(chosen) == len(pack_entry(SALT, 1, 0, chosen))
    assert entry_bytes(chosen) % SECTOR_BYTES == 0


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
    content[SECTOR_BYTES:] = pack_entry(bytes(8), 1, 1, ()) + content[2 * SECTOR_BYTES :]
    content[:SECTOR_BYTES] = bytes(SECTOR_BYTES)
    assert read(content) == []


def test_entries_of_an_older_generation_behind_the_last_one_are_not_read():
    piece = Piece(LogKey(UUID(int=1), 0), RECORDS, 0, b"old")
    content = written((1, [[piece], [piece], [piece]]), (2, []))
    newest = pack_entry(SALT, 3, 0, [piece._replace(batches=b"new")])
    content[: len(newest)] = newest
    assert [[found.batches for found in entry] for entry in read(content)] == [[b"new"]]


@pytest.mark.parametrize("content", [b"", b"\0" * 10, b"\0" * 10_000, b"\xff" * 10_000])
def test_what_is_no_journal_has_no_entries(content):
    assert read_journal(content) == []
