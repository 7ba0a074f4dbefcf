"""S15 and KIP-664: who is no broker ends a transaction only when no coordinator of the cluster knows it."""

import asyncio
from pathlib import Path

import pytest
from test_read_committed import write
from test_replication import Cluster, run
from test_txn_moves import coordinator_of, of, wait_stable
from test_write_txn_markers import marker
from txn_client import Txn

from penstock.base.errors import ErrorCode
from penstock.server import hanging_txns
from penstock.server.api import ApiKey

NOBODYS = 999_999  # A producer id that was never given out.


async def abort(cluster: Cluster, producer_id: int, epoch: int = 0) -> int:
    """The code for a client's marker in t-0."""
    asked = [marker(0, commit=False, pid=producer_id, epoch=epoch)]
    answer = await of(cluster).ask_leader("t", 0, ApiKey.WRITE_TXN_MARKERS, 1, markers=asked)
    return int(answer.markers[0].topics[0].partitions[0].error_code)


async def abort_when_known(cluster: Cluster, producer_id: int, epoch: int = 0) -> int:
    """The same, once all coordinators have loaded what they know."""
    async with asyncio.timeout(30):
        while (code := await abort(cluster, producer_id, epoch)) == ErrorCode.broker_not_available:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return code


def test_reliability_s15_what_a_coordinator_knows_is_not_a_clients_to_end(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("t", [[1, 2, 3]])
        coordinators = set()
        for number in range(12):  # Ids enough that more than one broker coordinates some.
            txn = Txn(of(cluster), f"id-{number}")
            await txn.init()
            assert await txn.produce(b"x") is ErrorCode.none
            assert await abort_when_known(cluster, txn.producer_id, txn.epoch) == ErrorCode.cluster_authorization_failed
            coordinators.add(coordinator_of(cluster, f"id-{number}"))
            assert await txn.end() is ErrorCode.none
            await wait_stable(cluster, 0)
        assert len(coordinators) > 1
        assert not cluster.partition(cluster.state().leader).aborted(0, 1000)

    run(tmp_path, scenario)


def test_a_transaction_that_hangs_is_ended_by_an_operator(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("t", [[1, 2, 3]])
        txn = Txn(of(cluster), "id")  # There are coordinators, and they know of others.
        await txn.init()
        assert await txn.produce(b"x") is ErrorCode.none
        partition = cluster.partition(cluster.state().leader)
        write(partition, NOBODYS)
        assert await abort_when_known(cluster, NOBODYS) == ErrorCode.none
        assert await txn.end() is ErrorCode.none
        await wait_stable(cluster, 0)
        assert [entry[0] for entry in partition.aborted(0, 1000)] == [NOBODYS]

    run(tmp_path, scenario)


def test_nothing_is_ended_while_a_coordinator_cannot_be_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hanging_txns, "ANSWER_S_MAX", 0.5)

    async def scenario(cluster: Cluster) -> None:
        await cluster.create_topic("t", [[1]])
        txn = Txn(of(cluster), "id")
        await txn.init()
        write(cluster.partition(1), NOBODYS)
        context = cluster.brokers[1].broker._dispatcher._context
        hanging = context.hanging_txns
        led = hanging._coordinators()
        answers = iter([led, [(leader, epoch + 1) for leader, epoch in led]])
        hanging._coordinators = lambda: next(answers)  # type: ignore[method-assign]
        assert await abort(cluster, NOBODYS) == ErrorCode.broker_not_available, "a coordinator has moved"
        hanging._coordinators = lambda: [*led, (77, 0)]  # type: ignore[method-assign]
        assert await abort(cluster, NOBODYS) == ErrorCode.broker_not_available, "a coordinator is not there"
        del hanging._coordinators
        assert await abort_when_known(cluster, NOBODYS) == ErrorCode.none
        await wait_stable(cluster, 0)

    run(tmp_path, scenario)
