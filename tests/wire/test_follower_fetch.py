"""What followers send and read, packed by hand, says the same as the generic codec."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.errors import BadPeer
from penstock.server.api import ApiKey
from penstock.wire import codec
from penstock.wire.codec import Struct
from penstock.wire.fetch import FetchedPartition, pack_fetch_response
from penstock.wire.fetch_request import read_fetch_request
from penstock.wire.follower_fetch import (
    FOLLOWER_VERSION,
    CopyFrom,
    pack_follower_fetch,
    read_follower_reply,
)

ONE, TWO = UUID(int=1), UUID(int=2)

offsets = st.integers(0, 2**63 - 1)
epochs = st.integers(-1, 2**31 - 1)
wanted = st.builds(
    CopyFrom,
    topic_id=st.sampled_from([ONE, TWO]),
    partition=st.integers(0, 9),
    leader_epoch=epochs,
    fetch_offset=offsets,
    last_fetched_epoch=epochs,
    bytes_max=st.integers(0, 2**31 - 1),
)
forgotten = st.tuples(st.sampled_from([ONE, TWO]), st.integers(0, 9))


@given(wanted=st.lists(wanted, max_size=5), forgotten=st.lists(forgotten, max_size=5), broker_epoch=offsets)
def test_requests_are_read_by_the_broker_and_by_the_codec(
    wanted: list[CopyFrom], forgotten: list[tuple[UUID, int]], broker_epoch: int
) -> None:
    data = pack_follower_fetch(
        node_id=3,
        broker_epoch=broker_epoch,
        max_wait_ms=500,
        bytes_max=1 << 20,
        session_id=7,
        session_epoch=8,
        wanted=wanted,
        forgotten=forgotten,
    )
    request = read_fetch_request(memoryview(data), 0, FOLLOWER_VERSION)
    assert (request.replica_id, request.broker_epoch, request.session_id, request.session_epoch) == (
        3, broker_epoch, 7, 8,
    )  # fmt: skip
    assert (request.max_wait_ms, request.min_bytes, request.max_bytes) == (500, 1, 1 << 20)
    found = [
        CopyFrom(UUID(str(item.topic)), item.partition, item.current_leader_epoch, item.fetch_offset,
                 item.last_fetched_epoch, item.bytes_max)
        for item in request.partitions
    ]  # fmt: skip
    assert sorted(found) == sorted(item._replace(bytes_max=min(item.bytes_max or 0, 1 << 20)) for item in wanted)
    assert sorted(request.forgotten, key=str) == sorted(forgotten, key=str)
    message, end = codec.request_reader(ApiKey.FETCH, FOLLOWER_VERSION)(bytes(data), 0)
    assert end == len(data)
    assert (message.replica_state.replica_id, message.replica_state.replica_epoch) == (3, broker_epoch)


def test_who_does_not_say_how_much_of_a_partition_takes_as_much_as_of_all() -> None:
    data = pack_follower_fetch(
        node_id=3, broker_epoch=1, max_wait_ms=500, bytes_max=1 << 20, session_id=7, session_epoch=8,
        wanted=[CopyFrom(ONE, 0, 1, 2, 3)], forgotten=[],
    )  # fmt: skip
    assert read_fetch_request(memoryview(data), 0, FOLLOWER_VERSION).partitions[0].bytes_max == 1 << 20


@given(
    records=st.binary(max_size=300),
    diverging=st.none() | st.tuples(st.integers(0, 2**31 - 1), offsets),
    error=st.sampled_from([0, 6]),
)
def test_replies_are_read_as_the_broker_packs_them(
    records: bytes, diverging: tuple[int, int] | None, error: int
) -> None:
    item = FetchedPartition(4, error, 10, 9, 2, records, None, diverging)
    body = b"".join(pack_fetch_response(FOLLOWER_VERSION, 0, 7, [(ONE, [item, item]), (TWO, [item])]))
    reply = read_follower_reply(memoryview(body))
    assert (reply.error, reply.session_id, len(reply.partitions)) == (0, 7, 3)
    for topic_id, copied in zip((ONE, ONE, TWO), reply.partitions, strict=True):
        assert copied[:5] == (topic_id, 4, error, 10, 2)
        assert (bytes(copied.records), copied.diverging) == (records, diverging)
    message, end = codec.response_reader(ApiKey.FETCH, FOLLOWER_VERSION)(body, 0)
    assert end == len(body)
    if diverging is not None:
        told = message.responses[0].partitions[0].diverging_epoch
        assert (told.epoch, told.end_offset) == diverging


def test_replies_of_the_codec_are_read() -> None:
    partition = Struct(
        partition_index=4, error_code=0, high_watermark=10, last_stable_offset=10, log_start_offset=0,
        aborted_transactions=None, preferred_read_replica=-1, records=None,
    )  # fmt: skip
    message = Struct(error_code=0, session_id=7, responses=[Struct(topic_id=ONE, partitions=[partition])])
    body = codec.encode_response(ApiKey.FETCH, FOLLOWER_VERSION, message)
    (copied,) = read_follower_reply(memoryview(body)).partitions
    assert (copied.partition, bytes(copied.records), copied.diverging) == (4, b"", None)


def test_a_reply_cut_at_any_byte_is_refused() -> None:
    item = FetchedPartition(4, 0, 10, 9, 2, b"records", None, (3, 7))
    body = memoryview(b"".join(pack_fetch_response(FOLLOWER_VERSION, 0, 7, [(ONE, [item])])))
    for end in range(len(body) - 1):  # The last byte is the number of tags of a message that is already whole.
        with pytest.raises(BadPeer):
            read_follower_reply(body[:end])
