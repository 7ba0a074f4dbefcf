"""Transactions whose coordinators, leaders and topics go away: all of it counts, or nothing. Rules 14 and 15."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from in_process_broker import fetch_fields, running_broker, until
from test_replication import Cluster, run
from txn_client import Brokers, Txn, code_of

from penstock.base.errors import ErrorCode
from penstock.base.types import Offset
from penstock.cluster.store.memory import MemoryStore
from penstock.coordinator import txn_coordinator
from penstock.server import txn_markers
from penstock.server.api import ApiKey
from penstock.server.txn_markers import TxnMarkers
from penstock.wire.batch import read_header, records_of

NONE = ErrorCode.none


def of(cluster: Cluster) -> Brokers:
    return Brokers(lambda: list(cluster.brokers.values()))


async def committed_values(brokers: Brokers, partition: int = 0, start: int = 0) -> list[bytes]:
    """What a reader of committed data makes of a Fetch, as clients do."""
    values: list[bytes] = []
    fields = fetch_fields(("t", partition, start))
    answer = await brokers.ask_leader("t", partition, ApiKey.FETCH, 12, isolation_level=1, **fields)
    found = answer.responses[0].partitions[0]
    assert found.error_code == 0
    aborted = sorted((one.first_offset, one.producer_id) for one in found.aborted_transactions or [])
    hidden: set[int] = set()
    data, position = memoryview(bytes(found.records or b"")), 0
    while position < len(data):
        header = read_header(data, position)
        batch = data[position : position + header.size]
        position += header.size
        while aborted and aborted[0][0] <= header.last_offset:
            hidden.add(aborted.pop(0)[1])
        if header.is_control:
            hidden.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in hidden):
            values += [record.value or b"" for record in records_of(batch, decompressed_bytes_max=1 << 20)]
    return values


async def wait_stable(cluster: Cluster, *partitions: int) -> None:
    def is_stable(number: int) -> bool:
        leader = cluster.state("t", number).leader
        if leader not in cluster.brokers:
            return False
        partition = cluster.partition(leader, "t", number)
        return partition.leading is not None and partition.last_stable_offset == partition.log.log_end

    await until(lambda: all(is_stable(number) for number in partitions), "all transactions have ended")


def coordinator_of(cluster: Cluster, transactional_id: str = "x") -> int:
    context = next(iter(cluster.brokers.values())).broker._dispatcher._context
    number = context.txns._runtime.partition_for(transactional_id)
    return cluster.state("__transaction_state", number).leader


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("is_commit", [True, False])
def test_a_coordinator_that_dies_behind_its_answer(tmp_path: Path, version: int, is_commit: bool) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("t", [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
        txn = Txn(of(cluster), version=version)
        await txn.init()
        for number in range(3):
            assert await txn.produce(b"%d" % number, partition=number) is NONE
        before = (txn.producer_id, txn.epoch)
        assert await txn.end(is_commit=is_commit) is NONE
        after = (txn.producer_id, txn.epoch)
        await cluster.stop(coordinator_of(cluster))
        await wait_stable(cluster, 0, 1, 2)
        expected = [[b"0"], [b"1"], [b"2"]] if is_commit else [[], [], []]
        assert [await committed_values(of(cluster), partition=number) for number in range(3)] == expected
        # The answer was lost: asked again, it is the same.
        txn.producer_id, txn.epoch = before
        assert await txn.end(is_commit=is_commit) is NONE
        assert (txn.producer_id, txn.epoch) == after
        assert await txn.end(is_commit=not is_commit) in (ErrorCode.invalid_txn_state, NONE)
        assert await txn.produce(b"next") is NONE
        assert await txn.end() is NONE
        await wait_stable(cluster, 0)
        assert (await committed_values(of(cluster)))[-1] == b"next"

    run(tmp_path, scenario)


@pytest.mark.parametrize("version", [1, 2])
def test_a_leader_that_goes_in_the_middle_of_a_transaction(tmp_path: Path, version: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("t", [[1, 2, 3]], min_insync_replicas="2")
        txn = Txn(of(cluster), version=version)
        await txn.init()
        for number, is_commit in enumerate((True, False, True)):
            assert await txn.produce(b"%d first" % number) is NONE
            leader = cluster.state().leader
            await cluster.stop(leader)
            await until(lambda: cluster.state().leader in cluster.brokers)
            await until(lambda: cluster.partition(cluster.state().leader).leading is not None)
            new = cluster.partition(cluster.state().leader)
            assert new.last_stable_offset < new.log.log_end
            assert await txn.produce(b"%d second" % number) is NONE
            assert await txn.end(is_commit=is_commit) is NONE
            await wait_stable(cluster, 0)
            await cluster.start(leader)
            await until(lambda: len(cluster.state().isr) == 3)
        assert await committed_values(of(cluster)) == [b"0 first", b"0 second", b"2 first", b"2 second"]
        assert cluster.log_bytes(1) == cluster.log_bytes(2) == cluster.log_bytes(3)

    run(tmp_path, scenario)


def test_a_topic_that_is_deleted_does_not_keep_its_transaction_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(txn_markers, "GONE_S", 0.5)

    async def scenario(cluster: Cluster) -> None:
        for name in ("t", "u"):
            await cluster.create_topic(name, [[1, 2, 3]])
        txn = Txn(of(cluster))
        await txn.init()
        assert await txn.produce(b"kept") is NONE
        assert await txn.produce(b"gone", topic="u") is NONE
        client = await cluster.brokers[cluster.controller].connect()
        answer = await client.ask(ApiKey.DELETE_TOPICS, 5, topic_names=["u"], timeout_ms=60_000)
        assert code_of(answer) is NONE
        client.close()
        assert await txn.end() is NONE
        await wait_stable(cluster, 0)
        assert await txn.produce(b"next") is NONE
        assert await txn.end() is NONE
        await wait_stable(cluster, 0)
        assert await committed_values(of(cluster)) == [b"kept", b"next"]

    run(tmp_path, scenario)


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_restart_in_the_middle_of_a_transaction(tmp_path: Path, is_commit: bool) -> None:
    async def main() -> None:
        store = MemoryStore()
        async with running_broker(tmp_path, store) as broker:
            await broker.create_topic("t")
            txn = Txn(Brokers(lambda: [broker]))
            await txn.init()
            assert await txn.produce(b"aborted") is NONE
            assert await txn.end(is_commit=False) is NONE
            assert await txn.produce(b"first") is NONE
        async with running_broker(tmp_path, store) as broker:
            txn.brokers = Brokers(lambda: [broker])
            await until(lambda: broker.partition("t").leading is not None)
            partition = broker.partition("t")
            assert partition.last_stable_offset < partition.high_watermark
            assert await committed_values(txn.brokers) == []
            assert await txn.produce(b"second") is NONE
            assert await txn.end(is_commit=is_commit) is NONE
            await until(lambda: partition.last_stable_offset == partition.log.log_end)
            assert await committed_values(txn.brokers) == ([b"first", b"second"] if is_commit else [])

    asyncio.run(main())


def test_a_bug_in_an_end_does_not_leave_the_transaction_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its readers would wait until another broker coordinates it."""
    monkeypatch.setattr(txn_coordinator, "FAILED_RETRY_S", 0.1)
    write = TxnMarkers.write
    failures = [KeyError("a bug")]

    async def fail_once(*arguments: Any) -> None:
        if failures:
            raise failures.pop()
        await write(*arguments)

    monkeypatch.setattr(TxnMarkers, "write", fail_once)

    async def main() -> None:
        async with running_broker(tmp_path) as broker:
            await broker.create_topic("t")
            txn = Txn(Brokers(lambda: [broker]))
            await txn.init()
            assert await txn.produce(b"value") is NONE
            assert await txn.end() is NONE
            partition = broker.partition("t")
            await until(lambda: partition.last_stable_offset == partition.log.log_end)

    asyncio.run(main())
    assert failures == []


def test_records_are_deleted_below_an_open_transaction(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_broker(tmp_path) as broker:
            await broker.create_topic("t")
            brokers = Brokers(lambda: [broker])
            txn, other = Txn(brokers), Txn(brokers, "y")
            await txn.init()
            await other.init()
            for number in range(3):
                assert await txn.produce(b"%d" % number) is NONE
            assert await other.produce(b"other") is NONE
            broker.partition("t").delete_records(Offset(2))
            assert broker.partition("t").last_stable_offset == 2
            assert await committed_values(brokers, start=2) == []
            assert await other.end(is_commit=False) is NONE
            assert await txn.end() is NONE
            partition = broker.partition("t")
            await until(lambda: partition.last_stable_offset == partition.log.log_end)
            assert await committed_values(brokers, start=2) == [b"2"]

    asyncio.run(main())
