"""Who asks for the next transaction while the last one ends has its turn when that is over, and not a retry later."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from in_process_broker import Client, RunningBroker, running_broker
from txn_client import Brokers, Txn, code_of

from penstock.base.errors import ErrorCode
from penstock.coordinator import txn_coordinator
from penstock.server.api import ApiKey
from penstock.server.txn_markers import TxnMarkers
from penstock.wire.codec import Struct

NONE = ErrorCode.none


class World:
    def __init__(self, broker: RunningBroker, client: Client, txn: Txn, may_end: asyncio.Event) -> None:
        self.broker = broker
        self.client = client
        self.txn = txn
        self.may_end = may_end  # Cleared, no marker is written.

    def send_add(self) -> None:
        txn = self.txn
        self.client.send(
            ApiKey.ADD_PARTITIONS_TO_TXN, 3,
            v3_and_below_transactional_id=txn.transactional_id, v3_and_below_producer_id=txn.producer_id,
            v3_and_below_producer_epoch=txn.epoch, v3_and_below_topics=[Struct(name="t", partitions=[0])],
        )  # fmt: skip

    def send_add_offsets(self) -> None:
        txn = self.txn
        self.client.send(
            ApiKey.ADD_OFFSETS_TO_TXN, 3,
            transactional_id=txn.transactional_id, producer_id=txn.producer_id, producer_epoch=txn.epoch, group_id="g",
        )  # fmt: skip

    def send_init(self) -> None:
        self.client.send(
            ApiKey.INIT_PRODUCER_ID, 4,
            transactional_id=self.txn.transactional_id, transaction_timeout_ms=60_000, producer_id=-1,
            producer_epoch=-1,
        )  # fmt: skip


SENDS = [
    (World.send_add, ApiKey.ADD_PARTITIONS_TO_TXN, 3),
    (World.send_add_offsets, ApiKey.ADD_OFFSETS_TO_TXN, 3),
    (World.send_init, ApiKey.INIT_PRODUCER_ID, 4),
]


def run(directory: Path, monkeypatch: pytest.MonkeyPatch, scenario: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        write, may_end = TxnMarkers.write, asyncio.Event()

        async def wait_and_write(*arguments: Any) -> None:
            await may_end.wait()
            await write(*arguments)

        monkeypatch.setattr(TxnMarkers, "write", wait_and_write)
        async with running_broker(directory) as broker:
            await broker.create_topic("t")
            txn = Txn(Brokers(lambda: [broker]), version=1)
            await txn.init()
            assert await txn.produce(b"value") is NONE
            assert await txn.add_offsets() is NONE  # Has the topic of the groups made.
            client = await broker.connect()
            await scenario(World(broker, client, txn, may_end))
            client.close()
            assert broker.broker._dispatcher._context.txns._waiting == {}

    asyncio.run(main())


@pytest.mark.parametrize(("send", "key", "version"), SENDS)
def test_it_is_answered_when_the_last_one_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, send: Callable[[World], None], key: ApiKey, version: int
) -> None:
    monkeypatch.setattr(txn_coordinator, "TURN_S_MAX", 60.0)

    async def scenario(world: World) -> None:
        assert await world.txn.end() is NONE
        send(world)
        assert await world.client.is_silent()
        world.may_end.set()
        assert code_of(await world.client.receive_reply(key, version)) is NONE

    run(tmp_path, monkeypatch, scenario)


@pytest.mark.parametrize(("send", "key", "version"), SENDS)
def test_nobody_waits_for_an_end_that_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, send: Callable[[World], None], key: ApiKey, version: int
) -> None:
    monkeypatch.setattr(txn_coordinator, "TURN_S_MAX", 0.05)

    async def scenario(world: World) -> None:
        assert await world.txn.end() is NONE
        send(world)
        assert code_of(await world.client.receive_reply(key, version)) is ErrorCode.concurrent_transactions
        world.may_end.set()

    run(tmp_path, monkeypatch, scenario)


def test_who_takes_over_an_open_transaction_is_answered_when_that_is_aborted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(txn_coordinator, "TURN_S_MAX", 60.0)

    async def scenario(world: World) -> None:
        world.may_end.set()
        world.send_init()
        answer = await world.client.receive_reply(ApiKey.INIT_PRODUCER_ID, 4)
        assert (answer.error_code, answer.producer_id) == (0, world.txn.producer_id)
        assert answer.producer_epoch > world.txn.epoch
        assert world.broker.partition("t").log.log_end == 2

    run(tmp_path, monkeypatch, scenario)
