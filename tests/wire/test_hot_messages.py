"""Produce and Fetch, packed by hand, say the same as the generic codec in every version."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.errors import BadPeer
from penstock.server.api import ApiKey
from penstock.wire import codec
from penstock.wire.codec import Struct
from penstock.wire.fetch import FetchedPartition, pack_fetch_response
from penstock.wire.fetch_request import read_fetch_request, read_on
from penstock.wire.produce import (
    PartitionResult,
    pack_produce_response,
    pack_stored,
    produce_start,
    read_produce_request,
)
from produce_fields import produce_fields

TOPIC_ID = UUID(int=77)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)


def topic_fields(version: int) -> dict[str, object]:
    return {"topic_id": TOPIC_ID} if version >= 13 else {"name": "topic-é"}


@pytest.mark.parametrize("version", range(3, 14))
@given(
    transactional_id=st.none() | st.text(max_size=200),
    acks=st.sampled_from([-1, 0, 1, 2]),
    partitions=st.lists(st.tuples(st.integers(0, 9), st.none() | st.binary(max_size=300)), max_size=4),
)
def test_produce_requests_read_as_the_codec_wrote_them(
    version: int, transactional_id: str | None, acks: int, partitions: list[tuple[int, bytes | None]]
) -> None:
    data = bytearray(b"head")
    topic = Struct(
        **topic_fields(version),
        partition_data=[Struct(index=index, records=records) for index, records in partitions],
    )
    message = Struct(transactional_id=transactional_id, acks=acks, timeout_ms=1500, topic_data=[topic, topic])
    codec.request_writer(ApiKey.PRODUCE, version)(data, message)
    request = read_produce_request(memoryview(data), 4, version)
    assert (request.transactional_id, request.acks, request.timeout_ms) == (transactional_id, acks, 1500)
    name = next(iter(topic_fields(version).values()))
    found = [(item.topic, item.partition, item.records and bytes(item.records)) for item in request.partitions]
    assert found == [(name, index, records and bytes(records)) for index, records in partitions] * 2


def produce_frame(version: int, records: bytes | None, partition: int = 7, **fields: object) -> bytearray:
    topic = Struct(**topic_fields(version), partition_data=[Struct(index=partition, records=records)])
    data = bytearray(b"head")
    message = Struct(**{"transactional_id": None, "acks": -1, "timeout_ms": 1500, **fields}, topic_data=[topic])
    codec.request_writer(ApiKey.PRODUCE, version)(data, message)
    return data


@pytest.mark.parametrize("version", range(9, 14))
@given(first=st.binary(max_size=300), second=st.binary(max_size=20_000), partition=st.integers(-(2**31), 2**31 - 1))
def test_a_produce_request_is_known_by_its_start(version: int, first: bytes, second: bytes, partition: int) -> None:
    frame = memoryview(produce_frame(version, first))
    start = produce_start(frame, 4, version, read_produce_request(frame, 4, version))
    assert start is not None
    frame = memoryview(produce_frame(version, second, partition))
    known = start.read(frame, 4)
    assert known is not None
    assert produce_fields(known) == produce_fields(read_produce_request(frame, 4, version))
    other = memoryview(produce_frame(version, second, acks=1))
    assert start.read(other, 4) is None
    assert start.read(memoryview(produce_frame(version, None)), 4) is None


@pytest.mark.parametrize("version", [9, 13])
@given(records=st.binary(max_size=300), data=st.data())
def test_whatever_is_known_by_its_start_is_read_as_any_other(version: int, records: bytes, data: st.DataObject) -> None:
    frame = produce_frame(version, records)
    request = read_produce_request(memoryview(frame), 4, version)
    start = produce_start(memoryview(frame), 4, version, request)
    assert start is not None
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(4, len(frame) - 1))] = data.draw(st.integers(0, 255))
    damaged = memoryview(frame)[: data.draw(st.integers(len(frame) - 3, len(frame)))]
    found = start.read(damaged, 4)
    assert found is None or produce_fields(found) == produce_fields(read_produce_request(damaged, 4, version))


@pytest.mark.parametrize("end", [b"\1\0\0\0\0", b"\0\1\0\0\0", b"\0\0\1\0\0", b"\0\0\0\0"])
def test_a_produce_request_with_tags_or_more_is_not_known_by_its_start(end: bytes) -> None:
    frame = memoryview(produce_frame(9, b"records")[:-3] + end)
    assert produce_start(frame, 4, 9, read_produce_request(frame, 4, 9)) is None


@pytest.mark.parametrize("version", [3, 9, 13])
def test_a_produce_request_cut_at_any_byte_is_refused(version: int) -> None:
    data = bytearray()
    topic = Struct(**topic_fields(version), partition_data=[Struct(index=0, records=b"records")])
    message = Struct(transactional_id="id", acks=-1, timeout_ms=1, topic_data=[topic])
    codec.request_writer(ApiKey.PRODUCE, version)(data, message)
    for end in range(len(data)):
        with pytest.raises(BadPeer):
            read_produce_request(memoryview(data)[:end], 0, version)


@pytest.mark.parametrize("version", range(3, 14))
def test_produce_responses_are_packed_as_the_codec_would(version: int) -> None:
    topic = TOPIC_ID if version >= 13 else "topic-é"
    results = [PartitionResult(0, 0, 42, -1, 3, None), PartitionResult(1, 87, -1, -1, -1, "why" * 50)]
    expected = Struct(
        responses=[
            Struct(
                **topic_fields(version),
                partition_responses=[
                    Struct(
                        index=result.partition,
                        error_code=result.error,
                        base_offset=result.base_offset,
                        log_append_time_ms=result.log_append_time,
                        log_start_offset=result.log_start,
                        error_message=result.message,
                    )
                    for result in results
                ],
            )
        ]
    )
    assert pack_produce_response(version, [(topic, results)]) == codec.encode_response(
        ApiKey.PRODUCE, version, expected
    )
    stored = pack_produce_response(version, [(topic, results[:1])], 33)
    assert pack_stored(version, topic, results[0], 33) == stored


FETCHED = st.tuples(st.integers(0, 9), st.integers(0, 2**40), st.integers(-1, 2**31 - 1), st.integers(-1, 9))


@pytest.mark.parametrize("version", range(4, 19))
@given(
    numbers=st.tuples(*[st.integers(-1, 2**31 - 1)] * 5),
    isolation_level=st.sampled_from([0, 1]),
    partitions=st.lists(FETCHED, max_size=4),
    forgotten=st.lists(st.integers(0, 9), max_size=3),
    replica_id=st.sampled_from([-1, 5]),
)
def test_fetch_requests_read_as_the_codec_wrote_them(
    version: int,
    numbers: tuple[int, ...],
    isolation_level: int,
    partitions: list[tuple[int, int, int, int]],
    forgotten: list[int],
    replica_id: int,
) -> None:
    data = fetch_request(version, numbers, isolation_level, partitions, forgotten, replica_id)
    request = read_fetch_request(memoryview(data), 4, version)
    max_wait_ms, min_bytes, max_bytes, session_id, session_epoch = numbers
    assert (request.max_wait_ms, request.min_bytes, request.max_bytes) == (max_wait_ms, min_bytes, max_bytes)
    assert (request.isolation_level, request.replica_id) == (isolation_level, replica_id)
    topic = TOPIC_ID if version >= 13 else "topic-é"
    assert request.partitions == 2 * [
        (topic, index, offset, bytes_max, epoch if version >= 9 else -1, -1)
        for index, offset, bytes_max, epoch in partitions
    ]
    if version >= 7:
        assert (request.session_id, request.session_epoch) == (session_id, session_epoch)
        assert request.forgotten == [(topic, index) for index in forgotten]
    else:
        assert (request.session_id, request.session_epoch, request.forgotten) == (0, -1, [])


@pytest.mark.parametrize("version", range(4, 19))
def test_a_fetch_request_cut_at_any_byte_is_refused(version: int) -> None:
    data = memoryview(fetch_request(version, (1, 2, 3, 4, 5), 1, [(0, 1, 2, 3)], [7], 5))
    for end in range(4, len(data)):
        with pytest.raises(BadPeer):
            read_fetch_request(data[:end], 4, version)


@given(
    version=st.sampled_from(range(15, 19)),
    numbers=st.tuples(*[INT32] * 5),
    isolation_level=st.sampled_from([0, 1]),
    partitions=st.lists(st.tuples(INT32, INT64, INT32, INT32), max_size=3, unique_by=lambda item: item[0]),
    forgotten=st.lists(INT32, max_size=3),
    session=st.tuples(INT32, INT32),
    offset=INT64,
)
def test_a_fetch_request_that_reads_on_differs_in_its_session_and_its_offsets(
    version: int,
    numbers: tuple[int, ...],
    isolation_level: int,
    partitions: list[tuple[int, int, int, int]],
    forgotten: list[int],
    session: tuple[int, int],
    offset: int,
) -> None:
    data = fetch_request(version, numbers, isolation_level, partitions, forgotten, 5)[4:]
    offsets: dict[tuple[str | UUID, int], int] = {
        (TOPIC_ID, item[0]): max(offset - number, -(2**63)) for number, item in enumerate(partitions)
    }
    then = [(index, offsets[TOPIC_ID, index], *rest) for index, _, *rest in partitions]
    expected = fetch_request(version, (*numbers[:3], *session), isolation_level, then, forgotten, 5)[4:]
    assert read_on(bytes(data), session, offsets) == bytes(expected)


def fetch_request(
    version: int,
    numbers: tuple[int, ...],
    isolation_level: int,
    partitions: list[tuple[int, int, int, int]],
    forgotten: list[int],
    replica_id: int,
) -> bytearray:
    max_wait_ms, min_bytes, max_bytes, session_id, session_epoch = numbers
    name = {"topic_id": TOPIC_ID} if version >= 13 else {"topic": "topic-é"}
    topic = Struct(
        **name,
        partitions=[
            Struct(partition=index, fetch_offset=offset, partition_max_bytes=bytes_max, current_leader_epoch=epoch)
            for index, offset, bytes_max, epoch in partitions
        ],
    )
    message = Struct(
        replica_id=replica_id,
        replica_state=Struct(replica_id=replica_id, replica_epoch=3),
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=[topic, topic],
        forgotten_topics_data=[Struct(**name, partitions=forgotten)],
        rack_id="rack",
    )
    data = bytearray(b"head")
    codec.request_writer(ApiKey.FETCH, version)(data, message)
    return data


def _aborted(item: FetchedPartition) -> list[Struct] | None:
    if item.aborted is None:
        return None
    return [Struct(producer_id=producer_id, first_offset=first) for producer_id, first in item.aborted]


@pytest.mark.parametrize("version", range(4, 19))
def test_fetch_responses_are_packed_as_the_codec_would(version: int) -> None:
    topic = TOPIC_ID if version >= 13 else "topic-é"
    partitions = [
        FetchedPartition(0, 0, 10, 9, 1, b"batch" * 60, ()),
        FetchedPartition(1, 3, -1, -1, -1, b"", None),
        FetchedPartition(2, 0, 5, 5, 0, memoryview(b"more"), None),
        FetchedPartition(3, 0, 5, 5, 0, memoryview(b"more"), [(7, 3), (2**62, 2**61)]),
        FetchedPartition(4, 0, 5, 5, 0, b"", [(7, 3)] * 200),
    ]
    named = {"topic_id": TOPIC_ID} if version >= 13 else {"topic": "topic-é"}
    expected = Struct(
        error_code=0,
        session_id=7,
        responses=[
            Struct(
                **named,
                partitions=[
                    Struct(
                        partition_index=item.partition,
                        error_code=item.error,
                        high_watermark=item.high_watermark,
                        last_stable_offset=item.last_stable_offset,
                        log_start_offset=item.log_start,
                        aborted_transactions=_aborted(item),
                        preferred_read_replica=-1,
                        records=bytes(item.records),
                    )
                    for item in partitions
                ],
            )
        ],
    )
    packed = b"".join(pack_fetch_response(version, 0, 7, [(topic, partitions)]))
    assert packed == codec.encode_response(ApiKey.FETCH, version, expected)
