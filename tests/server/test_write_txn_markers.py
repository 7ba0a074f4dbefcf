"""WriteTxnMarkers: brokers end transactions, clients may only abort what is open."""

from pathlib import Path
from typing import Any

import pytest
from in_process_broker import RunningBroker, run, until
from test_alter_partition import ASK_S, led_by_two
from test_forwarding import run_two
from test_read_committed import write

from penstock.base.errors import ErrorCode
from penstock.server.api import ApiKey
from penstock.wire.codec import Struct


def marker(*indexes: int, topic: str = "t", commit: bool = True, pid: int = 1, epoch: int = 0, **fields: Any) -> Struct:
    values = {"coordinator_epoch": 0, "transaction_version": 1, **fields}
    topics = [Struct(name=topic, partition_indexes=list(indexes))]
    return Struct(producer_id=pid, producer_epoch=epoch, transaction_result=commit, topics=topics, **values)


def codes_in(answer: Struct) -> list[tuple[int, str, int, int]]:
    return [
        (of.producer_id, topic.name, item.partition_index, item.error_code)
        for of in answer.markers
        for topic in of.topics
        for item in topic.partitions
    ]


@pytest.mark.parametrize("version", [1, 2])
def test_a_broker_ends_transactions_of_several_producers(tmp_path: Path, version: int) -> None:
    async def scenario(one: RunningBroker, two: RunningBroker) -> None:
        await led_by_two(one, two)
        await until(lambda: two.partition("t").leading is not None)
        partition = two.partition("t")
        write(partition, 1)
        write(partition, 2)
        peer = await one.broker.peers.connect(2)
        asked = Struct(
            markers=[
                marker(0, 0, 1, commit=True, pid=1),
                marker(0, commit=False, pid=2),
                marker(0, topic="nowhere", pid=3),
                marker(0, pid=1, epoch=-1),
            ]
        )
        answer = await peer.ask(ApiKey.WRITE_TXN_MARKERS, version, asked, ASK_S)
        unknown = ErrorCode.unknown_topic_or_partition
        assert codes_in(answer) == [
            (1, "t", 0, 0),
            (1, "t", 1, unknown),
            (2, "t", 0, 0),
            (3, "nowhere", 0, unknown),
            (1, "t", 0, ErrorCode.invalid_producer_epoch),
        ]
        assert partition.last_stable_offset == partition.high_watermark == 4
        assert [entry[:3] for entry in partition.aborted(partition.log_start, partition.high_watermark)] == [(2, 1, 3)]
        write(partition, 1, 1)
        bumped = Struct(markers=[marker(0, pid=1, epoch=1, transaction_version=2)])
        assert codes_in(await peer.ask(ApiKey.WRITE_TXN_MARKERS, version, bumped, ASK_S)) == [(1, "t", 0, 0)]
        again = codes_in(await peer.ask(ApiKey.WRITE_TXN_MARKERS, version, bumped, ASK_S))
        assert again == [(1, "t", 0, 0)]
        assert partition.log.log_end == (6 if version == 2 else 7)  # Before v2 it could as well be another one.
        peer.close()

    run_two(tmp_path, scenario)


def test_reliability_s15_clients_abort_what_is_open_and_nothing_else(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        client, partition = await broker.connect(), broker.partition("t")
        write(partition, 1)

        async def ask(*markers: Struct) -> list[int]:
            answer = await client.ask(ApiKey.WRITE_TXN_MARKERS, 1, markers=list(markers))
            return [code for *_, code in codes_in(answer)]

        assert await ask(marker(0, commit=True)) == [ErrorCode.cluster_authorization_failed]
        assert await ask(marker(0, commit=False, pid=2), marker(0, commit=False, topic="x")) == [0, 3]
        assert partition.log.log_end == 1
        assert await ask(marker(0, commit=False, epoch=-1)) == [ErrorCode.invalid_producer_epoch]
        assert await ask(marker(0, commit=False)) == [0]
        assert await ask(marker(0, commit=False)) == [0]
        assert partition.log.log_end == partition.last_stable_offset == 2
        assert await ask() == []
        assert set(await ask(marker(*range(10_001), commit=False))) == {ErrorCode.invalid_request}

    run(scenario, tmp_path)


def test_a_transaction_that_began_while_the_coordinators_were_asked_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        client, partition = await broker.connect(), broker.partition("t")
        write(partition, 1)

        async def hangs(*_: object) -> bool:
            end = {"producer_id": 1, "producer_epoch": 0, "coordinator_epoch": 0, "is_commit": True}
            partition.append_marker(**end, transaction_version=1)
            write(partition, 1, sequence=1)
            return True

        monkeypatch.setattr(broker.broker._dispatcher._context.hanging_txns, "hangs", hangs)
        answer = await client.ask(ApiKey.WRITE_TXN_MARKERS, 1, markers=[marker(0, commit=False)])
        assert codes_in(answer) == [(1, "t", 0, ErrorCode.broker_not_available)]
        await until(lambda: partition.last_stable_offset == 2)
        assert partition.log.log_end == 3

    run(scenario, tmp_path)


def test_a_marker_that_is_not_committed_in_time_is_to_be_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.server.handlers.write_txn_markers.COMMIT_S_MAX", 0.05)

    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        client, partition = await broker.connect(), broker.partition("t")
        write(partition, 1)
        broker.disk.hold()
        answer = await client.ask(ApiKey.WRITE_TXN_MARKERS, 1, markers=[marker(0, commit=False)])
        assert codes_in(answer) == [(1, "t", 0, ErrorCode.request_timed_out)]
        broker.disk.release()
        await until(lambda: partition.last_stable_offset == 2)

    run(scenario, tmp_path)
