"""S11: fetches that pose as a replica, ask outside the log, for too much, or for more sessions than there are."""

import time
from contextlib import suppress
from random import Random
from uuid import UUID

import pytest

from penstock.base.errors import ErrorCode, Refused
from penstock.server.api import ApiKey
from penstock.server.fetch_session import PARTITIONS_MAX, FetchSessionCache
from penstock.wire.codec import Struct
from penstock.wire.fetch_request import WantedPartition

from .broker_process import BrokerProcess
from .client import Client, batch_of, fetch_fields, framed, read_reply, request_frame

BATCH = batch_of(b"x" * 1000)


@pytest.fixture
def filled(client: Client, topic: str) -> str:
    for _ in range(5):
        assert client.produce(topic, BATCH)[0] == 0
    return topic


@pytest.mark.parametrize("version", [4, 11, 12, 14])
def test_s11_a_fetch_as_a_replica_is_refused(client: Client, filled: str, version: int) -> None:
    topic = _topic_id(client, filled) if version >= 13 else filled
    found = client.fetch(topic, 0, version=version, replica_id=1)  # type: ignore[arg-type]
    assert (found.error_code, found.records or b"") == (ErrorCode.topic_authorization_failed, b"")


@pytest.mark.parametrize("version", [15, 18])
def test_s11_a_fetch_as_a_replica_by_its_tag_is_refused(client: Client, filled: str, version: int) -> None:
    state = Struct(replica_id=1, replica_epoch=1)
    found = client.fetch(_topic_id(client, filled), 0, version=version, replica_state=state)  # type: ignore[arg-type]
    assert found.error_code == ErrorCode.topic_authorization_failed


def _topic_id(client: Client, topic: str) -> UUID:
    topics = [Struct(topic_id=UUID(int=0), name=topic)]
    answer = client.ask(ApiKey.METADATA, 12, topics=topics, include_topic_authorized_operations=False)
    found: UUID = answer.topics[0].topic_id
    return found


@pytest.mark.parametrize("offset", [6, 2**63 - 1, -1, -5, -(2**63)])
def test_s11_an_offset_outside_the_log_is_out_of_range(client: Client, filled: str, offset: int) -> None:
    found = client.fetch(filled, offset)
    assert found.error_code == ErrorCode.offset_out_of_range


@pytest.mark.parametrize("max_bytes", [-1, -(2**31), 0, 1, 2**31 - 1])
@pytest.mark.parametrize("partition_max_bytes", [-1, 0, 2**31 - 1])
def test_s11_byte_limits_are_clamped(client: Client, filled: str, max_bytes: int, partition_max_bytes: int) -> None:
    found = client.fetch(filled, 0, max_bytes=max_bytes, partition_max_bytes=partition_max_bytes)
    assert found.error_code == 0
    count = 5 if max_bytes == partition_max_bytes == 2**31 - 1 else 1
    assert len(found.records) == count * len(BATCH)


@pytest.mark.parametrize(("wait_ms", "min_bytes"), [(-1, 2**31 - 1), (0, 2**31 - 1), (50, 2**31 - 1), (50, -1)])
def test_s11_waits_are_clamped(client: Client, filled: str, wait_ms: int, min_bytes: int) -> None:
    began = time.monotonic()
    assert client.fetch(filled, 5, wait_ms=wait_ms, min_bytes=min_bytes).error_code == 0
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("max_bytes", [0, -1, 1, 1 << 20])
def test_s11_a_partition_asked_for_ten_thousand_times_is_sent_once(
    broker: BrokerProcess, client: Client, topic: str, max_bytes: int
) -> None:
    client.produce(topic, batch_of(b"x" * 1_000_000))
    before = broker.rss_bytes()
    broker.forget_peak()
    wanted = [(topic, 0, 0)] * 10_000
    answer = client.ask(ApiKey.FETCH, 12, **fetch_fields(wanted, max_bytes=max_bytes))
    sent = sum(len(part.records or b"") for entry in answer.responses for part in entry.partitions)
    assert 1_000_000 < sent < 2_100_000
    assert broker.peak_bytes() - before < 64 << 20


def test_s11_a_partition_that_does_not_exist_is_unknown(client: Client, filled: str) -> None:
    for partition in (-1, 1, 2**31 - 1):
        assert client.fetch(filled, 0, partition=partition).error_code == ErrorCode.unknown_topic_or_partition
    unknown = client.fetch(UUID(int=99), 0, version=13)  # type: ignore[arg-type]
    assert unknown.error_code == ErrorCode.unknown_topic_id


@pytest.mark.parametrize(("epoch", "code"), [(5, ErrorCode.unknown_leader_epoch), (-1, ErrorCode.none)])
def test_s11_a_leader_epoch_from_the_future_is_refused(
    client: Client, filled: str, epoch: int, code: ErrorCode
) -> None:
    fields = fetch_fields([(filled, 0, 0)])
    fields["topics"][0].partitions[0].current_leader_epoch = epoch
    answer = client.ask(ApiKey.FETCH, 12, **fields)
    assert answer.responses[0].partitions[0].error_code == code


# Sessions -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epoch", [1, 5, -2, -(2**31), 2**31 - 1])
def test_s11_an_unknown_session_is_not_found(client: Client, filled: str, epoch: int) -> None:
    for session_id in (0, 12345, -1):
        answer = client.ask(
            ApiKey.FETCH, 12, **fetch_fields([(filled, 0, 0)], session_id=session_id, session_epoch=epoch)
        )
        assert answer.error_code == ErrorCode.fetch_session_id_not_found
        assert answer.responses == ()


@pytest.mark.parametrize("epoch", [2, 3, -2, -(2**31), 2**31 - 1])
def test_s11_a_wrong_session_epoch_is_refused_and_the_session_goes_on(client: Client, filled: str, epoch: int) -> None:
    opened = client.ask(ApiKey.FETCH, 12, **fetch_fields([(filled, 0, 0)], session_epoch=0))
    session_id = opened.session_id
    if session_id == 0:
        pytest.skip("all sessions are taken")
    wrong = client.ask(ApiKey.FETCH, 12, **fetch_fields([], session_id=session_id, session_epoch=epoch))
    assert wrong.error_code == ErrorCode.invalid_fetch_session_epoch
    right = client.ask(ApiKey.FETCH, 12, **fetch_fields([], session_id=session_id, session_epoch=1))
    assert (right.error_code, right.session_id) == (ErrorCode.none, session_id)
    client.ask(ApiKey.FETCH, 12, **fetch_fields([], session_id=session_id, session_epoch=-1))


def test_s11_ten_thousand_sessions_leave_late_comers_without_one(
    broker: BrokerProcess, client: Client, filled: str
) -> None:
    opened = set()
    frame = framed(request_frame(1, 12, Struct(**fetch_fields([(filled, 0, 5)], session_epoch=0)), correlation_id=1))
    try:
        for _ in range(100):
            client.send(frame * 100)
            for _ in range(100):
                answer = read_reply(1, 12, client.receive(), 1)
                assert answer.error_code == ErrorCode.none
                opened.add(answer.session_id)
        assert 0 in opened, "session id 0: go on without"
        assert len(opened) <= 1001
    finally:
        for session_id in opened:
            fields = fetch_fields([], session_id=session_id, session_epoch=-1)
            assert client.ask(ApiKey.FETCH, 12, **fields).error_code == ErrorCode.none


def test_s11_a_session_does_not_grow_without_end() -> None:
    sessions = FetchSessionCache(slots=1000, random=Random(11))
    session = sessions.open(0.0)
    assert session is not None
    with pytest.raises(Refused) as refused:
        for number in range(30):
            sessions.update(session, [WantedPartition(f"t{number}", index, 0, 1, -1) for index in range(10_000)])
    assert refused.value.code is ErrorCode.fetch_session_id_not_found
    assert sum(len(known.partitions) for known in sessions._sessions.values()) <= PARTITIONS_MAX
    assert len(sessions) == 0


def test_s11_many_sessions_together_do_not_grow_without_end() -> None:
    sessions = FetchSessionCache(slots=1000, random=Random(11))
    opened = 0
    for _ in range(100):
        session = sessions.open(0.0)
        assert session is not None
        with suppress(Refused):
            sessions.update(session, [WantedPartition("t", index, 0, 1, -1) for index in range(10_000)])
            opened += 1
    assert opened == PARTITIONS_MAX // 10_000
    assert len(sessions) == opened
