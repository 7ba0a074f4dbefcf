"""Markers find their way to the leaders, whoever these are by now, and are sent until every partition has its own."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.base.errors import ErrorCode
from penstock.base.types import NodeId, TopicPartition
from penstock.coordinator.txn.markers import TxnMarker
from penstock.partition.peers import PeerLost
from penstock.server import txn_markers
from penstock.server.txn_markers import TxnMarkers
from penstock.wire.codec import Struct

OWN = 1
MARKER = TxnMarker(7, 3, 5, True, 2)


def partitions_of(topic: str, *numbers: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic, number) for number in numbers)


class Brokers:
    """Other brokers that answer as they are told, and a cluster in which they lead."""

    def __init__(self, **leaders: list[int]) -> None:
        self.leaders = leaders
        self.alive = {NodeId(number) for number in range(1, 5)}
        self.asked: list[tuple[int, dict[int, set[TopicPartition]]]] = []
        self.codes: dict[tuple[int, TopicPartition], list[ErrorCode]] = {}  # What is answered, one after the other.
        self.before_answer: Callable[[int], Awaitable[None]] | None = None

    @property
    def image(self) -> Any:
        topics = {
            name: SimpleNamespace(partitions=[SimpleNamespace(leader=leader) for leader in leaders])
            for name, leaders in self.leaders.items()
        }
        return SimpleNamespace(topics=topics, brokers=dict.fromkeys(self.alive))

    async def ask(self, node_id: int, api_key: int, version: int, request: Struct, timeout_s: float) -> Struct:
        asked: dict[int, set[TopicPartition]] = {}
        markers = []
        for marker in request.markers:
            topics = []
            for topic in marker.topics:
                partitions = []
                for number in topic.partition_indexes:
                    partition = TopicPartition(topic.name, number)
                    asked.setdefault(marker.producer_id, set()).add(partition)
                    planned = self.codes.get((node_id, partition))
                    code = planned.pop(0) if planned else ErrorCode.none
                    partitions.append(Struct(partition_index=number, error_code=code))
                topics.append(Struct(name=topic.name, partitions=partitions))
            markers.append(Struct(producer_id=marker.producer_id, topics=topics))
        self.asked.append((node_id, asked))
        if self.before_answer is not None:
            await self.before_answer(node_id)
        return Struct(markers=markers)

    def writer(self) -> TxnMarkers:
        parts: dict[str, Any] = {"metadata": self, "partitions": None, "links": self}
        return TxnMarkers(node_id=NodeId(OWN), **parts)


def write(brokers: Brokers, partitions: frozenset[TopicPartition]) -> None:
    asyncio.run(asyncio.wait_for(brokers.writer().write(MARKER, partitions), 30))


def test_each_leader_is_asked_once_for_all_of_its_partitions() -> None:
    brokers = Brokers(t=[2, 3, 2], u=[3])
    write(brokers, partitions_of("t", 0, 1, 2) | partitions_of("u", 0))
    assert brokers.asked == [
        (2, {7: partitions_of("t", 0, 2)}),
        (3, {7: partitions_of("t", 1) | partitions_of("u", 0)}),
    ]


@pytest.mark.parametrize("code", [ErrorCode.invalid_producer_epoch, ErrorCode.unsupported_for_message_format])
def test_a_partition_that_has_gone_on_needs_no_marker(code: ErrorCode) -> None:
    brokers = Brokers(t=[2])
    brokers.codes[2, TopicPartition("t", 0)] = [code]
    write(brokers, partitions_of("t", 0))
    assert len(brokers.asked) == 1


def test_only_what_failed_is_sent_again_to_who_leads_by_then() -> None:
    brokers = Brokers(t=[2, 2, 2])
    moved, late = TopicPartition("t", 1), TopicPartition("t", 2)
    brokers.codes[2, moved] = [ErrorCode.not_leader_or_follower]
    brokers.codes[2, late] = [ErrorCode.not_enough_replicas, ErrorCode.transaction_coordinator_fenced]

    async def move(node_id: int) -> None:
        brokers.leaders["t"][1] = 3

    brokers.before_answer = move
    write(brokers, partitions_of("t", 0, 1, 2))
    assert brokers.asked[0] == (2, {7: partitions_of("t", 0, 1, 2)})
    assert sorted(brokers.asked[1:3]) == [(2, {7: {late}}), (3, {7: {moved}})]
    assert brokers.asked[3:] == [(2, {7: {late}})]


def test_a_leader_that_cannot_be_reached_is_tried_again() -> None:
    brokers = Brokers(t=[2])
    failures = [PeerLost("gone"), PeerLost("gone")]

    async def fail(node_id: int) -> None:
        if failures:
            raise failures.pop()

    brokers.before_answer = fail
    write(brokers, partitions_of("t", 0))
    assert len(brokers.asked) == 3


def test_an_answer_that_nobody_understands_does_not_stop_the_next_one() -> None:
    """Of a newer broker: its transactions would stay open, and those of everybody else that go there."""
    brokers = Brokers(t=[2])
    brokers.codes[2, TopicPartition("t", 0)] = [9999]  # type: ignore[list-item]
    write(brokers, partitions_of("t", 0))
    assert len(brokers.asked) == 2


def test_a_partition_without_leader_is_waited_for_and_one_that_is_gone_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(txn_markers, "GONE_S", 0.1)
    brokers = Brokers(t=[-1], u=[2])
    brokers.alive.discard(NodeId(2))

    async def scenario() -> None:
        writing = asyncio.create_task(
            brokers.writer().write(MARKER, partitions_of("t", 0) | partitions_of("u", 0) | partitions_of("gone", 0))
        )
        await asyncio.sleep(0.5)
        assert not writing.done()
        assert brokers.asked == []
        brokers.leaders["t"] = [3]
        brokers.alive.add(NodeId(2))
        await asyncio.wait_for(writing, 30)

    asyncio.run(scenario())
    assert sorted(node_id for node_id, _ in brokers.asked) == [2, 3]


def test_what_comes_while_a_broker_is_asked_goes_with_the_next_request() -> None:
    async def scenario() -> None:
        brokers, free = Brokers(t=[2, 2]), asyncio.Event()

        async def hold(node_id: int) -> None:
            await free.wait()

        brokers.before_answer = hold
        writer = brokers.writer()

        def begin(producer_id: int, number: int, epoch: int = 3) -> asyncio.Task[None]:
            marker = MARKER._replace(producer_id=producer_id, producer_epoch=epoch)
            return asyncio.create_task(writer.write(marker, partitions_of("t", number)))

        writing = [begin(0, 0)]
        await asyncio.sleep(0.01)
        writing += [begin(number, number % 2) for number in range(1, 50)]
        # The same producer twice is told apart by nothing in the answer.
        twice, given_up = begin(8, 1, epoch=9), begin(99, 0)
        await asyncio.sleep(0.05)
        assert len(brokers.asked) == 1
        given_up.cancel()
        free.set()
        await asyncio.wait_for(asyncio.gather(*writing, twice), 30)
        sizes = [len(asked) for _, asked in brokers.asked]
        assert sizes == [1, 49, 1]
        assert all(99 not in asked for _, asked in brokers.asked)

    asyncio.run(scenario())


def test_a_request_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(txn_markers, "PARTITIONS_MAX", 10)
    brokers = Brokers(t=[2] * 25)
    write(brokers, partitions_of("t", *range(25)))
    assert [len(asked[7]) for _, asked in brokers.asked] == [10, 10, 5]
