"""Record formats of `__transaction_state`. The bytes are what Kafka's TransactionLog writes for the same values."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.types import TopicPartition
from penstock.coordinator.record_bytes import CorruptRecord
from penstock.coordinator.txn.metadata import TransactionDeleted, TransactionMetadata, TxnRecord
from penstock.coordinator.txn.records import decode, encode
from penstock.coordinator.txn.states import TxnState

int64 = st.integers(-1, 2**63 - 1)
int16 = st.integers(-1, 2**15 - 1)
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
transactions = st.builds(
    TransactionMetadata,
    transactional_id=names,
    producer_id=int64,
    producer_epoch=int16,
    previous_producer_id=int64,
    last_producer_epoch=int16,
    next_producer_id=int64,
    next_producer_epoch=int16,
    timeout_ms=st.integers(0, 2**31 - 1),
    state=st.sampled_from(TxnState),
    partitions=st.frozensets(st.builds(TopicPartition, names, st.integers(0, 2**31 - 1)), max_size=8),
    start_ms=int64,
    last_update_ms=int64,
    client_version=st.integers(0, 3),
)

ONGOING = TransactionMetadata(
    transactional_id="tx",
    producer_id=7,
    producer_epoch=3,
    previous_producer_id=7,
    timeout_ms=60_000,
    state=TxnState.ONGOING,
    partitions=frozenset({TopicPartition("a", 1), TopicPartition("a", 0), TopicPartition("bc", 5)}),
    start_ms=1_000,
    last_update_ms=2_000,
    client_version=2,
)


@given(transactions | st.builds(TransactionDeleted, transactional_id=names))
def test_what_was_written_is_read(record: TxnRecord) -> None:
    assert decode(*encode(record)) == record


def test_the_bytes_are_kafkas() -> None:
    key, value = encode(ONGOING)
    assert key == bytes.fromhex("0000 0002 7478")
    assert value == bytes.fromhex(
        "0001 0000000000000007 0003 0000ea60 01"  # version, producer id and epoch, timeout, status
        "03 02 61 03 00000000 00000001 00 03 6263 02 00000005 00"  # two topics, each with its tags
        "00000000000007d0 00000000000003e8"  # last update, start
        "02 00 08 0000000000000007 02 02 0002"  # previous producer id, client transaction version
    )


def test_an_empty_transaction_has_no_partitions_rather_than_none_of_them() -> None:
    empty = TransactionMetadata(
        transactional_id="tx", producer_id=7, producer_epoch=0, timeout_ms=1, state=TxnState.EMPTY, last_update_ms=2
    )
    _, value = encode(empty)
    assert value == bytes.fromhex("0001 0000000000000007 0000 00000001 00 00 0000000000000002 ffffffffffffffff 00")


def test_version_0_is_read() -> None:
    value = bytes.fromhex(
        "0000 0000000000000007 0003 0000ea60 04 00000001 0001 61 00000002 00000000 00000001"
        "00000000000007d0 00000000000003e8"
    )
    found = decode(bytes.fromhex("0000 0002 7478"), value)
    assert isinstance(found, TransactionMetadata)
    assert (found.producer_id, found.producer_epoch, found.state) == (7, 3, TxnState.COMPLETE_COMMIT)
    assert found.partitions == {TopicPartition("a", 0), TopicPartition("a", 1)}
    assert (found.previous_producer_id, found.next_producer_id, found.last_producer_epoch) == (-1, -1, -1)
    assert (found.last_update_ms, found.start_ms, found.client_version) == (2_000, 1_000, 0)
    without = value[:17] + bytes.fromhex("ffffffff") + value[-16:]
    assert decode(bytes.fromhex("0000 0002 7478"), without).partitions == frozenset()  # type: ignore[union-attr]


def test_keys_of_another_type_are_passed_over() -> None:
    assert decode(bytes.fromhex("0001 0002 7478"), None) is None
    assert decode(None, b"x") is None


def test_a_state_that_nobody_knows_is_corrupt() -> None:
    key, value = encode(ONGOING)
    assert value is not None
    with pytest.raises(CorruptRecord, match="state 9"):
        decode(key, value[:16] + b"\x09" + value[17:])
    with pytest.raises(CorruptRecord, match="version 2"):
        decode(key, b"\0\2" + value[2:])


@given(transactions, st.data())
def test_damage_is_corrupt_and_nothing_else(record: TransactionMetadata, data: st.DataObject) -> None:
    key, value = encode(record)
    assert value is not None
    position = data.draw(st.integers(0, len(value) - 1))
    damaged = bytearray(value)
    damaged[position] ^= data.draw(st.integers(1, 255))
    for bad in (bytes(damaged), value[:position]):
        with suppress(CorruptRecord):
            decode(key, bad)
    with suppress(CorruptRecord):
        decode(key[: data.draw(st.integers(0, len(key)))], value)
