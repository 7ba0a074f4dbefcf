"""Offsets inside transactions, as a raw client of a whole broker sees them: both versions of the protocol."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from in_process_broker import RunningBroker, running_broker
from test_replication import Cluster
from test_replication import run as run_cluster

from penstock.base.errors import ErrorCode
from penstock.server.api import ApiKey
from penstock.wire.codec import Struct

NONE = ErrorCode.none
RETRIED = {
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
    ErrorCode.concurrent_transactions,
    ErrorCode.not_leader_or_follower,
}
GROUP_KEY, TXN_KEY = 0, 1


class Brokers:
    """Whoever coordinates what is asked for, found as a client finds it."""

    def __init__(self, brokers: Callable[[], list[RunningBroker]]) -> None:
        self._brokers = brokers

    async def ask(self, kind: int, coordinated: str, key: ApiKey, version: int, **fields: Any) -> Struct:
        """The reply of the coordinator of that kind; asked again where clients do so."""
        while True:
            first = await self._brokers()[0].connect()
            found = await first.ask(ApiKey.FIND_COORDINATOR, 4, key_type=kind, coordinator_keys=[coordinated])
            first.close()
            port = found.coordinators[0].port
            broker = next((one for one in self._brokers() if one.listener.port == port), None)
            if broker is not None:
                client = await broker.connect()
                answer = await client.ask(key, version, **fields)
                client.close()
                if code_of(answer) not in RETRIED:
                    return answer
            await asyncio.sleep(0.01)


def code_of(answer: Struct) -> ErrorCode:
    """The one error code of an answer, wherever it is."""
    fields = vars(answer) if hasattr(answer, "__dict__") else {name: getattr(answer, name) for name in answer.__slots__}
    if fields.get("error_code"):
        return ErrorCode(fields["error_code"])
    for value in fields.values():
        if isinstance(value, list) and value and isinstance(value[0], Struct):
            return code_of(value[0])
    return NONE


class Txn:
    """One transactional id, with the group `g` that reads the topic `t`."""

    def __init__(self, brokers: Brokers, transactional_id: str = "x", *, version: int = 2) -> None:
        self.brokers = brokers
        self.transactional_id = transactional_id
        self.version = version  # transaction.version
        self.producer_id = self.epoch = -1

    async def init(self) -> None:
        answer = await self.brokers.ask(
            TXN_KEY, self.transactional_id, ApiKey.INIT_PRODUCER_ID, 4,
            transactional_id=self.transactional_id, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1,
        )  # fmt: skip
        assert answer.error_code == NONE
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch

    async def add_offsets(self, group_id: str = "g") -> ErrorCode:
        answer = await self.brokers.ask(
            TXN_KEY, self.transactional_id, ApiKey.ADD_OFFSETS_TO_TXN, 3,
            transactional_id=self.transactional_id, producer_id=self.producer_id, producer_epoch=self.epoch,
            group_id=group_id,
        )  # fmt: skip
        return code_of(answer)

    async def commit_offset(self, offset: int, *, version: int | None = None, **fields: Any) -> ErrorCode:
        values = {
            "transactional_id": self.transactional_id,
            "group_id": "g",
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
            "topics": [offsets_of(fields.pop("topic", "t"), fields.pop("partition", 0), offset)],
        }
        default = 5 if self.version == 2 else 3
        answer = await self.brokers.ask(
            GROUP_KEY, "g", ApiKey.TXN_OFFSET_COMMIT, default if version is None else version, **{**values, **fields}
        )
        return code_of(answer)

    async def end(self, *, is_commit: bool = True) -> ErrorCode:
        answer = await self.brokers.ask(
            TXN_KEY, self.transactional_id, ApiKey.END_TXN, 5 if self.version == 2 else 3,
            transactional_id=self.transactional_id, producer_id=self.producer_id, producer_epoch=self.epoch,
            committed=is_commit,
        )  # fmt: skip
        if self.version == 2 and answer.error_code == NONE:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        return ErrorCode(answer.error_code)


def offsets_of(topic: str, partition: int, offset: int) -> Struct:
    item = Struct(partition_index=partition, committed_offset=offset, committed_leader_epoch=-1, committed_metadata="m")
    return Struct(name=topic, partitions=[item])


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
