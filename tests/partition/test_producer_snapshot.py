"""Producers as bytes: Kafka's file, our five batches, and damage that must not pass for an empty state (R21)."""

import struct

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.types import Offset
from penstock.partition.producer_snapshot import (
    BadSnapshot,
    decode_snapshot,
    encode_snapshot,
    snapshot_name,
    snapshot_offset_of,
)
from penstock.partition.producer_state import SEQUENCE_MASK, STORED_COUNT_MAX, Producer, ProducerState, StoredBatch
from penstock.wire.batch import CONTROL_MASK, TRANSACTIONAL_MASK, BatchHeader

ENTRY = struct.Struct(">qhiqiqiq")
Entry = tuple[int, int, int, int, int, int, int, int]

# Written by Kafka 4.3.1 (ProducerStateManager.writeSnapshot): producer 4000, epoch 3, sequences 90 to 99 at offsets
# 990 to 999, timestamp 1790000000000, coordinator epoch 7, a transaction open since offset 950.
KAFKA_FILE = bytes.fromhex(
    "0001aa697b0b000000010000000000000fa000030000006300000000000003e700000009000001a0c4506c000000000700000000000003b6"
)


def header(sequence: int, count: int = 1, *, pid: int = 1, epoch: int = 0, attributes: int = 0) -> BatchHeader:
    return BatchHeader(0, 100, 0, 2, 0, attributes, count - 1, -1, -1, pid, epoch, sequence, count)


def state_of(*batches: BatchHeader) -> ProducerState:
    state, offset = ProducerState(), 0
    for number, batch in enumerate(batches):
        state.apply(batch, offset, 1000 + number)
        offset += batch.last_offset_delta + 1
    return state


def sealed(*entries: Entry, count: int | None = None, version: int = 1) -> bytes:
    """A snapshot with a right checksum, whatever the entries say."""
    body = struct.pack(">i", len(entries) if count is None else count) + b"".join(ENTRY.pack(*e) for e in entries)
    return struct.pack(">hI", version, crc32c.crc32c(body)) + body


def entries_of(data: bytes) -> list[Entry]:
    return list(ENTRY.iter_unpack(data[10:]))


# Kafka's file


def test_a_snapshot_that_kafka_wrote_is_read() -> None:
    assert decode_snapshot(KAFKA_FILE).producers == {
        4000: Producer(
            epoch=3,
            next_sequence=100,
            stored_count=10,
            timestamp=1790000000000,
            batches=[StoredBatch(90, 99, 990, 999, 1790000000000)],
            coordinator_epoch=7,
            txn_first_offset=Offset(950),
        )
    }


def test_what_kafka_can_say_is_written_byte_for_byte_as_kafka_does() -> None:
    assert encode_snapshot(decode_snapshot(KAFKA_FILE)) == KAFKA_FILE


def test_a_state_without_producers_is_a_count_of_0() -> None:
    data = encode_snapshot(ProducerState())
    assert data == sealed()
    assert decode_snapshot(data).producers == {}


def test_the_last_entry_of_a_producer_is_its_last_batch() -> None:
    # Kafka keeps the last entry that it reads for a producer.
    state = state_of(*(header(sequence, 10, pid=pid) for sequence in range(0, 70, 10) for pid in (1, 2)))
    as_kafka_reads = {entry[0]: entry for entry in entries_of(encode_snapshot(state))}
    assert as_kafka_reads == {
        1: (1, 0, 69, 129, 9, 1012, -1, -1),
        2: (2, 0, 69, 139, 9, 1013, -1, -1),
    }


def test_five_batches_are_written_and_one_entry_for_all_that_is_older() -> None:
    state = state_of(*(header(sequence, 10) for sequence in range(0, 70, 10)))
    assert [entry[2:5] for entry in entries_of(encode_snapshot(state))] == [
        (19, -1, 19),
        (29, 29, 9),
        (39, 39, 9),
        (49, 49, 9),
        (59, 59, 9),
        (69, 69, 9),
    ]


def test_what_is_older_is_written_as_far_as_anybody_looks() -> None:
    state = state_of(*(header((n << 28) & SEQUENCE_MASK, 1 << 28) for n in range(12)), header(2**30))
    state.producers[1].batches = state.producers[1].batches[-1:]
    older, last = entries_of(encode_snapshot(state))
    assert (older[3], older[4]) == (-1, STORED_COUNT_MAX - 2)
    assert last[2] == 2**30
    assert decode_snapshot(encode_snapshot(state)).producers[1].stored_count == STORED_COUNT_MAX


def test_a_producer_that_only_has_a_marker_is_written_without_a_batch() -> None:
    state = state_of(header(0), header(-1, epoch=1, attributes=TRANSACTIONAL_MASK | CONTROL_MASK))
    assert entries_of(encode_snapshot(state)) == [(1, 1, -1, -1, 0, 1001, -1, -1)]
    assert decode_snapshot(encode_snapshot(state)).producers == state.producers


def test_a_marker_behind_the_last_batch_still_counts_for_expiry() -> None:
    state = state_of(header(0), header(-1, attributes=TRANSACTIONAL_MASK | CONTROL_MASK))
    assert decode_snapshot(encode_snapshot(state)).producers[1].timestamp == 1001


# Round trips


@st.composite
def states(draw: st.DrawFn) -> ProducerState:
    """Whatever a log can lead to: any order of producers, epochs up and down, gaps, the end of the ring."""
    state, offset = ProducerState(), draw(st.integers(0, 2**62))
    next_sequence: dict[int, int] = {}
    for _ in range(draw(st.integers(0, 40))):
        pid = draw(st.integers(0, 3))
        count = draw(st.integers(1, 1000))
        gap = draw(st.sampled_from([0, 0, 0, 0, 0, 1, 2**30]))
        sequence = (next_sequence.get(pid, draw(st.integers(0, SEQUENCE_MASK))) + gap) & SEQUENCE_MASK
        epoch = draw(st.sampled_from([0, 0, 0, 0, 1, 2**15 - 1]))
        attributes = draw(st.sampled_from([0, TRANSACTIONAL_MASK]))
        batch = header(sequence, count, pid=pid, epoch=epoch, attributes=attributes)
        state.apply(batch, offset, draw(st.integers(0, 2**62)))
        next_sequence[pid] = (sequence + count) & SEQUENCE_MASK
        offset += count
    return state


@given(states())
def test_a_snapshot_gives_the_whole_state_back(state: ProducerState) -> None:
    assert decode_snapshot(encode_snapshot(state)).producers == state.producers


@given(states())
def test_the_same_state_gives_the_same_bytes(state: ProducerState) -> None:
    data = encode_snapshot(state)
    assert encode_snapshot(decode_snapshot(data)) == data


def test_the_limit_on_producers_holds_after_a_snapshot_with_more() -> None:
    data = encode_snapshot(state_of(*(header(0, pid=pid) for pid in range(50))))
    state = decode_snapshot(data, producers_max=10)
    state.apply(header(0, pid=99), 50, 0)
    assert len(state.producers) <= 10
    assert 99 in state.producers


# Damage


DATA = encode_snapshot(state_of(*(header(s, pid=pid) for s in range(8) for pid in (1, 2, 3))))


def test_every_flipped_bit_is_noticed() -> None:
    for position in range(len(DATA)):
        for bit in range(8):
            damaged = bytearray(DATA)
            damaged[position] ^= 1 << bit
            with pytest.raises(BadSnapshot):
                decode_snapshot(bytes(damaged))


def test_every_cut_is_noticed() -> None:
    for size in range(len(DATA)):
        with pytest.raises(BadSnapshot):
            decode_snapshot(DATA[:size])


@given(st.binary(min_size=1, max_size=100))
def test_bytes_behind_the_end_are_noticed(more: bytes) -> None:
    with pytest.raises(BadSnapshot):
        decode_snapshot(DATA + more)


@given(st.integers(0, len(DATA) - 1), st.integers(1, 600))
def test_a_part_that_reads_as_zeros_is_noticed(start: int, size: int) -> None:
    # What a power cut leaves of a file whose length was written and whose blocks were not.
    damaged = DATA[:start] + bytes(len(DATA[start : start + size])) + DATA[start + size :]
    if damaged != DATA:
        with pytest.raises(BadSnapshot):
            decode_snapshot(damaged)


@given(st.binary(max_size=200))
def test_other_bytes_are_no_snapshot(data: bytes) -> None:
    with pytest.raises(BadSnapshot):
        decode_snapshot(data)


@pytest.mark.parametrize(
    "data",
    [
        sealed(version=2),
        sealed(version=0),
        sealed(count=1),
        sealed(count=-1),
        sealed((1, 0, 0, 0, 0, 0, -1, -1), count=0),
        sealed((-1, 0, 0, 0, 0, 0, -1, -1)),
        sealed((1, 0, 0, 0, -1, 0, -1, -1)),
        sealed(*((1, 0, n, n, 0, 0, -1, -1) for n in range(6))),
        sealed((1, 0, 0, 0, 0, 0, -1, -1), (1, 1, 1, 1, 0, 0, -1, -1)),
        sealed((1, 0, 5, 5, 0, 0, -1, -1), (1, 0, 6, 5, 0, 0, -1, -1)),
        sealed((1, 0, 5, 5, 0, 0, -1, -1), (1, 0, 4, -1, 4, 0, -1, -1)),
        sealed((1, 0, 5, 5, 9, 0, -1, -1)),
    ],
    ids=[
        "a later version",
        "an earlier version",
        "fewer entries than stated",
        "a negative count",
        "more entries than stated",
        "no producer id",
        "a negative number of records",
        "six batches",
        "two epochs",
        "two batches at one offset",
        "what is older comes last",
        "a batch that begins before offset 0",
    ],
)
def test_a_right_checksum_does_not_make_nonsense_right(data: bytes) -> None:
    with pytest.raises(BadSnapshot):
        decode_snapshot(data)


# Names


def test_a_name_states_the_offset_in_20_digits() -> None:
    assert snapshot_name(Offset(1234)) == "00000000000000001234.snapshot"
    assert snapshot_offset_of("00000000000000001234.snapshot") == 1234


@pytest.mark.parametrize(
    "name",
    ["00000000000000001234.log", "1234.snapshot", "0000000000000000123x.snapshot", "00000000000000001234", ".snapshot",
     "00000000000000001234.snapshot.tmp", "00000000000000001234.snapshot.deleted", "²0000000000000001234.snapshot"],
)  # fmt: skip
def test_other_names_are_no_snapshot(name: str) -> None:
    assert snapshot_offset_of(name) is None
