"""The transaction coordinator of a broker, asked over a socket: who is let in, markers, restarts, other brokers."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from in_process_broker import Client, RunningBroker, run, running_broker, until

from penstock.base.types import TopicPartition
from penstock.cluster.store.memory import MemoryStore
from penstock.coordinator.txn.markers import TxnMarker
from penstock.server import txn_markers
from penstock.server.api import ApiKey
from penstock.storage.scan import header_problem
from penstock.wire.batch import read_header
from penstock.wire.codec import Struct
from penstock.wire.txn_marker import EndTxnMarker, read_marker

FEW = {"transaction_state_log_num_partitions": 2, "offsets_topic_num_partitions": 2}
Scenario = Callable[[RunningBroker], Awaitable[None]]


class Producer:
    """A transactional producer by hand."""

    def __init__(self, client: Client, transactional_id: str = "tx") -> None:
        self.client = client
        self.transactional_id = transactional_id
        self.producer_id = -1
        self.epoch = -1

    async def find(self) -> None:
        async with asyncio.timeout(30):
            while True:
                answer = await self.client.ask(
                    ApiKey.FIND_COORDINATOR, 4, coordinator_keys=[self.transactional_id], key_type=1
                )
                if answer.coordinators[0].error_code == 0:
                    return
                await asyncio.sleep(0.01)

    async def init(self, version: int = 4, timeout_ms: int = 60_000, **fields: object) -> Struct:
        """Also after COORDINATOR_LOAD_IN_PROGRESS and CONCURRENT_TRANSACTIONS, as every client does."""
        async with asyncio.timeout(30):
            while True:
                answer = await self.client.ask(
                    ApiKey.INIT_PRODUCER_ID,
                    version,
                    transactional_id=self.transactional_id,
                    transaction_timeout_ms=timeout_ms,
                    **fields,
                )
                if answer.error_code not in (14, 51):
                    break
                await asyncio.sleep(0.01)
        if answer.error_code == 0:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        return answer

    async def add(self, topic: str, *partitions: int, version: int = 3) -> int:
        answer = await self.client.ask(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            version,
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[Struct(name=topic, partitions=list(partitions))],
        )
        (result,) = answer.results_by_topic_v3_and_below
        (code,) = {item.partition_error_code for item in result.results_by_partition}
        return int(code)

    async def end(self, *, is_commit: bool, version: int = 4) -> Struct:
        return await self.client.ask(
            ApiKey.END_TXN,
            version,
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=is_commit,
        )

    async def state(self) -> str:
        while True:
            answer = await self.client.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[self.transactional_id])
            (described,) = answer.transaction_states
            if described.error_code == 0:
                return str(described.transaction_state)
            if described.error_code != 14:  # Of another partition of the coordinator than the one used so far.
                return f"error {described.error_code}"
            await asyncio.sleep(0.01)

    async def until(self, state: str) -> None:
        async with asyncio.timeout(30):
            while await self.state() != state:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def producer_on(broker: RunningBroker, transactional_id: str = "tx") -> Producer:
    producer = Producer(await broker.connect(), transactional_id)
    await producer.find()
    return producer


def markers_of(broker: RunningBroker, topic: str, number: int = 0) -> list[tuple[EndTxnMarker, int, int]]:
    """The markers in a partition, each with its producer id and epoch."""
    partition_log = broker.partition(topic, number).log
    data = bytes(partition_log.read(partition_log.log_start, 1 << 20, partition_log.log_end, at_least_one=True))
    found, position = [], 0
    while position < len(data):
        header = read_header(data, position)
        assert header_problem(header, header.base_offset) is None
        if header.is_control:
            marker = read_marker(data[position : position + header.size])
            assert marker is not None
            found.append((marker, header.producer_id, header.producer_epoch))
        position += header.size
    return found


def test_a_transaction_ends_with_a_marker_in_each_of_its_partitions(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t", partitions=3)
        producer = await producer_on(broker)
        assert (await producer.init()).error_code == 0
        assert await producer.add("t", 0, 2) == 0
        assert await producer.state() == "Ongoing"
        assert (await producer.end(is_commit=True)).error_code == 0
        await producer.until("CompleteCommit")
        epoch = broker.partition("__transaction_state", 0).leader_epoch
        expected = [(EndTxnMarker(True, epoch), producer.producer_id, 0)]
        assert [markers_of(broker, "t", number) for number in range(3)] == [expected, [], expected]
        assert (await producer.end(is_commit=True)).error_code == 0
        assert (await producer.end(is_commit=False)).error_code == 48
        # The next one.
        assert await producer.add("t", 1) == 0
        assert (await producer.end(is_commit=False)).error_code == 0
        await producer.until("CompleteAbort")
        assert markers_of(broker, "t", 1) == [(EndTxnMarker(False, epoch), producer.producer_id, 0)]
        assert len(markers_of(broker, "t", 0)) == 1
        producer.client.close()

    run(scenario, tmp_path, **FEW)


def test_in_transaction_version_2_every_end_gives_a_new_epoch(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        producer = await producer_on(broker)
        await producer.init(version=5)
        assert await producer.add("t", 0) == 0
        answer = await producer.end(is_commit=True, version=5)
        assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (0, producer.producer_id, 1)
        await producer.until("CompleteCommit")
        again = await producer.end(is_commit=True, version=5)
        assert (again.error_code, again.producer_epoch) == (0, 1)
        assert [epoch for _, _, epoch in markers_of(broker, "t")] == [1]
        producer.client.close()

    run(scenario, tmp_path, **FEW)


@pytest.mark.parametrize(("version", "code"), [(1, 47), (3, 90)])
def test_a_producer_that_was_replaced_is_shut_out(tmp_path: Path, version: int, code: int) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        old, new = await producer_on(broker), await producer_on(broker)
        await old.init()
        assert await old.add("t", 0) == 0
        assert (await new.init()).error_code == 0
        assert (new.producer_id, new.epoch) == (old.producer_id, 2)
        assert [marker for marker, _, _ in markers_of(broker, "t")] == [EndTxnMarker(False, 0)]
        assert await old.add("t", 0, version=version) == code
        assert (await old.end(is_commit=True, version=version)).error_code == code
        expected = {"producer_id": old.producer_id, "producer_epoch": old.epoch}
        init_version = 3 if version == 1 else 4
        assert (await old.init(version=init_version, **expected)).error_code == code
        for producer in (old, new):
            producer.client.close()

    run(scenario, tmp_path, **FEW)


def test_a_transaction_that_takes_too_long_is_aborted(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        producer = await producer_on(broker)
        await producer.init(timeout_ms=50)
        assert await producer.add("t", 0) == 0
        await producer.until("CompleteAbort")
        assert (await producer.end(is_commit=True)).error_code == 90
        producer.client.close()

    run(scenario, tmp_path, **FEW, transaction_abort_timed_out_transaction_cleanup_interval_ms=20)


def test_what_was_decided_is_carried_out_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        store = MemoryStore()
        with monkeypatch.context() as patched:
            stuck = asyncio.Event()

            async def no_answer(partitions: object, marker: TxnMarker, to: TopicPartition) -> object:
                stuck.set()
                await asyncio.Event().wait()
                raise AssertionError

            patched.setattr(txn_markers, "append_marker", no_answer)
            async with running_broker(tmp_path, store, **FEW) as broker:
                await broker.create_topic("t")
                committing, aborting, kept = [await producer_on(broker, name) for name in ("c", "a", "k")]
                for producer in (committing, aborting, kept):
                    await producer.init()
                    assert await producer.add("t", 0) == 0
                assert (await committing.end(is_commit=True)).error_code == 0
                assert (await committing.end(is_commit=True)).error_code == 51
                assert (await aborting.end(is_commit=False)).error_code == 0
                assert (await kept.init(version=6, enable2_pc=True, keep_prepared_txn=True)).error_code == 0
                await stuck.wait()
                for producer in (committing, aborting, kept):
                    producer.client.close()
        async with running_broker(tmp_path, store, **FEW) as broker:
            for producer, state in ((committing, "CompleteCommit"), (aborting, "CompleteAbort"), (kept, "Ongoing")):
                producer.client = await broker.connect()
                await producer.until(state)
            found = {producer_id: marker.is_commit for marker, producer_id, _ in markers_of(broker, "t")}
            assert found == {committing.producer_id: True, aborting.producer_id: False}
            assert (await kept.end(is_commit=True)).error_code == 0
            await kept.until("CompleteCommit")
            for producer in (committing, aborting, kept):
                producer.client.close()

    asyncio.run(scenario())


def test_a_deleted_topic_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(txn_markers, "GONE_S", 0.1)

    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        await broker.create_topic("u")
        producer = await producer_on(broker)
        await producer.init()
        assert await producer.add("t", 0) == 0
        assert await producer.add("u", 0) == 0
        await broker.delete_topic("t")
        assert (await producer.end(is_commit=True)).error_code == 0
        await producer.until("CompleteCommit")
        assert len(markers_of(broker, "u")) == 1
        producer.client.close()

    run(scenario, tmp_path, **FEW)


def test_a_transaction_is_handed_over(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        writer, committer = await producer_on(broker), await producer_on(broker)
        await writer.init()
        assert await writer.add("t", 0) == 0
        answer = await committer.init(version=6, enable2_pc=True, keep_prepared_txn=True)
        assert (answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch) == (writer.producer_id, 0)
        assert (answer.producer_id, answer.producer_epoch) == (writer.producer_id, 1)
        assert (await writer.end(is_commit=False)).error_code == 90
        for _ in range(2):
            assert (await committer.end(is_commit=True)).error_code == 0
            await committer.until("CompleteCommit")
        assert [(marker.is_commit, epoch) for marker, _, epoch in markers_of(broker, "t")] == [(True, 1)]
        for producer in (writer, committer):
            producer.client.close()

    run(scenario, tmp_path, **FEW)


def test_offsets_of_a_group_are_part_of_a_transaction(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        producer = await producer_on(broker)
        await producer.init()
        fields = {"transactional_id": "tx", "producer_id": producer.producer_id, "group_id": "g"}
        answer = await producer.client.ask(ApiKey.ADD_OFFSETS_TO_TXN, 3, producer_epoch=0, **fields)
        assert answer.error_code == 0
        answer = await producer.client.ask(ApiKey.ADD_OFFSETS_TO_TXN, 1, producer_epoch=5, **fields)
        assert answer.error_code == 47
        answer = await producer.client.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=["tx"])
        (topic,) = answer.transaction_states[0].topics
        assert (topic.topic, topic.partitions) == ("__consumer_offsets", [ord("g") % 2])
        assert (await producer.end(is_commit=True)).error_code == 0
        await producer.until("CompleteCommit")
        producer.client.close()

    run(scenario, tmp_path, **FEW)


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        producer = await producer_on(broker)
        assert (await producer.init(timeout_ms=900_001)).error_code == 50
        assert (await producer.init(producer_id=5)).error_code == 42
        assert await producer.add("t", 0) == 49
        assert (await producer.end(is_commit=True)).error_code == 49
        await producer.init()
        assert await producer.add("none", 0) == 3
        assert await producer.add("t", 1) == 3
        answer = await producer.client.ask(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            3,
            v3_and_below_transactional_id="tx",
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=[Struct(name="t", partitions=[0, 1])],
        )
        results = answer.results_by_topic_v3_and_below[0].results_by_partition
        assert [(item.partition_index, item.partition_error_code) for item in results] == [(0, 55), (1, 3)]
        # Only brokers may ask for others.
        answer = await producer.client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 5, transactions=[])
        assert (answer.error_code, answer.results_by_transaction) == (31, [])
        empty = Producer(producer.client, "")
        assert (await empty.init()).error_code == 42
        assert await empty.add("t", 0) == 42
        assert (await empty.end(is_commit=True)).error_code == 42
        assert await empty.state() == "error 42"
        assert await Producer(producer.client, "unheard-of").state() == "error 105"
        producer.client.close()

    run(scenario, tmp_path, **FEW)


def test_transactions_are_listed(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        one, two = await producer_on(broker, "one"), await producer_on(broker, "two")
        for producer in (one, two):
            await producer.init()
        assert await two.add("t", 0) == 0

        async def listed(version: int = 2, **filters: object) -> tuple[int, list[str], list[str]]:
            fields: dict[str, object] = {"state_filters": [], "producer_id_filters": []}
            answer = await one.client.ask(ApiKey.LIST_TRANSACTIONS, version, **(fields | filters))
            ids = sorted(item.transactional_id for item in answer.transaction_states)
            return answer.error_code, ids, answer.unknown_state_filters

        assert await listed(0) == (0, ["one", "two"], [])
        assert await listed(state_filters=["Ongoing", "Odd"]) == (0, ["two"], ["Odd"])
        assert await listed(state_filters=["Odd"]) == (0, [], ["Odd"])
        assert await listed(producer_id_filters=[one.producer_id]) == (0, ["one"], [])
        assert await listed(state_filters=["Ongoing"], duration_filter=3_600_000) == (0, [], [])
        assert await listed(transactional_id_pattern="t.*") == (0, ["two"], [])
        assert await listed(transactional_id_pattern="") == (0, ["one", "two"], [])
        assert await listed(transactional_id_pattern="(") == (128, [], [])
        for producer in (one, two):
            producer.client.close()

    run(scenario, tmp_path, **FEW)


def test_markers_wait_until_the_decision_is_durable(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        await broker.create_topic("t")
        producer = await producer_on(broker)
        await producer.init()
        assert await producer.add("t", 0) == 0
        broker.disk.hold()
        ending = asyncio.create_task(producer.end(is_commit=True))
        state = broker.partition("__transaction_state", ord("t") * 31 + ord("x") & 1)
        await until(lambda: state.log.log_end > state.high_watermark)
        await asyncio.sleep(0.05)
        assert not ending.done()
        assert markers_of(broker, "t") == []
        broker.disk.release()
        assert (await ending).error_code == 0
        await producer.until("CompleteCommit")
        assert len(markers_of(broker, "t")) == 1
        producer.client.close()

    run(scenario, tmp_path, **FEW)


def test_markers_go_to_the_leaders_on_other_brokers(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = MemoryStore()
        async with (
            running_broker(tmp_path / "1", store, node_id=1, **FEW) as one,
            running_broker(tmp_path / "2", store, node_id=2, **FEW) as two,
        ):
            brokers = {1: one, 2: two}
            await one.create_topic("t", partitions=4)
            first = await producer_on(one)
            found = await first.client.ask(ApiKey.FIND_COORDINATOR, 4, coordinator_keys=["tx"], key_type=1)
            coordinator = brokers[found.coordinators[0].node_id]
            other = brokers[3 - found.coordinators[0].node_id]
            producer = Producer(await coordinator.connect())
            # Who does not coordinate it says so.
            wrong = await other.connect()
            answer = await wrong.ask(
                ApiKey.END_TXN, 3, transactional_id="tx", producer_id=1, producer_epoch=0, committed=True
            )
            assert answer.error_code == 16
            assert (await producer.init()).error_code == 0
            assert await producer.add("t", 0, 1, 2, 3) == 0
            assert (await producer.end(is_commit=True)).error_code == 0
            await producer.until("CompleteCommit")
            leaders = [state.leader for state in one.broker.metadata.image.topics["t"].partitions]
            assert set(leaders) == {1, 2}
            for number, leader in enumerate(leaders):
                assert [marker.is_commit for marker, _, _ in markers_of(brokers[leader], "t", number)] == [True]
            for client in (first.client, producer.client, wrong):
                client.close()

    asyncio.run(scenario())


def test_transactions_whose_topic_is_deleted_are_forgotten(tmp_path: Path) -> None:
    async def scenario(broker: RunningBroker) -> None:
        producer = await producer_on(broker)
        assert (await producer.init()).error_code == 0
        asked = {"topic_names": ["__transaction_state"], "timeout_ms": 60_000}
        answer = await producer.client.ask(ApiKey.DELETE_TOPICS, 5, **asked)
        assert answer.responses[0].error_code == 0
        listed = await producer.client.ask(ApiKey.LIST_TRANSACTIONS, 0, state_filters=[], producer_id_filters=[])
        assert (listed.error_code, listed.transaction_states) == (0, [])
        await producer.find()  # The topic is made anew.
        assert (await producer.init()).error_code == 0
        assert await producer.state() == "Empty"

    run(scenario, tmp_path, **FEW)
