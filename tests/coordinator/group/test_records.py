"""Record formats. The bytes were written by Kafka 4.3.1's own classes (GroupCoordinatorRecordSerde and others)."""

import struct
from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.types import NO_TIMESTAMP, LeaderEpoch, Offset
from penstock.coordinator.group.records import (
    GroupDeleted,
    GroupMetadata,
    GroupRecord,
    MemberMetadata,
    OffsetCommitted,
    OffsetDeleted,
    _decode,
    decode,
    encode,
)
from penstock.coordinator.record_bytes import CorruptRecord
from penstock.wire.varint import InvalidVarint

WALL_MS = 1_700_000_000_000
OFFSET_KEY = bytes.fromhex("000100016700066f726465727300000003")
GROUP_KEY = bytes.fromhex("0002000167")


def committed(**fields: Any) -> OffsetCommitted:
    values: dict[str, Any] = {"group_id": "g", "topic": "orders", "partition": 3, "offset": Offset(42)}
    return OffsetCommitted(**{**values, "commit_timestamp_ms": WALL_MS, **fields})


def group(**fields: Any) -> GroupMetadata:
    first = MemberMetadata(
        member_id="m1",
        instance_id=fields.pop("instance_id", "i1"),
        client_id="c",
        client_host="/127.0.0.1",
        rebalance_timeout_ms=fields.pop("first_rebalance_ms", 60_000),
        session_timeout_ms=10_000,
        subscription=b"\1\2",
        assignment=b"\3",
    )
    second = MemberMetadata(
        member_id="m2",
        client_host="/::1",
        rebalance_timeout_ms=fields.pop("second_rebalance_ms", 300_000),
        session_timeout_ms=45_000,
    )
    values: dict[str, Any] = {"group_id": "g", "protocol_type": "consumer", "generation_id": 5, "protocol": "range"}
    values |= {"leader": "m1", "state_timestamp_ms": WALL_MS, "members": (first, second)}
    return GroupMetadata(**{**values, **fields})


AS_KAFKA_WRITES = [
    (
        committed(leader_epoch=LeaderEpoch(7), metadata="méta", topic_id=UUID("01020304-0506-0708-090a-0b0c0d0e0f10")),
        OFFSET_KEY,
        "0004000000000000002a00000007066dc3a974610000018bcfe568000100100102030405060708090a0b0c0d0e0f10",
    ),
    (committed(), OFFSET_KEY, "0004000000000000002affffffff010000018bcfe5680000"),
    (
        committed(expire_timestamp_ms=WALL_MS + 5_000),
        OFFSET_KEY,
        "0001000000000000002a00000000018bcfe568000000018bcfe57b88",
    ),
    (OffsetDeleted(group_id="g", topic="orders", partition=3), OFFSET_KEY, None),
    (GroupDeleted(group_id="g"), GROUP_KEY, None),
    (
        group(),
        GROUP_KEY,
        "00030008636f6e73756d657200000005000572616e676500026d310000018bcfe568000000000200026d3100026931000163"
        "000a2f3132372e302e302e310000ea6000002710000000020102000000010300026d32ffff000000042f3a3a31000493e000"
        "00afc80000000000000000",
    ),
    (
        GroupMetadata(group_id="g", state_timestamp_ms=WALL_MS),
        GROUP_KEY,
        "0003000000000000ffffffff0000018bcfe5680000000000",
    ),
]


@pytest.mark.parametrize(("record", "key", "value"), AS_KAFKA_WRITES)
def test_records_are_written_as_kafka_writes_them(record: GroupRecord, key: bytes, value: str | None) -> None:
    raw = None if value is None else bytes.fromhex(value)
    assert encode(record) == (key, raw)
    assert decode(key, raw) == record


OLD_OFFSETS = [
    ("0000000000000000002a00016d0000018bcfe56800", committed(metadata="m")),
    (
        "0001000000000000002a00016d0000018bcfe568000000018bcfe57b88",
        committed(metadata="m", expire_timestamp_ms=WALL_MS + 5_000),
    ),
    ("0002000000000000002a00016d0000018bcfe56800", committed(metadata="m")),
    ("0003000000000000002a0000000700016d0000018bcfe56800", committed(metadata="m", leader_epoch=LeaderEpoch(7))),
    ("0004000000000000002a00000007026d0000018bcfe5680000", committed(metadata="m", leader_epoch=LeaderEpoch(7))),
]


@pytest.mark.parametrize(("value", "record"), OLD_OFFSETS, ids=["v0", "v1", "v2", "v3", "v4"])
def test_offsets_of_every_version_are_read(value: str, record: OffsetCommitted) -> None:
    assert decode(OFFSET_KEY, bytes.fromhex(value)) == record


OLD_GROUPS = [
    (
        "00000008636f6e73756d657200000005000572616e676500026d310000000200026d31000163000a2f3132372e302e302e31"
        "00002710000000020102000000010300026d32000000042f3a3a310000afc80000000000000000",
        # Version 0 knows no rebalance timeout: the session's is used.
        group(state_timestamp_ms=-1, instance_id=None, first_rebalance_ms=10_000, second_rebalance_ms=45_000),
    ),
    (
        "00010008636f6e73756d657200000005000572616e676500026d310000000200026d31000163000a2f3132372e302e302e31"
        "0000ea6000002710000000020102000000010300026d32000000042f3a3a31000493e00000afc80000000000000000",
        group(state_timestamp_ms=-1, instance_id=None),
    ),
    (
        "00020008636f6e73756d657200000005000572616e676500026d310000018bcfe568000000000200026d31000163000a2f31"
        "32372e302e302e310000ea6000002710000000020102000000010300026d32000000042f3a3a31000493e00000afc8000000"
        "0000000000",
        group(instance_id=None),
    ),
    (
        "000409636f6e73756d6572000000050672616e6765036d310000018bcfe5680003036d3103693102630b2f3132372e302e30"
        "2e310000ea6000002710030102020300036d320001052f3a3a31000493e00000afc801010000",
        group(),
    ),
    ("0004010000000000000000018bcfe568000100", GroupMetadata(group_id="g", state_timestamp_ms=WALL_MS)),
]


@pytest.mark.parametrize(("value", "record"), OLD_GROUPS, ids=["v0", "v1", "v2", "v4", "v4 empty"])
def test_groups_of_every_version_are_read(value: str, record: GroupMetadata) -> None:
    assert decode(GROUP_KEY, bytes.fromhex(value)) == record


def test_keys_from_before_kafka_0_9_are_read() -> None:
    key = bytes.fromhex("000000016700066f726465727300000003")
    assert decode(key, bytes.fromhex(OLD_OFFSETS[0][0])) == committed(metadata="m")
    assert decode(key, None) == OffsetDeleted(group_id="g", topic="orders", partition=3)


def test_keys_of_other_kinds_of_groups_are_passed_over() -> None:
    assert decode(bytes.fromhex("000b000167"), b"whatever") is None  # ShareGroupMetadataKey
    assert decode(b"\x7f\xff", None) is None
    assert decode(None, b"") is None


@pytest.mark.parametrize("version", [-1, 5, 32_767])
def test_a_value_of_an_unknown_version_is_corrupt(version: int) -> None:
    with pytest.raises(CorruptRecord, match="version"):
        decode(GROUP_KEY, version.to_bytes(2, signed=True))


def test_a_count_of_members_that_cannot_be_there_is_corrupt() -> None:
    value = bytes.fromhex("0003000000000000ffffffff0000018bcfe56800") + b"\x7f\xff\xff\xff"
    with pytest.raises(CorruptRecord, match="claimed"):
        decode(GROUP_KEY, value)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("0004000000000000002affffffff010000018bcfe56800010003010203", "topic id of 3 bytes"),
        ("0004000000000000002affffffff000000018bcfe5680000", "null"),
        ("0004000000000000002affffffff010000018bcfe5680041", "65 tagged fields"),
        ("0003000000000000002affffffff7fff", "32767 bytes"),
        ("0003000000000000002affffffff0001ff0000018bcfe56800", "cannot be read"),
    ],
)
def test_damaged_offsets_are_corrupt(value: str, why: str) -> None:
    with pytest.raises(CorruptRecord, match=why):
        decode(OFFSET_KEY, bytes.fromhex(value))


def test_tags_of_later_versions_are_passed_over() -> None:
    assert decode(OFFSET_KEY, bytes.fromhex("0004000000000000002affffffff010000018bcfe568000109021234")) == committed()


@given(st.sampled_from(AS_KAFKA_WRITES), st.data())
def test_bytes_cut_short_or_changed_are_corrupt_or_another_record(
    written: tuple[GroupRecord, bytes, str | None], data: st.DataObject
) -> None:
    key, value = encode(written[0])
    raw = bytearray(key if value is None or data.draw(st.booleans()) else value)
    is_key = bytes(raw) == key
    if data.draw(st.booleans()):
        del raw[data.draw(st.integers(0, len(raw) - 1)) :]
    else:
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with suppress(CorruptRecord):
        decode(bytes(raw), value) if is_key else decode(key, bytes(raw))


@given(st.binary(max_size=60), st.none() | st.binary(max_size=200), st.sampled_from([0, 1, 2]), st.integers(0, 4))
def test_any_bytes_are_a_record_or_corrupt(key: bytes, value: bytes | None, kind: int, version: int) -> None:
    raw = None if value is None else version.to_bytes(2) + value
    with suppress(CorruptRecord):
        decode(kind.to_bytes(2) + key, raw)


texts = st.text(max_size=20)
int32s = st.integers(-(2**31), 2**31 - 1)
timeouts = st.integers(0, 2**31 - 1)
members = st.builds(
    MemberMetadata,
    member_id=texts,
    instance_id=st.none() | texts,
    client_id=texts,
    client_host=texts,
    rebalance_timeout_ms=timeouts,
    session_timeout_ms=timeouts,
    subscription=st.binary(max_size=20),
    assignment=st.binary(max_size=20),
)
records = st.one_of(
    st.builds(OffsetDeleted, group_id=texts, topic=texts, partition=int32s),
    st.builds(GroupDeleted, group_id=texts),
    st.builds(
        OffsetCommitted,
        group_id=texts,
        topic=texts,
        partition=int32s,
        offset=st.integers(-(2**63), 2**63 - 1).map(Offset),
        leader_epoch=int32s.map(LeaderEpoch),
        metadata=st.text(max_size=300),
        commit_timestamp_ms=st.integers(0, 2**62),
        expire_timestamp_ms=st.just(NO_TIMESTAMP),  # Another one is written without epoch and topic id.
        topic_id=st.uuids(),
    ),
    st.builds(
        GroupMetadata,
        group_id=texts,
        protocol_type=texts,
        generation_id=int32s,
        protocol=st.none() | texts,
        leader=st.none() | texts,
        state_timestamp_ms=st.integers(-1, 2**62),
        members=st.lists(members, max_size=4).map(tuple),
    ),
)


@given(records)
def test_what_is_written_is_read_back(record: GroupRecord) -> None:
    assert decode(*encode(record)) == record


@given(st.data())
def test_the_quick_reader_of_commits_gives_what_the_thorough_one_gives(data: st.DataObject) -> None:
    topic_id = data.draw(st.sampled_from([UUID(int=0), UUID(int=7)]))
    record = OffsetCommitted(
        group_id="g", topic="t", partition=1, offset=Offset(5), metadata="m", commit_timestamp_ms=9, topic_id=topic_id
    )
    parts = [bytearray(part or b"") for part in encode(record)]
    for _ in range(data.draw(st.integers(0, 3))):
        part = data.draw(st.sampled_from(parts))
        position = data.draw(st.integers(2, len(part) - 1))
        change = data.draw(st.sampled_from(["set", "cut", "add"]))
        if change == "set":
            part[position] = data.draw(st.integers(0, 255))
        elif change == "cut":
            del part[position:]
        else:
            part.insert(position, data.draw(st.integers(0, 255)))
        if len(part) < 4:
            break
    key, value = map(bytes, parts)
    try:
        expected = _decode(key, value)
    except (CorruptRecord, struct.error, IndexError, InvalidVarint, UnicodeDecodeError):
        with pytest.raises(CorruptRecord):
            decode(key, value)
    else:
        assert decode(key, value) == expected
