"""Asking a transaction's coordinator: together, once, and what comes of each answer. Rule 15."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from fake_coordinator import FakeCoordinator, FakeLinks

from penstock.base.errors import ErrorCode
from penstock.base.types import TopicPartition
from penstock.coordinator.txn.metadata import Producer
from penstock.partition.peers import PeerLost
from penstock.server.txn_verification import TxnVerification, produce_error
from penstock.wire.codec import Struct

A, B = TopicPartition("a", 0), TopicPartition("b", 3)
ME, OTHER = 1, 2

Scenario = Callable[[FakeCoordinator, FakeLinks, TxnVerification], Awaitable[None]]


def run(scenario: Scenario, node_id: int = OTHER) -> None:
    async def main() -> None:
        coordinator, links = FakeCoordinator(node_id), FakeLinks()
        await scenario(coordinator, links, TxnVerification(node_id=ME, coordinator=coordinator, links=links))

    asyncio.run(main())


def reply(request: Struct, code: ErrorCode = ErrorCode.none) -> Struct:
    results = [
        Struct(
            transactional_id=item.transactional_id,
            topic_results=[
                Struct(
                    name=topic.name,
                    results_by_partition=[
                        Struct(partition_index=number, partition_error_code=code) for number in topic.partitions
                    ],
                )
                for topic in item.topics
            ],
        )
        for item in request.transactions
    ]
    return Struct(error_code=ErrorCode.none, results_by_transaction=results)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_our_own_coordinator_is_asked_without_a_socket() -> None:
    async def scenario(coordinator: FakeCoordinator, links: FakeLinks, verification: TxnVerification) -> None:
        unknown = await verification.ask("t", Producer(7, 1), [A], is_added=False)
        assert unknown == {A: ErrorCode.transaction_abortable}
        assert await verification.ask("t", Producer(7, 1), [A], is_added=True) == {A: ErrorCode.none}
        assert await verification.ask("t", Producer(7, 1), [A], is_added=False) == {A: ErrorCode.none}
        assert [(kind, command.client_version) for kind, command in coordinator.asked] == [
            ("verify", 0),
            ("add", 2),
            ("verify", 0),
        ]
        assert links.asked == []
        assert verification.refused_count == 1

    run(scenario, ME)


def test_an_answer_that_nobody_understands_is_none_and_the_next_is_asked() -> None:
    async def scenario(coordinator: FakeCoordinator, links: FakeLinks, verification: TxnVerification) -> None:
        first = asyncio.create_task(verification.ask("first", Producer(7, 1), [A], is_added=False))
        await settle()
        second = asyncio.create_task(verification.ask("second", Producer(8, 1), [A], is_added=False))
        await settle()
        links.answers[0].set_result(reply(links.asked[0][3], 9999))  # type: ignore[arg-type]
        assert await first == {A: ErrorCode.network_exception}
        await settle()
        links.answers[1].set_result(reply(links.asked[1][3]))
        assert await second == {A: ErrorCode.none}

    run(scenario)


def test_questions_gather_while_one_is_under_way() -> None:
    async def scenario(coordinator: FakeCoordinator, links: FakeLinks, verification: TxnVerification) -> None:
        def ask(name: str, *wanted: TopicPartition, is_added: bool = False) -> asyncio.Task[object]:
            return asyncio.create_task(verification.ask(name, Producer(7, 1), wanted, is_added=is_added))  # type: ignore[arg-type]

        tasks = [ask("first", A)]
        await settle()
        tasks += [ask("t", A), ask("t", B), ask("u", A), ask("t", A, is_added=True)]
        await settle()
        assert len(links.asked) == 1
        links.answers[0].set_result(reply(links.asked[0][3]))
        await settle()
        node_id, key, version, request = links.asked[1]
        assert (node_id, key, version) == (OTHER, 24, 5)
        found = {
            item.transactional_id: (item.verify_only, {topic.name for topic in item.topics})
            for item in request.transactions
        }
        assert found == {"t": (True, {"a", "b"}), "u": (True, {"a"})}
        links.answers[1].set_result(reply(request, ErrorCode.invalid_txn_state))
        await settle()
        (added,) = links.asked[2][3].transactions
        assert (added.transactional_id, added.verify_only) == ("t", False)
        links.answers[2].set_result(reply(links.asked[2][3]))
        results = [await task for task in tasks]
        assert results == [
            {A: ErrorCode.none},
            {A: ErrorCode.invalid_txn_state},
            {B: ErrorCode.invalid_txn_state},
            {A: ErrorCode.invalid_txn_state},
            {A: ErrorCode.none},
        ]

    run(scenario)


def test_an_epoch_that_was_overtaken_is_not_asked_about() -> None:
    async def scenario(coordinator: FakeCoordinator, links: FakeLinks, verification: TxnVerification) -> None:
        first = asyncio.create_task(verification.ask("x", Producer(1, 1), [A], is_added=False))
        await settle()
        old = asyncio.create_task(verification.ask("t", Producer(7, 1), [A], is_added=False))
        await settle()
        new = asyncio.create_task(verification.ask("t", Producer(7, 2), [A], is_added=False))
        await settle()
        assert await old == {A: ErrorCode.invalid_producer_epoch}
        assert await verification.ask("t", Producer(7, 1), [A], is_added=False) == {A: ErrorCode.invalid_producer_epoch}
        links.answers[0].set_result(reply(links.asked[0][3]))
        await settle()
        links.answers[1].set_result(reply(links.asked[1][3]))
        assert await first == await new == {A: ErrorCode.none}

    run(scenario)


def test_a_coordinator_that_does_not_answer_leaves_nobody_waiting() -> None:
    async def scenario(coordinator: FakeCoordinator, links: FakeLinks, verification: TxnVerification) -> None:
        lost = asyncio.create_task(verification.ask("t", Producer(7, 1), [A, B], is_added=False))
        await settle()
        links.answers[0].set_exception(PeerLost("gone"))
        assert await lost == dict.fromkeys((A, B), ErrorCode.network_exception)
        short = asyncio.create_task(verification.ask("t", Producer(7, 1), [A], is_added=False))
        await settle()
        links.answers[1].set_result(Struct(error_code=ErrorCode.none, results_by_transaction=[]))
        assert await short == {A: ErrorCode.network_exception}
        refused = asyncio.create_task(verification.ask("t", Producer(7, 1), [A], is_added=False))
        await settle()
        links.answers[2].set_result(
            Struct(error_code=ErrorCode.cluster_authorization_failed, results_by_transaction=[])
        )
        assert await refused == {A: ErrorCode.cluster_authorization_failed}

    run(scenario)


def test_a_producer_that_is_a_moment_early_is_asked_for_again() -> None:
    """KIP-890: EndTxn is answered before the markers are written; the next transaction may begin at once."""

    async def scenario(coordinator: FakeCoordinator, links: FakeLinks, verification: TxnVerification) -> None:
        coordinator.code = ErrorCode.concurrent_transactions
        asyncio.get_running_loop().call_later(0.03, lambda: setattr(coordinator, "code", ErrorCode.none))
        codes = await verification.ask("t", Producer(7, 1), [A], is_added=True)
        assert len(coordinator.asked) > 1
        assert codes[A] in (ErrorCode.none, ErrorCode.concurrent_transactions)  # On a machine that is too slow.
        coordinator.code = ErrorCode.concurrent_transactions
        assert await verification.ask("t", Producer(7, 1), [A], is_added=True) == {A: ErrorCode.concurrent_transactions}

    run(scenario, ME)


@pytest.mark.parametrize(
    ("code", "version", "told"),
    [
        (ErrorCode.concurrent_transactions, 12, ErrorCode.not_enough_replicas),
        (ErrorCode.network_exception, 12, ErrorCode.not_enough_replicas),
        (ErrorCode.coordinator_load_in_progress, 9, ErrorCode.not_enough_replicas),
        (ErrorCode.coordinator_not_available, 9, ErrorCode.not_enough_replicas),
        (ErrorCode.not_coordinator, 9, ErrorCode.not_enough_replicas),
        (ErrorCode.producer_fenced, 12, ErrorCode.invalid_producer_epoch),
        (ErrorCode.transaction_abortable, 10, ErrorCode.invalid_txn_state),
        (ErrorCode.transaction_abortable, 11, ErrorCode.transaction_abortable),
        (ErrorCode.cluster_authorization_failed, 12, ErrorCode.invalid_txn_state),
        (ErrorCode.invalid_producer_id_mapping, 12, ErrorCode.invalid_producer_id_mapping),
        (ErrorCode.invalid_txn_state, 12, ErrorCode.invalid_txn_state),
    ],
)
def test_a_producer_is_told_what_it_understands(code: ErrorCode, version: int, told: ErrorCode) -> None:
    """Rule 24: retriable codes for what passes."""
    assert produce_error(code, version) is told
