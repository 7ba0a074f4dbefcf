"""Transactions: what is published in one is seen by everybody, or by nobody."""

import threading
import time
from itertools import islice

import pytest

import penstock
from penstock.client import ClientError, Closed, Connection, DeliveryFailed, Fenced, TransactionAborted
from penstock.testing import EmbeddedBroker

TIMEOUT_S = 60.0


def seen(connection: Connection, topic: str, count: int) -> list[bytes | None]:
    """The first so many messages that a reader gets."""
    with connection.subscribe(topic, group=f"g-{time.time_ns()}", timeout=TIMEOUT_S) as messages:
        return [message.value for message in islice(messages, count)]


def test_what_is_published_in_a_transaction_is_seen_once_it_has_ended(
    connection: Connection, penstock_topic: str
) -> None:
    with connection.subscribe(penstock_topic, group="g") as messages:
        with connection.transaction() as transaction:
            receipt = transaction.publish(penstock_topic, "one").result(TIMEOUT_S)
            connection.publish(penstock_topic, "two").result(TIMEOUT_S)
            assert (receipt.topic, receipt.offset) == (penstock_topic, 0)
            assert messages.receive(1) is None
        received = [messages.receive(TIMEOUT_S), messages.receive(TIMEOUT_S)]
        assert [message and message.value for message in received] == [b"one", b"two"]


def test_an_exception_aborts_it(connection: Connection, penstock_topic: str) -> None:
    with pytest.raises(ZeroDivisionError), connection.transaction():
        connection.publish(penstock_topic, "never seen").result(TIMEOUT_S)
        1 / 0  # noqa: B018
    with connection.transaction():
        connection.publish(penstock_topic, "seen")
    assert seen(connection, penstock_topic, 1) == [b"seen"]


def test_one_transaction_spans_topics(connection: Connection, penstock_broker: EmbeddedBroker) -> None:
    topics = [penstock_broker.create_topic(partitions=2) for _ in range(2)]
    with connection.transaction():
        for number in range(20):
            connection.publish(topics[number % 2], str(number), partition=number // 2 % 2)
    assert sorted(seen(connection, topics[0], 10) + seen(connection, topics[1], 10)) == sorted(
        str(number).encode() for number in range(20)
    )


def test_another_delivery_inside_of_it_is_not_part_of_it(connection: Connection, penstock_topic: str) -> None:
    with pytest.raises(ZeroDivisionError), connection.transaction():
        connection.publish(penstock_topic, "alone", delivery="at-least-once").result(TIMEOUT_S)
        connection.publish(penstock_topic, "aborted", delivery="exactly-once").result(TIMEOUT_S)
        1 / 0  # noqa: B018
    connection.publish(penstock_topic, "last").result(TIMEOUT_S)
    assert seen(connection, penstock_topic, 2) == [b"alone", b"last"]


def test_other_threads_are_not_part_of_it(connection: Connection, penstock_topic: str) -> None:
    with pytest.raises(ZeroDivisionError), connection.transaction():
        other = threading.Thread(target=lambda: connection.publish(penstock_topic, "other").result(TIMEOUT_S))
        other.start()
        other.join(TIMEOUT_S)
        connection.publish(penstock_topic, "aborted").result(TIMEOUT_S)
        1 / 0  # noqa: B018
    connection.publish(penstock_topic, "last").result(TIMEOUT_S)
    assert seen(connection, penstock_topic, 2) == [b"other", b"last"]


def test_transactions_of_several_threads_are_open_at_once(connection: Connection, penstock_topic: str) -> None:
    both_open = threading.Barrier(2)
    failures: list[BaseException] = []

    def run(name: str) -> None:
        try:
            for number in range(3):
                with connection.transaction():
                    connection.publish(penstock_topic, f"{name}{number}")
                    both_open.wait(TIMEOUT_S)
        except BaseException as error:
            failures.append(error)
            both_open.abort()

    threads = [threading.Thread(target=run, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert not failures
    found = [value or b"" for value in seen(connection, penstock_topic, 6)]
    assert [[value for value in found if value.startswith(name)] for name in (b"a", b"b")] == [
        [b"a0", b"a1", b"a2"],
        [b"b0", b"b1", b"b2"],
    ]


def test_a_message_that_cannot_be_published_aborts_all(connection: Connection, penstock_topic: str) -> None:
    with pytest.raises(DeliveryFailed, match="too large"), connection.transaction():
        connection.publish(penstock_topic, "small")
        connection.publish(penstock_topic, b"x" * 2_000_000)
    connection.publish(penstock_topic, "last").result(TIMEOUT_S)
    assert seen(connection, penstock_topic, 1) == [b"last"]


def test_who_begins_with_an_id_shuts_out_who_used_it_before(
    connection: Connection, penstock_broker: EmbeddedBroker, penstock_topic: str
) -> None:
    name = f"id-of-{penstock_topic}"
    with pytest.raises(Fenced, match=r"another process.*give each its own"):  # noqa: SIM117
        with connection.transaction(id=name):
            connection.publish(penstock_topic, "zombie").result(TIMEOUT_S)
            with penstock.connect(penstock_broker.bootstrap_servers) as newer:
                with newer.transaction(id=name):
                    newer.publish(penstock_topic, "newer").result(TIMEOUT_S)
                assert seen(newer, penstock_topic, 1) == [b"newer"]
    with connection.transaction(id=name):  # The producer that was shut out is not used again.
        connection.publish(penstock_topic, "again")
    assert seen(connection, penstock_topic, 2) == [b"newer", b"again"]


def test_a_transaction_that_takes_too_long_is_aborted_by_the_broker(
    connection: Connection, penstock_topic: str
) -> None:
    with pytest.raises((Fenced, TransactionAborted)), connection.transaction(timeout=2):
        connection.publish(penstock_topic, "too slow").result(TIMEOUT_S)
        connection.publish(penstock_topic, "outside", delivery="at-least-once").result(TIMEOUT_S)
        # What is outside and comes later is readable as soon as the transaction before it has ended.
        assert seen(connection, penstock_topic, 1) == [b"outside"]
    with connection.transaction(timeout=2):
        connection.publish(penstock_topic, "in time")
    assert seen(connection, penstock_topic, 2) == [b"outside", b"in time"]


def test_misuse_is_told(connection: Connection, penstock_topic: str) -> None:
    with pytest.raises(ClientError, match=r"no transaction to publish in.*with connection\.transaction"):
        connection.publish(penstock_topic, "x", delivery="exactly-once")
    with connection.transaction(), pytest.raises(ClientError, match="do not nest"), connection.transaction():
        pass
    with pytest.raises(ClientError, match="not open"):
        connection.transaction().publish(penstock_topic, "x")


def test_an_empty_transaction_is_fine(connection: Connection) -> None:
    with connection.transaction():
        pass


def test_a_closed_connection_says_so(penstock_broker: EmbeddedBroker, penstock_topic: str) -> None:
    before = set(threading.enumerate())
    connection = penstock.connect(penstock_broker.bootstrap_servers, delivery="exactly-once")
    with connection.transaction():
        connection.publish(penstock_topic, "x")
    connection.close()
    assert set(threading.enumerate()) == before
    with pytest.raises(Closed, match="Cannot begin a transaction"), connection.transaction():
        pass
    with pytest.raises(Closed):
        connection.process(penstock_topic, group="g")
