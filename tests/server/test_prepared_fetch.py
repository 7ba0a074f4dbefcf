"""A consumer that reads on is answered with what was found ahead; who does anything else, as if nothing had been."""

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from in_process_broker import RunningBroker, fetch_fields, run, until
from session_reader import FETCH_BYTES, VERSION, SessionReader

from penstock.base.errors import ErrorCode
from penstock.server import prepared_fetch
from penstock.server.api import ApiKey, Habits
from penstock.server.handlers import fetch as fetch_handler
from penstock.wire.batch import read_header
from penstock.wire.codec import Struct
from penstock.wire.fetch_request import read_fetch_request

BATCHES = 40
BATCH_BYTES = 60_000


@pytest.fixture(autouse=True)
def answered(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """For each fetch for which something was prepared, whether that was its answer."""
    found: list[bool] = []
    answer = fetch_handler._answer_prepared

    def noted(*arguments: Any) -> bool:
        found.append(answer(*arguments))
        return found[-1]

    monkeypatch.setattr(fetch_handler, "_answer_prepared", noted)
    yield found


def habits_of(broker: RunningBroker) -> list[Habits]:
    known = [each.known_header for each in broker.listener._connections]
    return [each.header.habits for each in known if each is not None]


async def fetch_and_prepare(broker: RunningBroker, reader: SessionReader) -> None:
    await reader.fetch()
    habits = habits_of(broker)
    await until(lambda: any(each.prepared_fetch is not None for each in habits), "the next answer is prepared")


async def reader_of_much(broker: RunningBroker, partitions: int = 1) -> SessionReader:
    topic_id = await broker.create_topic("t", partitions=partitions)
    producer = await broker.connect()
    for value in range(BATCHES):
        for number in range(partitions):
            await producer.produce("t", bytes([number, value]) * (BATCH_BYTES // 2), partitions=(number,))
    producer.close()
    return SessionReader(await broker.connect(), topic_id, partitions)


@pytest.mark.parametrize("partitions", [1, 3])
def test_who_reads_on_is_answered_with_what_was_prepared(tmp_path: Path, answered: list[bool], partitions: int) -> None:
    async def scenario(broker: RunningBroker) -> None:
        reader = await reader_of_much(broker, partitions)
        for _ in range(BATCHES // 4 - 2):
            await fetch_and_prepare(broker, reader)
        assert answered == [True] * (BATCHES // 4 - 3)
        while any(offset < BATCHES for offset in reader.offsets.values()):
            await reader.fetch()
        for number, read in reader.read.items():
            log = broker.partition("t", number).log
            assert read == bytes(log.active.file.read(0, log.active.size))

    run(scenario, tmp_path)


def test_a_session_goes_on_from_what_was_prepared(tmp_path: Path, answered: list[bool]) -> None:
    async def scenario(broker: RunningBroker) -> None:
        reader = await reader_of_much(broker, partitions=2)
        await fetch_and_prepare(broker, reader)
        await reader.fetch()
        assert answered == [True]
        # It names no partition, and so gets again what it last asked for.
        fields = fetch_fields(session=reader.session, by_id=True, max_bytes=50 << 20)
        again = await reader.client.ask(ApiKey.FETCH, VERSION, **fields)
        for part in (part for topic in again.responses for part in topic.partitions):
            assert reader.read[part.partition_index].endswith(bytes(part.records))
            assert len(part.records) > FETCH_BYTES // 2

    run(scenario, tmp_path)


def test_another_request_of_the_session_does_not_change_what_is_prepared(tmp_path: Path, answered: list[bool]) -> None:
    async def scenario(broker: RunningBroker) -> None:
        reader = await reader_of_much(broker)
        await reader.fetch()
        # Both are on their way at once, and the second one asks for less.
        wanted = (reader.topic_id, 0, reader.offsets[0])
        for more, size in enumerate((FETCH_BYTES, 2 * BATCH_BYTES + 1000)):
            session = (reader.session[0], reader.session[1] + more)
            fields = fetch_fields(wanted, session=session, by_id=True, max_bytes=50 << 20, partition_max_bytes=size)
            reader.client.send(ApiKey.FETCH, VERSION, **fields)
        for _ in range(2):
            await reader.client.receive_reply(ApiKey.FETCH, VERSION)
        habits = habits_of(broker)
        await until(lambda: any(each.prepared_fetch is not None for each in habits), "the next answer is prepared")
        (prepared,) = [each.prepared_fetch for each in habits if each.prepared_fetch is not None]
        asked = read_fetch_request(memoryview(prepared.answered.body), 0, VERSION)
        assert [item.wanted for item in prepared.partitions] == asked.partitions
        assert asked.partitions[0].bytes_max == FETCH_BYTES

    run(scenario, tmp_path)


Change = Callable[[RunningBroker, SessionReader], Awaitable[None]]


async def seek_back(broker: RunningBroker, reader: SessionReader) -> None:
    reader.offsets[0] = 1


async def delete_records(broker: RunningBroker, reader: SessionReader) -> None:
    client = await broker.connect()
    parts = [Struct(partition_index=0, offset=BATCHES - 1)]
    answer = await client.ask(ApiKey.DELETE_RECORDS, 2, topics=[Struct(name="t", partitions=parts)], timeout_ms=60_000)
    assert answer.topics[0].partitions[0].error_code == 0


async def delete_segments(broker: RunningBroker, reader: SessionReader) -> None:
    log = broker.partition("t").log
    log.roll()
    log.delete_oldest(1)


async def take_bytes_away(broker: RunningBroker, reader: SessionReader) -> None:
    broker.partition("t").log.active.changes += 1  # As when it is cut, or compacted files take its place.


async def delete_topic(broker: RunningBroker, reader: SessionReader) -> None:
    await broker.delete_topic("t")


async def lose_the_lead(broker: RunningBroker, reader: SessionReader) -> None:
    broker.broker.partitions.end_roles()


async def close_the_session(broker: RunningBroker, reader: SessionReader) -> None:
    client = await broker.connect()
    await client.ask(ApiKey.FETCH, VERSION, **fetch_fields(session=(reader.session[0], -1), by_id=True))


async def set_a_quota(broker: RunningBroker, reader: SessionReader) -> None:
    client = await broker.connect()
    entry = Struct(
        entity=[Struct(entity_type="client-id", entity_name=None)],
        ops=[Struct(key="consumer_byte_rate", value=1e9, remove=False)],
    )
    answer = await client.ask(ApiKey.ALTER_CLIENT_QUOTAS, 1, entries=[entry], validate_only=False)
    assert answer.entries[0].error_code == 0


async def leave_out_an_epoch(broker: RunningBroker, reader: SessionReader) -> None:
    reader.session = (reader.session[0], reader.session[1] + 1)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (seek_back, ErrorCode.none),
        (take_bytes_away, ErrorCode.none),
        (set_a_quota, ErrorCode.none),
        (delete_records, ErrorCode.offset_out_of_range),
        (delete_segments, ErrorCode.offset_out_of_range),
        (delete_topic, ErrorCode.unknown_topic_id),
        (lose_the_lead, ErrorCode.not_leader_or_follower),
        (close_the_session, ErrorCode.fetch_session_id_not_found),
        (leave_out_an_epoch, ErrorCode.invalid_fetch_session_epoch),
    ],
)
def test_what_was_prepared_is_not_the_answer_any_more(
    tmp_path: Path, answered: list[bool], change: Change, expected: ErrorCode
) -> None:
    async def scenario(broker: RunningBroker) -> None:
        reader = await reader_of_much(broker)
        await fetch_and_prepare(broker, reader)
        read = reader.read[0]
        await change(broker, reader)
        offset = reader.offsets[0]
        answer = await reader.fetch()
        code = answer.error_code or answer.responses[0].partitions[0].error_code
        assert (ErrorCode(code), answered) == (expected, [False])
        if expected == ErrorCode.none:
            records = reader.read[0][len(read) :]
            assert read_header(records).base_offset == offset

    run(scenario, tmp_path)


def test_an_old_answer_is_not_given(tmp_path: Path, answered: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: RunningBroker) -> None:
        reader = await reader_of_much(broker)
        await fetch_and_prepare(broker, reader)
        client = await broker.connect()
        await client.produce("t", b"one more")
        monkeypatch.setattr(prepared_fetch, "HOLDS_S", 0.0)
        answer = await reader.fetch()
        assert answer.responses[0].partitions[0].high_watermark == BATCHES + 1
        assert answered == [False]

    run(scenario, tmp_path)


def test_what_cannot_be_sent_from_files_is_not_prepared(tmp_path: Path, answered: list[bool]) -> None:
    async def scenario(broker: RunningBroker) -> None:
        topic_id = await broker.create_topic("t")
        client = await broker.connect()
        for _ in range(3):
            await client.produce("t", b"a few bytes")
        reader = SessionReader(client, topic_id)
        await reader.fetch()
        await client.produce("t", b"and more")
        await reader.fetch()
        assert (reader.offsets[0], answered) == (4, [])

    run(scenario, tmp_path)
