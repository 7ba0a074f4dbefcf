"""Offsets inside transactions, as a raw client of a whole broker sees them: both versions of the protocol."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from in_process_broker import RunningBroker, running_broker
from test_replication import Cluster
from test_replication import run as run_cluster
from txn_client import GROUP_KEY, Brokers, Txn

from penstock.base.errors import ErrorCode
from penstock.partition.partition import Partition
from penstock.partition.verification_guards import VerificationGuard
from penstock.server.api import ApiKey
from penstock.server.txn_verification import TxnVerification
from penstock.wire.codec import Struct

NONE = ErrorCode.none


async def fetch(brokers: Brokers, *, require_stable: bool = True) -> int | ErrorCode:
    group = Struct(group_id="g", topics=[Struct(name="t", partition_indexes=[0])])
    answer = await brokers.ask(GROUP_KEY, "g", ApiKey.OFFSET_FETCH, 8, groups=[group], require_stable=require_stable)
    found = answer.groups[0].topics[0].partitions[0]
    return ErrorCode(found.error_code) if found.error_code else int(found.committed_offset)


async def fetch_when_stable(brokers: Brokers) -> int | ErrorCode:
    while True:
        found = await fetch(brokers)
        if found is not ErrorCode.unstable_offset_commit:
            return found
        await asyncio.sleep(0.01)


def run(directory: Path, scenario: Callable[[RunningBroker, Brokers], Awaitable[None]]) -> None:
    async def main() -> None:
        async with running_broker(directory) as broker:
            await broker.create_topic("t")
            await scenario(broker, Brokers(lambda: [broker]))

    asyncio.run(main())


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("is_commit", [True, False])
def test_offsets_count_with_their_transaction(tmp_path: Path, version: int, is_commit: bool) -> None:
    async def scenario(broker: RunningBroker, brokers: Brokers) -> None:
        txn = Txn(brokers, version=version)
        await txn.init()
        for offset in (5, 6):
            if version == 1:
                assert await txn.add_offsets() is NONE
            assert await txn.commit_offset(offset) is NONE
            assert await fetch(brokers) is ErrorCode.unstable_offset_commit
            assert await fetch(brokers, require_stable=False) == (5 if is_commit and offset == 6 else -1)
            assert await txn.end(is_commit=is_commit) is NONE
            assert await fetch_when_stable(brokers) == (offset if is_commit else -1)

    run(tmp_path, scenario)


def test_a_transaction_without_the_group_s_partition_is_refused(tmp_path: Path) -> None:
    """Rule 15: nobody would end it there."""

    async def scenario(broker: RunningBroker, brokers: Brokers) -> None:
        txn = Txn(brokers, version=1)
        await txn.init()
        assert await txn.commit_offset(5, version=3) is ErrorCode.invalid_txn_state
        assert await txn.commit_offset(5, version=4) is ErrorCode.transaction_abortable
        assert await txn.add_offsets("another") is NONE  # Another partition, most likely.
        assert await txn.add_offsets() is NONE
        assert await txn.commit_offset(5, version=0) is NONE
        assert await txn.end() is NONE
        assert await fetch_when_stable(brokers) == 5
        assert await txn.commit_offset(6, version=3) is ErrorCode.invalid_txn_state

    run(tmp_path, scenario)


def test_who_has_lost_its_transactional_id_commits_nothing(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker, brokers: Brokers) -> None:
        zombie, owner = Txn(brokers), Txn(brokers)
        await zombie.init()
        assert await zombie.commit_offset(5) is NONE
        await owner.init()  # Aborts it.
        assert await fetch_when_stable(brokers) == -1
        assert await zombie.commit_offset(6) in (ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced)
        assert await owner.commit_offset(7) is NONE
        assert await owner.end() is NONE
        assert await fetch_when_stable(brokers) == 7
        stranger = Txn(brokers)
        stranger.producer_id, stranger.epoch = owner.producer_id + 1000, 0
        assert await stranger.commit_offset(8) is ErrorCode.invalid_producer_id_mapping
        stranger.producer_id = -1  # No producer at all: it would be a commit outside of any transaction.
        assert await stranger.commit_offset(8) is ErrorCode.invalid_producer_id_mapping
        assert await fetch(brokers) == 7

    run(tmp_path, scenario)


def test_a_verification_that_got_lost_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verify, losses = TxnVerification.verify, [True]

    async def verify_and_lose(self: TxnVerification, partition: Partition, **fields: Any) -> VerificationGuard | None:
        guard = await verify(self, partition, **fields)
        if losses:
            losses.pop()
            partition.producers.guards.on_first_batch(fields["producer_id"])
        return guard

    monkeypatch.setattr(TxnVerification, "verify", verify_and_lose)

    async def scenario(broker: RunningBroker, brokers: Brokers) -> None:
        txn = Txn(brokers)
        await txn.init()
        assert await txn.commit_offset(5) is NONE
        assert await txn.end() is NONE
        assert await fetch_when_stable(brokers) == 5
        assert losses == []

    run(tmp_path, scenario)


def test_what_cannot_be_committed_is_answered_for_itself(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker, brokers: Brokers) -> None:
        txn = Txn(brokers)
        await txn.init()
        assert await txn.commit_offset(5, topic="no-such") is ErrorCode.unknown_topic_or_partition
        assert await txn.commit_offset(5, partition=7) is ErrorCode.unknown_topic_or_partition
        assert await txn.commit_offset(5, group_id="") is ErrorCode.invalid_group_id
        assert await txn.commit_offset(5, generation_id=3, member_id="m") is ErrorCode.illegal_generation
        assert await txn.commit_offset(5, topics=[]) is NONE
        assert await txn.end(is_commit=False) is NONE
        assert await fetch_when_stable(brokers) == -1

    run(tmp_path, scenario)


def test_a_pending_offset_moves_with_its_coordinator(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        brokers = Brokers(lambda: list(cluster.brokers.values()))
        await cluster.create_topic("t", [[1, 2, 3]])
        txn = Txn(brokers)
        await txn.init()
        assert await txn.commit_offset(5) is NONE
        number = cluster.brokers[1].broker._dispatcher._context.groups.partition_for("g")
        await cluster.stop(cluster.state("__consumer_offsets", number).leader)
        assert await fetch(brokers) is ErrorCode.unstable_offset_commit
        assert await txn.commit_offset(6) is NONE
        assert await txn.end() is NONE
        assert await fetch_when_stable(brokers) == 6

    run_cluster(tmp_path, scenario)
