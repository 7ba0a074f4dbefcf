"""The records of consumer groups, byte for byte as Kafka's serializers write them, and damaged ones."""

from contextlib import suppress
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.coordinator.group.commands import Protocol
from penstock.coordinator.group.consumer.member_state import MemberState
from penstock.coordinator.group.consumer.records import (
    ClassicMetadata,
    ConsumerGroupCurrentMemberAssignment,
    ConsumerGroupMemberMetadata,
    ConsumerGroupMetadata,
    ConsumerGroupPartitionMetadata,
    ConsumerGroupRegularExpression,
    ConsumerGroupTargetAssignmentMember,
    ConsumerGroupTargetAssignmentMetadata,
    ConsumerGroupTombstone,
    ConsumerRecord,
    RecordKind,
    TopicMetadata,
)
from penstock.coordinator.group.records import decode, encode
from penstock.coordinator.record_bytes import CorruptRecord

TOPIC = UUID("01020304-0506-0708-090a-0b0c0d0e0f10")
ID = "0102030405060708090a0b0c0d0e0f10"
PARTITIONS = f"02{ID}0300000000" + "00000002" + "00"
MEMBER_KEY = "0001670001" + "6d"

AS_KAFKA_WRITES: list[tuple[ConsumerRecord, str, str | None]] = [
    (ConsumerGroupMetadata(group_id="g", epoch=7), "0003000167", "00000000000700"),
    (
        ConsumerGroupPartitionMetadata(group_id="g", topics=(TopicMetadata(TOPIC, "t", 3),)),
        "0004000167",
        f"000002{ID}0274000000030100" + "00",
    ),
    (
        ConsumerGroupMemberMetadata(
            group_id="g",
            member_id="m",
            instance_id="i",
            client_id="c",
            client_host="/h",
            topic_names=("t",),
            topic_regex="u.*",
            rebalance_timeout_ms=60_000,
            server_assignor="range",
        ),
        "0005" + MEMBER_KEY,
        "0000" + "0269" + "00" + "0263" + "032f68" + "020274" + "04752e2a" + "0000ea60" + "0672616e6765" + "00",
    ),
    (
        ConsumerGroupMemberMetadata(
            group_id="g",
            member_id="m",
            topic_names=("t",),
            rebalance_timeout_ms=60_000,
            classic=ClassicMetadata(10_000, (Protocol("range", b"\1\2"),)),
        ),
        "0005" + MEMBER_KEY,
        "0000" + "00" + "00" + "01" + "01" + "020274" + "00" + "0000ea60" + "00"
        "010011" + "01" + "00002710" + "02" + "0672616e6765" + "030102" + "00" + "00",
    ),
    (ConsumerGroupTargetAssignmentMetadata(group_id="g", epoch=7), "0006000167", "00000000000700"),
    (
        ConsumerGroupTargetAssignmentMember(group_id="g", member_id="m", partitions={TOPIC: frozenset({0, 2})}),
        "0007" + MEMBER_KEY,
        f"0000{PARTITIONS}00",
    ),
    (
        ConsumerGroupCurrentMemberAssignment(
            group_id="g",
            member_id="m",
            epoch=7,
            previous_epoch=6,
            state=MemberState.UNREVOKED_PARTITIONS,
            assigned={TOPIC: frozenset({0, 2})},
        ),
        "0008" + MEMBER_KEY,
        f"0000000000070000000601{PARTITIONS}0100",
    ),
    (
        ConsumerGroupRegularExpression(group_id="g", regex="t.*", topics=frozenset({"t"}), version=1, timestamp_ms=2),
        "00100001670003742e2a",
        "0000" + "020274" + "0000000000000001" + "0000000000000002" + "00",
    ),
    (ConsumerGroupTombstone(kind=RecordKind.GROUP, group_id="g"), "0003000167", None),
    (ConsumerGroupTombstone(kind=RecordKind.MEMBER, group_id="g", subject="m"), "0005" + MEMBER_KEY, None),
]


@pytest.mark.parametrize(("record", "key", "value"), AS_KAFKA_WRITES, ids=lambda item: type(item).__name__)
def test_records_are_written_as_kafka_writes_them(record: ConsumerRecord, key: str, value: str | None) -> None:
    raw = None if value is None else bytes.fromhex(value)
    assert encode(record) == (bytes.fromhex(key), raw)
    assert decode(bytes.fromhex(key), raw) == record


def test_a_value_of_another_version_is_corrupt() -> None:
    with pytest.raises(CorruptRecord, match="version"):
        decode(bytes.fromhex("0003000167"), bytes.fromhex("00010000000700"))


def test_a_state_that_is_not_known_is_corrupt() -> None:
    with pytest.raises(CorruptRecord, match="state"):
        decode(bytes.fromhex("0008" + MEMBER_KEY), bytes.fromhex("000000000007000000067f0101" + "00"))


@given(st.sampled_from([item for item in AS_KAFKA_WRITES if item[2]]), st.data())
def test_damaged_values_raise_nothing_else(item: tuple[ConsumerRecord, str, str], data: st.DataObject) -> None:
    raw = bytearray.fromhex(item[2])
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with suppress(CorruptRecord):
        decode(bytes.fromhex(item[1]), bytes(raw[: data.draw(st.integers(0, len(raw)))]))
